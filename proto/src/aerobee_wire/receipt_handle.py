"""Receipt handles: what a consumer holds while a message is leased to it, and gives back to settle
it.

Opaque to clients. A handle names the lease completely, so that any proxy can settle it with the
right broker; whether the lease is still alive is the broker's to say. A checksum tells handles that
were damaged or made up; it is no signature, and settling needs the same rights as receiving.

    1 version              2
    1 flags                bit 0: of the retry topic, bit 1: of a FIFO group
    2 delivery attempt
    4 queue id
    8 queue offset
    8 lease id             unique at its broker, for ever; stays when the lease is renewed
    8 pop time             milliseconds since the epoch
    4 invisible duration   milliseconds
    1 + n broker name, 1 + n topic, 1 + n consumer group     UTF-8
    4 checksum             CRC-32 of all before it

Written in base64 for URLs, without padding. Big-endian.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from functools import lru_cache
from typing import Final, NamedTuple

from aerobee_wire.status import Code, MqError

VERSION: Final = 2  # 1 is RocketMQ's own form, eight numbers and names with spaces between them
RETRY: Final = 1
FIFO: Final = 2

_HEAD = struct.Struct(">BBHiqqqi")
assert _HEAD.size == 36
_CHECKSUM = struct.Struct(">I")
_NAMES = 3
MAX_TIME_MS = 253_402_300_799_999  # the end of the year 9999
MAX_CHARACTERS = 4 * (_HEAD.size + _NAMES * 256 + _CHECKSUM.size) // 3 + 1


class ReceiptHandle(NamedTuple):
    """One lease. Names have at most 255 bytes in UTF-8."""

    broker_name: str
    # As the user knows it, also where the message waits in a retry topic.
    topic: str
    consumer_group: str
    queue_id: int
    queue_offset: int
    lease_id: int
    pop_time_ms: int
    invisible_duration_ms: int
    delivery_attempt: int
    of_retry_topic: bool = False
    fifo: bool = False

    @property
    def expires_ms(self) -> int:
        """When the lease ends if nobody renewed it or changed its duration since."""
        return self.pop_time_ms + self.invisible_duration_ms


def encode(handle: ReceiptHandle) -> str:
    """The text that a client gets."""
    payload = _HEAD.pack(
        VERSION,
        handle.of_retry_topic * RETRY | handle.fifo * FIFO,
        min(handle.delivery_attempt, 0xFFFF),
        handle.queue_id,
        handle.queue_offset,
        handle.lease_id,
        handle.pop_time_ms,
        handle.invisible_duration_ms,
    ) + _encoded_names(handle.broker_name, handle.topic, handle.consumer_group)
    return _to_text(payload + _CHECKSUM.pack(zlib.crc32(payload)))


@lru_cache(maxsize=256)  # of a batch all are the same
def _encoded_names(*names: str) -> bytes:
    return b"".join(bytes((len(name),)) + name for name in map(str.encode, names))


def decode(text: str) -> ReceiptHandle:
    """The lease that `text` names.

    Raises MqError INVALID_RECEIPT_HANDLE for anything that `encode` did not write.
    """
    payload = _checked(text)
    (
        version,
        flags,
        attempt,
        queue_id,
        queue_offset,
        lease_id,
        pop_time_ms,
        invisible_duration_ms,
    ) = _HEAD.unpack_from(payload)
    if version != VERSION:
        raise _invalid(f"is of version {version}")
    if flags & ~(RETRY | FIFO):
        raise _invalid("has unknown flags")
    numbers = (queue_id, queue_offset, lease_id, pop_time_ms, invisible_duration_ms)
    if min(numbers) < 0 or pop_time_ms > MAX_TIME_MS:
        raise _invalid("has numbers that no broker gives")
    broker_name, topic, consumer_group = _names(payload)
    return ReceiptHandle(
        broker_name,
        topic,
        consumer_group,
        queue_id,
        queue_offset,
        lease_id,
        pop_time_ms,
        invisible_duration_ms,
        attempt,
        bool(flags & RETRY),
        bool(flags & FIFO),
    )


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


def _names(payload: bytes) -> list[str]:
    names, position = [], _HEAD.size
    try:
        for _ in range(_NAMES):
            start, position = position + 1, position + 1 + payload[position]
            names.append(payload[start:position].decode())
    except (IndexError, UnicodeDecodeError):
        raise _invalid("has broken names") from None
    if position != len(payload):
        raise _invalid("has broken names")
    return names


def _invalid(problem: str) -> MqError:
    return MqError(
        Code.INVALID_RECEIPT_HANDLE,
        f"the receipt handle {problem}: give back the text that came with the message, unchanged",
    )
