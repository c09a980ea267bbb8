"""Leases as brokers name them, from what clients hold. Pure.

A message that a classic consumer gave back waits in the group's retry topic: its lease is there,
while its client knows it under the topic that it was sent to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aerobee.broker.v1.pop_pb2 import InvisibleChange, Lease, LeaseSet, PopRequest, PopResponse

from aerobee_wire import receipt_handle, topics
from aerobee_wire.receipt_handle import ReceiptHandle
from aerobee_wire.record import Record

Key = tuple[str, str, int, int, int]


def lease_of(handle: ReceiptHandle) -> Lease:
    return Lease(
        consumer_group=handle.consumer_group,
        topic=stored_topic(handle),
        queue_id=handle.queue_id,
        queue_offset=handle.queue_offset,
        lease_id=handle.lease_id,
        expires_timestamp_ms=handle.expires_ms,
    )


def lease_set_of(handle: ReceiptHandle, queue_offsets: Sequence[int]) -> LeaseSet:
    """Of handles that differ from this one only in queue offset."""
    return LeaseSet(
        consumer_group=handle.consumer_group,
        topic=stored_topic(handle),
        queue_id=handle.queue_id,
        lease_id=handle.lease_id,
        expires_timestamp_ms=handle.expires_ms,
        queue_offsets=queue_offsets,
    )


def key_of(handle: ReceiptHandle) -> Key:
    """The same for every handle of one lease, however often it was renewed."""
    return (
        handle.broker_name,
        stored_topic(handle),
        handle.queue_id,
        handle.queue_offset,
        handle.lease_id,
    )


def keys_of(handle: ReceiptHandle, queue_offsets: Sequence[int]) -> list[Key]:
    """Of handles that differ from this one only in queue offset."""
    broker_name, topic, queue_id, _, lease_id = key_of(handle)
    return [(broker_name, topic, queue_id, offset, lease_id) for offset in queue_offsets]


def stored_topic(handle: ReceiptHandle) -> str:
    return topics.retry_topic(handle.consumer_group) if handle.of_retry_topic else handle.topic


def handle_for(record: Record, attempt: int, pop: PopRequest, answer: PopResponse) -> ReceiptHandle:
    """What a client gets for a message that `answer` leased to it."""
    return ReceiptHandle(
        broker_name=answer.broker_name,
        topic=pop.topic,
        consumer_group=pop.consumer_group,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        lease_id=answer.lease_id,
        pop_time_ms=answer.pop_time_ms,
        invisible_duration_ms=answer.invisible_duration_ms,
        delivery_attempt=attempt,
        of_retry_topic=topics.is_retry(record.topic),
        fifo=pop.fifo,
    )


def handles_of(pop: PopRequest, answer: PopResponse) -> Callable[[Record, int], str]:
    """`handle_for` as text, by record and delivery attempt. Cheaper: all but these is one."""
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


def invisible_for(handle: ReceiptHandle, duration_ms: int, *, counted: bool) -> InvisibleChange:
    return InvisibleChange(
        lease=lease_of(handle), invisible_duration_ms=duration_ms, uncounted=not counted
    )
