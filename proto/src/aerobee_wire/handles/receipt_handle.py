"""Encode and decode receipt handles: a consumer uses them to acknowledge a leased message.

Clients must not interpret a handle. A handle names the lease completely. So any proxy can send the
ack to the right broker, which knows whether the lease is still valid. A checksum detects damaged or
invented handles. It is not a signature: an ack needs the same permission as a receive.

A handle has the fields of `HEAD`. Then broker name, topic and consumer group follow in UTF-8, each
with its length in one byte before it. `checked_text` encodes these bytes as text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from aerobee_wire.handles import checked_text
from aerobee_wire.layout import Layout
from aerobee_wire.status import Code, MqError

VERSION: Final = 2  # 1 is RocketMQ's own form, eight numbers and names with spaces between them
RETRY: Final = 1  # flag: in the retry topic
FIFO: Final = 2  # flag: for a FIFO group

HEAD = Layout(
    ("version", "B"),
    ("flags", "B"),  # RETRY, FIFO
    ("delivery_attempt", "H"),
    ("queue_id", "i"),
    ("queue_offset", "q"),
    ("lease_id", "q"),  # always unique at its broker; renewing the lease keeps it
    ("pop_time", "q"),  # milliseconds since the epoch
    ("invisible_duration", "i"),  # milliseconds
)
_HEAD = HEAD.struct
assert _HEAD.size == 36
_QUEUE_OFFSET = slice(HEAD.offset_of("queue_offset"), HEAD.offset_of("lease_id"))
_NAMES = 3
MAX_TIME_MS = 253_402_300_799_999  # the end of the year 9999
_IMPOSSIBLE = "has numbers that no broker gives"
MAX_CHARACTERS = checked_text.max_characters(_HEAD.size, _NAMES)


class ReceiptHandle(NamedTuple):
    """The name and the times of one lease. Names have at most 255 bytes in UTF-8."""

    broker_name: str
    # The topic of the subscription, also for a message in the retry topic.
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
        """Return when the lease ends, in milliseconds since the epoch.

        The value does not include later renewals or changes of the lease.
        """
        return self.pop_time_ms + self.invisible_duration_ms


def encode(handle: ReceiptHandle) -> str:
    """Return the receipt handle as text for the client."""
    encoder = encoder_of_pop(
        broker_name=handle.broker_name,
        topic=handle.topic,
        consumer_group=handle.consumer_group,
        lease_id=handle.lease_id,
        pop_time_ms=handle.pop_time_ms,
        invisible_duration_ms=handle.invisible_duration_ms,
        fifo=handle.fifo,
    )
    return encoder(
        handle.queue_id, handle.queue_offset, handle.delivery_attempt, handle.of_retry_topic
    )


def encoder_of_pop(
    *,
    broker_name: str,
    topic: str,
    consumer_group: str,
    lease_id: int,
    pop_time_ms: int,
    invisible_duration_ms: int,
    fifo: bool,
) -> Callable[[int, int, int, bool], str]:
    """Return a function that encodes receipt handles for the messages of one pop.

    Its arguments are queue id, queue offset, delivery attempt, and whether the message is in the
    retry topic.
    """
    names = _encoded_names(broker_name, topic, consumer_group)
    pack, to_text, flags = _HEAD.pack, checked_text.to_text, fifo * FIFO
    of_all = lease_id, pop_time_ms, invisible_duration_ms

    def encoded(queue_id: int, queue_offset: int, attempt: int, of_retry_topic: bool) -> str:
        own = of_retry_topic * RETRY | flags, min(attempt, 0xFFFF), queue_id, queue_offset
        return to_text(pack(VERSION, *own, *of_all) + names)

    return encoded


@lru_cache(maxsize=256)
def _encoded_names(*names: str) -> bytes:
    return checked_text.names_to_bytes([name.encode() for name in names])


def decode(text: str) -> ReceiptHandle:
    """Return the lease that `text` names.

    Raises MqError with the code INVALID_RECEIPT_HANDLE if `encode` did not write the text.
    """
    common, queue_offset = split(text)
    known = decode_common(common)
    return ReceiptHandle._make((*known[:4], queue_offset, *known[5:]))


def split(text: str) -> tuple[bytes, int]:
    """Split a text into the handle without its queue offset, and the queue offset.

    With this, one call of `decode_common` decodes all handles of a pop that differ only in the
    queue offset. Raises the same MqError as `decode`.
    """
    try:
        payload = checked_text.payload_in(
            text, least_bytes=_HEAD.size + _NAMES, most_characters=MAX_CHARACTERS
        )
    except ValueError as problem:
        raise _invalid(str(problem)) from None
    queue_offset = int.from_bytes(payload[_QUEUE_OFFSET], "big", signed=True)
    if queue_offset < 0:
        raise _invalid(_IMPOSSIBLE)
    return payload[: _QUEUE_OFFSET.start] + payload[_QUEUE_OFFSET.stop :], queue_offset


@lru_cache(maxsize=256)
def decode_common(common: bytes) -> ReceiptHandle:
    """Decode a handle without its queue offset, as returned by `split`.

    The queue offset of the result is 0. Raises the same MqError as `decode`.
    """
    payload = common[: _QUEUE_OFFSET.start] + bytes(8) + common[_QUEUE_OFFSET.start :]
    try:
        if payload[0] != VERSION:
            raise ValueError(f"is of version {payload[0]}")
        broker_name, topic, consumer_group = checked_text.names_in(payload, _HEAD.size, _NAMES)
    except ValueError as problem:
        raise _invalid(str(problem)) from None
    head = _HEAD.unpack_from(payload)
    _, flags, attempt, queue_id, _, lease_id, pop_time_ms, invisible_duration_ms = head
    if flags & ~(RETRY | FIFO):
        raise _invalid("has unknown flags")
    numbers = (queue_id, lease_id, pop_time_ms, invisible_duration_ms)
    if min(numbers) < 0 or pop_time_ms > MAX_TIME_MS:
        raise _invalid(_IMPOSSIBLE)
    return ReceiptHandle(
        broker_name,
        topic,
        consumer_group,
        queue_id,
        0,
        lease_id,
        pop_time_ms,
        invisible_duration_ms,
        attempt,
        bool(flags & RETRY),
        bool(flags & FIFO),
    )


def _invalid(problem: str) -> MqError:
    return MqError(
        Code.INVALID_RECEIPT_HANDLE,
        f"the receipt handle {problem}: give back the text that came with the message, unchanged",
    )
