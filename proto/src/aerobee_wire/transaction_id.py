"""Transaction ids: what a producer of the public protocol holds of a half message, and ends it by.

Opaque to clients. An id names the half message completely, so that any proxy can end the
transaction at the right broker; whether it is still open is the broker's to say. A checksum tells
ids that were damaged or made up; it is no signature, and ending needs the same rights as sending.

    1 version              1
    8 queue offset         of the half message, in the half topic
    1 + n broker name, 1 + n producer group, 1 + n transaction id at the broker     UTF-8
    4 checksum             CRC-32 of all before it

Written in base64 for URLs, without padding. Big-endian.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from dataclasses import dataclass
from typing import Final

from aerobee_wire.status import Code, MqError

VERSION: Final = 1

_HEAD = struct.Struct(">Bq")
_CHECKSUM = struct.Struct(">I")
_NAMES = 3
_MAX_NAME_BYTES = 255
MAX_CHARACTERS = 4 * (_HEAD.size + _NAMES * (1 + _MAX_NAME_BYTES) + _CHECKSUM.size) // 3 + 1


@dataclass(frozen=True, slots=True)
class TransactionId:
    """One transaction. Names have at most 255 bytes in UTF-8."""

    broker_name: str
    producer_group: str
    # As the broker knows it: the unique id of the message.
    transaction_id: str
    queue_offset: int


def encode(one: TransactionId) -> str:
    """The text that a client gets. Raises MqError INVALID_PARAMETER for a name that is too long."""
    names = [name.encode() for name in (one.broker_name, one.producer_group, one.transaction_id)]
    if max(map(len, names)) > _MAX_NAME_BYTES:
        raise MqError(
            Code.INVALID_PARAMETER,
            f"the message id or the topic has more than {_MAX_NAME_BYTES} bytes: a transaction "
            "needs a shorter one",
        )
    payload = _HEAD.pack(VERSION, one.queue_offset) + b"".join(
        bytes((len(name),)) + name for name in names
    )
    return _to_text(payload + _CHECKSUM.pack(zlib.crc32(payload)))


def decode(text: str) -> TransactionId:
    """The transaction that `text` names.

    Raises MqError INVALID_TRANSACTION_ID for anything that `encode` did not write.
    """
    payload = _checked(text)
    version, queue_offset = _HEAD.unpack_from(payload)
    if version != VERSION:
        raise _invalid(f"is of version {version}")
    names, position = [], _HEAD.size
    try:
        for _ in range(_NAMES):
            start, position = position + 1, position + 1 + payload[position]
            names.append(payload[start:position].decode())
    except (IndexError, UnicodeDecodeError):
        raise _invalid("has broken names") from None
    if position != len(payload):
        raise _invalid("has broken names")
    broker_name, producer_group, transaction_id = names
    return TransactionId(broker_name, producer_group, transaction_id, queue_offset)


def _to_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _checked(text: str) -> bytes:
    """The bytes before the checksum, once it holds and the text is the one way to write them."""
    if len(text) > MAX_CHARACTERS:
        raise _invalid("is too long")
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise _invalid("is not base64") from None
    # Decoding skips foreign characters and spare bits: only the exact text may pass.
    if len(data) < _HEAD.size + _NAMES + _CHECKSUM.size or _to_text(data) != text:
        raise _invalid("is damaged")
    payload = data[: -_CHECKSUM.size]
    if _CHECKSUM.unpack(data[-_CHECKSUM.size :])[0] != zlib.crc32(payload):
        raise _invalid("is damaged: its checksum does not hold")
    return payload


def _invalid(problem: str) -> MqError:
    return MqError(
        Code.INVALID_TRANSACTION_ID,
        f"the transaction id {problem}: give back the text that came with the half message, "
        "unchanged",
    )
