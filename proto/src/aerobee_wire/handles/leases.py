"""Convert the receipt handles of clients to the leases of brokers, and back.

This module does no I/O.

A message that a classic consumer sent back is in the retry topic of its group. Its lease is on that
topic, but its receipt handle names the topic to which the message was first sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aerobee.broker.v1.pop_pb2 import InvisibleChange, Lease, LeaseSet, PopRequest, PopResponse

from aerobee_wire import topics
from aerobee_wire.handles import receipt_handle
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.queues.lite import is_line, lite_topic_of
from aerobee_wire.record import Record, iter_records
from aerobee_wire.status import Code, MqError

# Broker name, physical topic, queue id, queue offset, lease id.
LeaseKey = tuple[str, str, int, int, int]


def handle_of(text: str, topic: str, consumer_group: str) -> ReceiptHandle:
    """Decode a receipt handle.

    Raises MqError with the code INVALID_RECEIPT_HANDLE if the text is not a handle, or if the
    handle belongs to another topic or group.
    """
    handle = receipt_handle.decode(text)
    check_handle(handle, topic, consumer_group)
    return handle


def check_handle(handle: ReceiptHandle, topic: str, consumer_group: str) -> None:
    if handle.consumer_group != consumer_group or not is_of(handle, topic):
        raise MqError(
            Code.INVALID_RECEIPT_HANDLE,
            f"the receipt handle is of topic {handle.topic} and group {handle.consumer_group}",
        )


def is_of(handle: ReceiptHandle, topic: str) -> bool:
    """Return whether the message of a handle belongs to `topic`, or to a lite topic under it.

    A message of the group's retry topic may have any origin topic.
    """
    if handle.topic == topic or handle.of_retry_topic:
        return True
    found = lite_topic_of(handle.topic) if is_line(handle.topic) else None
    return found is not None and found.parent == topic


def lease_of(handle: ReceiptHandle) -> Lease:
    return Lease(
        consumer_group=handle.consumer_group,
        topic=physical_topic(handle),
        queue_id=handle.queue_id,
        queue_offset=handle.queue_offset,
        lease_id=handle.lease_id,
        expires_timestamp_ms=handle.expires_ms,
    )


def lease_set_of(handle: ReceiptHandle, queue_offsets: Sequence[int]) -> LeaseSet:
    """Return the leases of all handles that differ from `handle` only in the queue offset."""
    return LeaseSet(
        consumer_group=handle.consumer_group,
        topic=physical_topic(handle),
        queue_id=handle.queue_id,
        lease_id=handle.lease_id,
        expires_timestamp_ms=handle.expires_ms,
        queue_offsets=queue_offsets,
    )


def key_of(handle: ReceiptHandle) -> LeaseKey:
    """Return the key of a lease. All its handles have the same key, even after renewals."""
    return (
        handle.broker_name,
        physical_topic(handle),
        handle.queue_id,
        handle.queue_offset,
        handle.lease_id,
    )


def keys_of(handle: ReceiptHandle, queue_offsets: Sequence[int]) -> list[LeaseKey]:
    """Return the keys of handles that differ from `handle` only in the queue offset."""
    broker_name, topic, queue_id, _, lease_id = key_of(handle)
    return [(broker_name, topic, queue_id, offset, lease_id) for offset in queue_offsets]


def physical_topic(handle: ReceiptHandle) -> str:
    """Return the topic that stores the message."""
    return topics.retry_topic(handle.consumer_group) if handle.of_retry_topic else handle.topic


def handle_maker(pop: PopRequest, answer: PopResponse) -> Callable[[Record, int], ReceiptHandle]:
    """Return a function that maps (record, delivery attempt) to the receipt handle of a message.

    `answer` leased the messages. The delivery attempt is counted from 1. The common fields of the
    pop are read only once.
    """
    # In the order of the fields of ReceiptHandle: keywords would take three times as long.
    names = answer.broker_name, pop.topic, pop.consumer_group
    lease = answer.lease_id, answer.pop_time_ms, answer.invisible_duration_ms
    fifo, is_retry, new = pop.fifo, topics.is_retry, tuple.__new__

    def make(record: Record, attempt: int) -> ReceiptHandle:
        own = record.queue_id, record.queue_offset
        return new(ReceiptHandle, (*names, *own, *lease, attempt, is_retry(record.topic), fifo))

    return make


def handles_of(pop: PopRequest, answer: PopResponse) -> list[ReceiptHandle]:
    """Return the receipt handles of all messages that `answer` leased."""
    records = iter_records(answer.records, check_crc=False)  # checked by the broker
    handle = handle_maker(pop, answer)
    return [
        handle(record, attempt)
        for record, attempt in zip(records, answer.delivery_attempts, strict=True)
    ]


def handle_encoder(pop: PopRequest, answer: PopResponse) -> Callable[[Record, int], str]:
    """Return a function that maps (record, delivery attempt) to the text of a receipt handle.

    It is the handle that `handle_maker` makes. The common fields of the pop are encoded only once.
    """
    encode = receipt_handle.encoder_of_pop(
        broker_name=answer.broker_name,
        topic=pop.topic,
        consumer_group=pop.consumer_group,
        lease_id=answer.lease_id,
        pop_time_ms=answer.pop_time_ms,
        invisible_duration_ms=answer.invisible_duration_ms,
        fifo=pop.fifo,
    )
    is_retry = topics.is_retry
    return lambda record, attempt: encode(
        record.queue_id, record.queue_offset, attempt, is_retry(record.topic)
    )


def invisible_change(handle: ReceiptHandle, duration_ms: int, *, counted: bool) -> InvisibleChange:
    """Return a change that makes the message visible after `duration_ms`.

    If `counted` is False, the next delivery has the same attempt number as the present one.
    """
    return InvisibleChange(
        lease=lease_of(handle), invisible_duration_ms=duration_ms, uncounted=not counted
    )
