"""Leases as brokers name them, from the receipt handles that clients hold. Pure.

A message that a classic consumer sent back waits in the retry topic of its group: its lease is on
that topic, while its receipt handle names the topic that it was sent to.
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
    """Decodes a receipt handle. Raises MqError INVALID_RECEIPT_HANDLE, also when it is of another
    topic or group."""
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
    """Whether the message is of this topic, or of a lite topic under it."""
    if handle.topic == topic:
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
    """The leases of handles that differ from this one in the queue offset only."""
    return LeaseSet(
        consumer_group=handle.consumer_group,
        topic=physical_topic(handle),
        queue_id=handle.queue_id,
        lease_id=handle.lease_id,
        expires_timestamp_ms=handle.expires_ms,
        queue_offsets=queue_offsets,
    )


def key_of(handle: ReceiptHandle) -> LeaseKey:
    """The same for every receipt handle of a lease, however often it was renewed."""
    return (
        handle.broker_name,
        physical_topic(handle),
        handle.queue_id,
        handle.queue_offset,
        handle.lease_id,
    )


def keys_of(handle: ReceiptHandle, queue_offsets: Sequence[int]) -> list[LeaseKey]:
    """The keys of handles that differ from this one in the queue offset only."""
    broker_name, topic, queue_id, _, lease_id = key_of(handle)
    return [(broker_name, topic, queue_id, offset, lease_id) for offset in queue_offsets]


def physical_topic(handle: ReceiptHandle) -> str:
    """The topic that the message is stored in."""
    return topics.retry_topic(handle.consumer_group) if handle.of_retry_topic else handle.topic


def handle_for(record: Record, attempt: int, pop: PopRequest, answer: PopResponse) -> ReceiptHandle:
    """The receipt handle of a message that `answer` leased, for a delivery attempt from 1."""
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


def handles_of(pop: PopRequest, answer: PopResponse) -> list[ReceiptHandle]:
    """The receipt handles of all messages that `answer` leased."""
    records = iter_records(answer.records, check_crc=False)  # checked by the broker
    return [
        handle_for(record, attempt, pop, answer)
        for record, attempt in zip(records, answer.delivery_attempts, strict=True)
    ]


def handle_encoder(pop: PopRequest, answer: PopResponse) -> Callable[[Record, int], str]:
    """(record, delivery attempt) → text of `handle_for`. Cheaper: the fields that all messages of
    one pop share are encoded once."""
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
    """Makes the message visible after `duration_ms`; `counted` as a delivery attempt."""
    return InvisibleChange(
        lease=lease_of(handle), invisible_duration_ms=duration_ms, uncounted=not counted
    )
