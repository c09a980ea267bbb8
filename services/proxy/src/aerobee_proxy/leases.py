"""Leases as brokers name them, from what clients hold. Pure.

A message that a classic consumer gave back waits in the group's retry topic: its lease is there,
while its client knows it under the topic that it was sent to.
"""

from __future__ import annotations

from aerobee.broker.v1.pop_pb2 import InvisibleChange, Lease, PopResponse

from aerobee_wire import topics
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


def key_of(handle: ReceiptHandle) -> Key:
    """The same for every handle of one lease, however often it was renewed."""
    return (
        handle.broker_name,
        stored_topic(handle),
        handle.queue_id,
        handle.queue_offset,
        handle.lease_id,
    )


def stored_topic(handle: ReceiptHandle) -> str:
    return topics.retry_topic(handle.consumer_group) if handle.of_retry_topic else handle.topic


def handle_for(
    record: Record, answer: PopResponse, attempt: int, *, topic: str, group: str, fifo: bool
) -> ReceiptHandle:
    """What a client gets for a message that `answer` leased to it."""
    return ReceiptHandle(
        broker_name=answer.broker_name,
        topic=topic,
        consumer_group=group,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        lease_id=answer.lease_id,
        pop_time_ms=answer.pop_time_ms,
        invisible_duration_ms=answer.invisible_duration_ms,
        delivery_attempt=attempt,
        of_retry_topic=topics.is_retry(record.topic),
        fifo=fifo,
    )


def invisible_for(handle: ReceiptHandle, duration_ms: int, *, counted: bool) -> InvisibleChange:
    return InvisibleChange(
        lease=lease_of(handle), invisible_duration_ms=duration_ms, uncounted=not counted
    )
