"""Transaction ids: the text by which a producer of the public protocol ends a transaction.

Clients must not interpret it. An id names the half message completely. Therefore, any proxy can end
the transaction at the right broker, which knows whether it is still open. A checksum detects ids
that were damaged or made up. It is not a signature: ending needs the same permission as sending.

An id has the fields of `HEAD`, then 1 + n bytes each for broker name, producer group and the
broker's transaction id in UTF-8. `checked_text` writes it as text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aerobee_wire.handles import checked_text
from aerobee_wire.layout import Layout
from aerobee_wire.status import Code, MqError, invalid_parameter

VERSION: Final = 1

HEAD = Layout(
    ("version", "B"),
    ("queue_offset", "q"),  # of the half message, in the half topic
)
_HEAD = HEAD.struct
_NAMES = 3
MAX_CHARACTERS = checked_text.max_characters(_HEAD.size, _NAMES)


@dataclass(frozen=True, slots=True)
class TransactionId:
    """One transaction. Names have at most 255 bytes in UTF-8."""

    broker_name: str
    producer_group: str
    transaction_id: str  # at the broker: the unique id of the message
    queue_offset: int


def encode(transaction: TransactionId) -> str:
    """Return the text for the client.

    Raises MqError INVALID_PARAMETER for a name that is too long.
    """
    texts = (transaction.broker_name, transaction.producer_group, transaction.transaction_id)
    names = [text.encode() for text in texts]
    if max(map(len, names)) > checked_text.MAX_NAME_BYTES:
        raise invalid_parameter(
            f"the message id or the topic has more than {checked_text.MAX_NAME_BYTES} bytes: a "
            "transaction needs a shorter one",
            about="message_id" if len(names[2]) > checked_text.MAX_NAME_BYTES else "topic",
        )
    head = _HEAD.pack(VERSION, transaction.queue_offset)
    return checked_text.to_text(head + checked_text.names_to_bytes(names))


def decode(text: str) -> TransactionId:
    """Return the transaction that `text` names.

    Raises MqError INVALID_TRANSACTION_ID for anything that `encode` did not write.
    """
    try:
        payload = checked_text.payload_in(
            text, least_bytes=_HEAD.size + _NAMES, most_characters=MAX_CHARACTERS
        )
        version, queue_offset = _HEAD.unpack_from(payload)
        if version != VERSION:
            raise ValueError(f"is of version {version}")
        broker_name, producer_group, transaction_id = checked_text.names_in(
            payload, _HEAD.size, _NAMES
        )
    except ValueError as problem:
        raise _invalid(str(problem)) from None
    return TransactionId(broker_name, producer_group, transaction_id, queue_offset)


def _invalid(problem: str) -> MqError:
    return MqError(
        Code.INVALID_TRANSACTION_ID,
        f"the transaction id {problem}: give back the text that came with the half message, "
        "unchanged",
    )
