"""What a start reads of transactions: which half messages are open, and torn commits. Blocks.

From the offsets of CID_RMQ_SYS_TRANS on: the op topic says what ended, and what else lies in the
half topic is open. A commit appends the message and an op record behind it; where a crash left the
message alone, it is one of the last of its queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from aerobee_broker.delivery.transaction import half_messages
from aerobee_broker.delivery.transaction.half_messages import GROUP, QUEUE_ID, Half
from aerobee_broker.delivery.transaction.open_transactions import Open
from aerobee_broker.errors import StoreShort
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import Appended
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.record import Record, iter_records
from aerobee_wire.status import MqError

LAST_MESSAGES = 256  # of each queue, among which those of a torn append are: no more go into one
TORN_BYTES = 64 * 1024 * 1024  # at the end of the log, in which a torn append lies
READ_MESSAGES = 4_096
READ_BYTES = 16 * 1024 * 1024

Queue = tuple[str, int]  # topic, queue id


@dataclass(frozen=True, slots=True)
class Found:
    """A half message that is open. `destination` is None when it can never be committed."""

    half: Half
    place: Appended
    op_floor: int
    destination: Queue | None


def find_open(store: MessageStore, offsets: ConsumerOffsets) -> Iterator[Found]:
    op_floor = _start(store, offsets, names.OP_HALF_TOPIC)
    ended, checks = _ops(store, op_floor)
    start = _start(store, offsets, names.HALF_TOPIC)
    for record in _records(store, names.HALF_TOPIC, start):
        if half_messages.name_in(record) in ended:
            continue
        half = half_messages.read(record)
        asked_times = checks.get(half.name, 0)
        if asked_times > half.checks:
            half = replace(half, checks=asked_times)
        place = Appended(QUEUE_ID, record.queue_offset, record.physical_offset, record.store_size)
        destination = None
        with suppress(MqError):
            destination = half_messages.destination(record)
        yield Found(half, place, op_floor, destination)


def find_torn_commits(
    store: MessageStore, destinations: set[Queue], open_of: Callable[[int], Open | None]
) -> Iterator[Open]:
    """Of the open ones those that were committed, in an append that a crash has torn.

    The caller marks each as `ending` before it asks for the next.
    """
    # A committed message may wait for its time.
    waiting = {
        (topic, queue_id)
        for topic in (names.SCHEDULE_TOPIC, names.TIMER_TOPIC)
        for queue_id in store.queues(topic)
    }
    for topic, queue_id in destinations | waiting:
        low = store.max_offset(topic, queue_id) - LAST_MESSAGES
        low = max(low, store.min_offset(topic, queue_id))
        for physical_offset, size, _ in store.units(topic, queue_id, low, LAST_MESSAGES):
            if physical_offset < store.end_offset - TORN_BYTES:
                continue
            try:
                record = store.get(physical_offset, size)
            except StoreShort:
                raise
            except MqError:  # reported by the store
                continue
            one = open_of(half_messages.committed_from(record))
            if (
                one is not None
                and not one.ending
                and one.half.transaction_id == record.properties.get(props.TRANSACTION_ID)
            ):
                yield one


def _ops(store: MessageStore, start: int) -> tuple[set[int], dict[int, int]]:
    """Names of half messages that have ended; name → how often its producer was asked."""
    ended: set[int] = set()
    checks: dict[int, int] = {}
    for record in _records(store, names.OP_HALF_TOPIC, start):
        try:
            gone, asked = half_messages.op_in(record)
        except ValueError as error:
            structlog.get_logger().error(
                "op_record_unreadable", queue_offset=record.queue_offset, reason=str(error)
            )
            continue
        ended.update(gone)
        checks |= asked
    return ended, checks


def _start(store: MessageStore, offsets: ConsumerOffsets, topic: str) -> int:
    low, high = store.min_offset(topic, QUEUE_ID), store.max_offset(topic, QUEUE_ID)
    saved = offsets.get(GROUP, topic, QUEUE_ID) or 0
    return max(saved, low) if saved <= high else low  # beyond: it is of another log


def _records(store: MessageStore, topic: str, offset: int) -> Iterator[Record]:
    end = store.max_offset(topic, QUEUE_ID)
    while offset < end:
        result = store.read(
            topic, QUEUE_ID, offset, max_messages=READ_MESSAGES, max_bytes=READ_BYTES, tags=None
        )
        yield from iter_records(result.records, check_crc=False)
        if result.next_begin_offset <= offset:
            break
        offset = result.next_begin_offset
