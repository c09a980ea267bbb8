"""Finds open half messages and incomplete commits in the log after a restart.

Reading starts at the offsets of the group CID_RMQ_SYS_TRANS. A half message is open if no op record
ends it. A commit appends the message, followed by an op record. If a crash left only the message,
it is one of the last messages in its queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from aerobee_broker.delivery.transaction import half_messages
from aerobee_broker.delivery.transaction.half_messages import GROUP, QUEUE_ID, HalfMessage
from aerobee_broker.delivery.transaction.open_transactions import Transaction
from aerobee_broker.errors import TransientReadError
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import Appended
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.record import Record, iter_records
from aerobee_wire.status import MqError

# The maximum number of messages that one append may commit. A start checks this number of messages
# in each queue.
MAX_COMMITS_AN_APPEND = 256
TORN_BYTES = 64 * 1024 * 1024  # an incomplete append is within these bytes before the log's end
READ_MESSAGES = 4_096
READ_BYTES = 16 * 1024 * 1024
SLICE_RECORDS = 1_000  # processed at once: about 20 ms of the event loop

Queue = tuple[str, int]  # topic, queue id


@dataclass(frozen=True, slots=True)
class FoundHalf:
    """An open half message that was found in the log.

    `destination` is None if the half message has no valid destination and cannot be committed.
    """

    half: HalfMessage
    appended: Appended
    op_floor: int
    destination: Queue | None


def find_open(store: MessageStore, offsets: ConsumerOffsets) -> Iterator[FoundHalf | None]:
    """Yield the open half messages in the log, and None between slices of the work."""
    op_floor = _first_offset(store, offsets, names.OP_HALF_TOPIC)
    ended = _Ended()
    for number, record in enumerate(_records(store, names.OP_HALF_TOPIC, op_floor), 1):
        ended.read(record)
        if number % SLICE_RECORDS == 0:
            yield None
    first = _first_offset(store, offsets, names.HALF_TOPIC)
    for number, record in enumerate(_records(store, names.HALF_TOPIC, first), 1):
        if number % SLICE_RECORDS == 0:
            yield None
        if half_messages.name_in(record) not in ended.names:
            yield _found(record, ended.checks, op_floor)


def _found(record: Record, checks: Mapping[int, int], op_floor: int) -> FoundHalf:
    half = HalfMessage.of_record(record)
    counted = checks.get(half.name, 0)
    if counted > half.checks:
        half = replace(half, checks=counted)
    appended = Appended(QUEUE_ID, record.queue_offset, record.physical_offset, record.store_size)
    destination = None
    with suppress(MqError):
        destination = half_messages.destination(record)
    return FoundHalf(half, appended, op_floor, destination)


def find_torn_commits(
    store: MessageStore, destinations: set[Queue], get: Callable[[int], Transaction | None]
) -> Iterator[Transaction]:
    """Yield the open transactions whose message is committed, but whose op record is missing.

    A crash has left the append of the commit incomplete. `get` returns the transaction of a half
    message by name. The caller must change the state of each transaction before it asks for the
    next one.
    """
    # A committed message may also wait for its delay in one of these queues.
    waiting = {
        (topic, queue_id)
        for topic in (names.SCHEDULE_TOPIC, names.TIMER_TOPIC)
        for queue_id in store.queues(topic)
    }
    for topic, queue_id in destinations | waiting:
        low = store.max_offset(topic, queue_id) - MAX_COMMITS_AN_APPEND
        low = max(low, store.min_offset(topic, queue_id))
        for physical_offset, size, _ in store.units(topic, queue_id, low, MAX_COMMITS_AN_APPEND):
            if physical_offset < store.end_offset - TORN_BYTES:
                continue
            try:
                record = store.get(physical_offset, size)
            except TransientReadError:
                raise
            except MqError:  # already logged by the store
                continue
            transaction = get(half_messages.committed_from(record))
            transaction_id = record.properties.get(props.TRANSACTION_ID)
            if (
                transaction is not None
                and transaction.is_open
                and transaction.half.transaction_id == transaction_id
            ):
                yield transaction


class _Ended:
    """The content of all op records that were read.

    `names` has the names of half messages that have ended. `checks` maps the name of a half message
    to the number of its checks.
    """

    def __init__(self) -> None:
        self.names: set[int] = set()
        self.checks: dict[int, int] = {}

    def read(self, record: Record) -> None:
        try:
            ended_now, checks_now = half_messages.read_op_record(record)
        except ValueError as error:
            structlog.get_logger().error(
                "op_record_unreadable", queue_offset=record.queue_offset, reason=str(error)
            )
            return
        self.names.update(ended_now)
        self.checks |= checks_now


def _first_offset(store: MessageStore, offsets: ConsumerOffsets, topic: str) -> int:
    low, high = store.min_offset(topic, QUEUE_ID), store.max_offset(topic, QUEUE_ID)
    saved = offsets.get(GROUP, topic, QUEUE_ID) or 0
    return max(saved, low) if saved <= high else low  # a higher offset is from a lost log


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
