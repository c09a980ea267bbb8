"""Encode and decode transaction ids: a producer uses them to end a transaction.

Clients must not interpret an id. An id names the half message completely. So any proxy can end the
transaction at the right broker, which knows whether it is still open. A checksum detects damaged or
invented ids. It is not a signature: ending a transaction needs the same permission as sending.

An id has the fields of `HEAD`. Then broker name, producer group and the broker's transaction id
follow in UTF-8, each with its length in one byte before it. `checked_text` encodes these bytes as
text.
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
    """The name of one transaction. Names have at most 255 bytes in UTF-8."""

    broker_name: str
    producer_group: str
    transaction_id: str  # at the broker: the unique id of the message
    queue_offset: int


def encode(transaction: TransactionId) -> str:
    """Return the transaction id as text for the client.

    Raises MqError with the code INVALID_PARAMETER for a name that is too long.
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

    Raises MqError with the code INVALID_TRANSACTION_ID if `encode` did not write the text.
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
