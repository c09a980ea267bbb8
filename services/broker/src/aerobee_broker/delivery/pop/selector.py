"""Selects and leases the messages of a pop: first messages to redeliver, then new messages.

In a priority topic, a queue with a higher id is emptied before the next lower one. Selection is
synchronous, so no other pop can select a message before it is leased. The leases exist only in
memory until the caller writes the batch to the journal. If that fails, it rolls the batch back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import structlog

from aerobee_broker.delivery.pop.in_flight import (
    InFlightMessage,
    InFlightQueue,
    JournalMark,
    Lease,
    MessageGroupQueue,
)
from aerobee_broker.delivery.pop.lease_journal import SLICE_RECORDS, LeaseJournal
from aerobee_broker.delivery.pop.lease_journal_format import (
    LeasedQueue,
    LeaseRecord,
    ResetRecord,
    SettledQueue,
    SettleRecord,
    leased_runs,
    settled_runs,
)
from aerobee_broker.delivery.pop.lease_table import (
    GroupLeases,
    LeasedMessage,
    LeaseTable,
    ReceiveAttempt,
)
from aerobee_broker.errors import RepairPending
from aerobee_broker.filter.filter import Filter
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.store.messages import LeasableQueues, ReadStatus
from aerobee_chassis.clock import Clock
from aerobee_wire import properties as props
from aerobee_wire.record import Record, decode, iter_raw, iter_records

Start = Literal["automatic", "earliest", "latest"]

# Reads per queue before a pop yields to the event loop: 12,800 messages that do not match.
SCAN_ROUNDS = 16
_SHARDING_KEY = props.SHARDING_KEY.encode() + b"\x01"


@dataclass(frozen=True, slots=True)
class PopRequest:
    """A request to lease messages of a topic for a consumer group.

    Attributes:
        consumer_group: The group.
        topic: The topic.
        queue_id: The queue, or None for any queue.
        max_messages: The maximum number of messages.
        max_bytes: The maximum size of all records. The first record may be larger.
        invisible_duration_ms: The duration of the leases.
        filter: The filter that the messages must match.
        fifo: The consumer processes the messages of a message group in order, so it may get several
            of them at once. Without it, an ordered pop gets one message per message group.
        attempt_id: The consumer's id for this receive. It may be empty.
        start: The position at which a group without an offset starts.
        client_id: The client that pops; empty if unknown.
    """

    consumer_group: str
    topic: str
    queue_id: int | None
    max_messages: int
    max_bytes: int
    invisible_duration_ms: int
    filter: Filter
    fifo: bool
    attempt_id: str
    start: Start
    client_id: str = ""


class BatchRun(NamedTuple):
    """Consecutive messages of a batch, all of one queue."""

    queue: InFlightQueue
    messages: list[InFlightMessage]


@dataclass(slots=True)
class PopBatch:
    """The messages that one pop has leased.

    Each entry of `records` contains one or more records as stored in the log. `attempts` has the
    delivery attempt of each message. `runs` contains the same messages as objects.
    """

    group: GroupLeases
    lease: Lease
    ordered: bool  # the messages are leased by message group
    is_repeated: bool = False  # contains the leases of an earlier receive with the same attempt id
    records: list[bytes] = field(default_factory=list, init=False)
    attempts: list[int] = field(default_factory=list, init=False)
    runs: list[BatchRun] = field(default_factory=list, init=False)
    size: int = field(default=0, init=False)  # bytes of all records
    # True if the scan of a queue was interrupted, so more messages may be available.
    scan_unfinished: bool = field(default=False, init=False)
    awaits_repair: bool = field(default=False, init=False)  # the next message is damaged
    is_cut: bool = field(default=False, init=False)  # a message did not fit into `max_bytes`
    # Offsets of messages that are not stored any more, and of messages settled as a result.
    lost: dict[InFlightQueue, list[int]] = field(default_factory=dict, init=False)
    # The journal mark of each queue before this batch was written to the journal.
    marks: dict[InFlightQueue, JournalMark] = field(default_factory=dict, init=False)

    @property
    def redelivered(self) -> int:
        """The number of messages that the group got before."""
        return len(self.attempts) - self.attempts.count(1)

    def add(self, queue: InFlightQueue, message: InFlightMessage, record: bytes) -> None:
        if not self.runs or self.runs[-1].queue is not queue:
            self.runs.append(BatchRun(queue, []))
        self.runs[-1].messages.append(message)
        self.attempts.append(message.attempt)
        self.records.append(record)
        self.size += len(record)

    def add_new(
        self, queue: InFlightQueue, messages: list[InFlightMessage], records: bytes
    ) -> None:
        """Add consecutive messages that are delivered for the first time."""
        self.runs.append(BatchRun(queue, messages))
        self.attempts += [1] * len(messages)
        self.records.append(records)
        self.size += len(records)

    def has_room(self, request: PopRequest, size: int = 1) -> bool:
        """Return whether a record of `size` bytes fits into the batch.

        The first record always fits. If `max_bytes` is exceeded, sets `is_cut`.
        """
        if not self.attempts:
            return True
        if self.size + size > request.max_bytes:
            self.is_cut = True
            return False
        return len(self.attempts) < request.max_messages

    def messages(self) -> Iterator[LeasedMessage]:
        for queue, messages in self.runs:
            for message in messages:
                yield LeasedMessage(queue, message)

    def by_queue(self) -> dict[InFlightQueue, list[InFlightMessage]]:
        found: dict[InFlightQueue, list[InFlightMessage]] = {}
        for queue, messages in self.runs:
            found.setdefault(queue, []).extend(messages)
        return found

    def journal_record(self, request: PopRequest) -> LeaseRecord:
        """Return the journal record of the batch, and mark the queues' cursors as journalled.

        `roll_back` also undoes these marks.
        """
        lease_id, _, expires_ms, pop_time_ms, _ = self.lease
        queues = []
        for queue, messages in self.by_queue().items():
            before = self.marks[queue] = queue.journalled()
            waiting = [
                offset
                for offset in before.opened
                if (message := queue.in_flight.get(offset)) and message.lease_id != lease_id
            ]
            runs = leased_runs((message.offset, message.attempt) for message in messages)
            queues.append(LeasedQueue(queue.queue_id, before.cursor, queue.cursor, runs, waiting))
        return LeaseRecord(
            request.consumer_group,
            request.topic,
            lease_id,
            pop_time_ms,
            expires_ms - pop_time_ms,
            self.ordered,
            request.attempt_id if self.ordered else "",
            queues,
            request.client_id,
        )

    def roll_back(self) -> None:
        """Undo the leases of the batch, so that its messages are visible again."""
        for queue, messages in self.by_queue().items():
            queue.roll_back_leases(messages, self.marks.get(queue))


class MessageSelector:
    def __init__(
        self,
        *,
        store: LeasableQueues,
        table: LeaseTable,
        offsets: ConsumerOffsets,
        journal: LeaseJournal,
        clock: Clock,
    ) -> None:
        self._store = store
        self._table = table
        self._offsets = offsets
        self._journal = journal
        self._clock = clock
        self._rollback_count = store.flush.rollback_count

    def select(
        self, request: PopRequest, queue_count: int, *, by_priority: bool, ordered: bool
    ) -> PopBatch:
        """Select and lease messages in memory.

        Args:
            request: The pop.
            queue_count: The number of readable queues of the topic.
            by_priority: Empty a queue with a higher id before the next lower one.
            ordered: Lease messages in the order of their message groups.

        Returns:
            The leased messages. They are the leases of an earlier pop if an ordered pop repeats its
            attempt id.

        Raises:
            MqError: A queue cannot be read, or the log rejects a record. Then no message is leased.
        """
        self._distrust_journal()
        group = self._table.group(request.consumer_group, request.topic)
        named = ordered and request.attempt_id
        if named:
            repeated = self._repeat(group, request.attempt_id)
            if repeated is not None:
                return repeated
        now_ms, duration_ms = self._clock.now_ms(), request.invisible_duration_ms
        lease_id = self._table.next_lease_id(now_ms)
        deadline_ms = self._clock.monotonic_ms() + duration_ms
        lease = Lease(lease_id, deadline_ms, now_ms + duration_ms, now_ms, request.client_id)
        batch = PopBatch(group, lease, ordered)
        order = _order(group, request, queue_count, by_priority)
        queues = [self._queue(group, request, queue_id, ordered) for queue_id in order]
        try:
            self._fill(batch, request, [[queue] for queue in queues] if by_priority else [queues])
            self._note_lost(batch)
        except Exception:
            batch.roll_back()
            for queue in queues:  # restores the messages that `next_visible` removed
                queue.rebuild()
            raise
        if named and batch.runs:
            messages = tuple(
                (queue.queue_id, message.offset) for queue, message in batch.messages()
            )
            attempt = ReceiveAttempt(lease_id, now_ms, duration_ms, messages)
            group.attempts[request.attempt_id] = attempt
        return batch

    def is_leased(self, batch: PopBatch) -> bool:
        """Return whether all messages of the batch are still on its lease."""
        now_ms, lease_id = self._clock.monotonic_ms(), batch.lease.lease_id
        return all(
            queue.on_lease(message.offset, lease_id, now_ms) is message
            for queue, message in batch.messages()
        )

    def _distrust_journal(self) -> None:
        """After a rollback of the log, make the next leases write all messages in flight again.

        The journal may lack leases that exist in memory. Leases of pops that were cancelled or
        timed out are not rolled back in memory.
        """
        if self._rollback_count != self._store.flush.rollback_count:
            self._rollback_count = self._store.flush.rollback_count
            for queue in self._table.queues():
                queue.distrust_journal()

    # ---- steps ----

    def _repeat(self, group: GroupLeases, attempt_id: str) -> PopBatch | None:
        """Return the messages that an earlier pop with this attempt id still has on lease.

        Returns None if there are none.
        """
        attempt = group.attempts.get(attempt_id)
        if attempt is None:
            return None
        expires_ms = attempt.pop_time_ms + attempt.invisible_duration_ms
        # 0, because each message may have its own deadline by now.
        lease = Lease(attempt.lease_id, 0, expires_ms, attempt.pop_time_ms)
        batch = PopBatch(group, lease, ordered=True, is_repeated=True)
        for queue, message in group.still_leased(attempt):
            record = stored_record(self._store, queue, message.offset)
            if record and message.deadline_ms > self._clock.monotonic_ms():
                batch.add(queue, message, record)
        if batch.runs:
            return batch
        del group.attempts[attempt_id]
        return None

    def _queue(
        self, group: GroupLeases, request: PopRequest, queue_id: int, ordered: bool
    ) -> InFlightQueue:
        queue = group.queues.get(queue_id)
        if queue is None:
            cursor = self._first_offset(request, queue_id)
            queue = group.queue(queue_id, cursor, fifo=ordered)
        reset = self._offsets.take_reset(request.consumer_group, request.topic, queue_id)
        if reset is not None:
            queue.reset(reset)
        if queue.fifo != ordered:
            queue.fifo = ordered
            try:
                regroup(self._store, queue)
            except BaseException:
                queue.fifo = not ordered  # the next pop retries
                raise
        return queue

    def _first_offset(self, request: PopRequest, queue_id: int) -> int:
        group, topic = request.consumer_group, request.topic
        committed = self._offsets.get(group, topic, queue_id)
        if committed is not None:
            return committed
        cursor = low = self._store.min_offset(topic, queue_id)
        if request.start == "latest" or (request.start == "automatic" and low > 0):
            cursor = self._store.max_offset(topic, queue_id)
        if cursor:
            # Do not wait: later messages in the log are also later in the queue.
            self._journal.append(ResetRecord(group, topic, queue_id, cursor))
        self._offsets.commit(group, topic, queue_id, cursor)
        return cursor

    def _fill(
        self, batch: PopBatch, request: PopRequest, tiers: Sequence[Sequence[InFlightQueue]]
    ) -> None:
        for tier in tiers:
            for queue in tier:
                self._redeliver(queue, request, batch)
            for queue in tier:
                self._take_new(queue, request, batch)
            if batch.scan_unfinished:  # finish this tier before a lower one
                break

    def _redeliver(self, queue: InFlightQueue, request: PopRequest, batch: PopBatch) -> None:
        while batch.has_room(request):
            messages = queue.next_visible()
            if not messages:
                return
            for message in messages if request.fifo else messages[:1]:
                try:
                    record = stored_record(self._store, queue, message.offset)
                except RepairPending:
                    batch.awaits_repair = True
                    if not any(other.is_leased for other in messages):
                        queue.put_back(message)
                    return
                if not record:
                    settled = [dropped.offset for dropped in queue.drop(message)]
                    batch.lost.setdefault(queue, []).extend(settled)
                    continue
                if not batch.has_room(request, len(record)):
                    # The message group stays visible unless this pop has leased a message of it.
                    if not any(other.is_leased for other in messages):
                        queue.put_back(message)
                    return
                queue.lease(message, batch.lease)
                batch.add(queue, message, record)

    def _take_new(self, queue: InFlightQueue, request: PopRequest, batch: PopBatch) -> None:
        if queue.is_full or not batch.has_room(request):
            return
        # Most groups want all messages in any order, so their records need not be decoded.
        undecoded = request.filter.everything and not batch.ordered
        mine = {
            leased.message.message_group or ""
            for leased in (() if undecoded else batch.messages())
            if leased.queue is queue
        }
        for _ in range(SCAN_ROUNDS):
            if queue.is_full or not batch.has_room(request):
                return
            try:
                result = self._store.read(
                    request.topic,
                    queue.queue_id,
                    queue.cursor,
                    max_messages=request.max_messages - len(batch.attempts),
                    max_bytes=max(1, request.max_bytes - batch.size),
                    tags=request.filter.tags_codes,
                )
            except RepairPending:
                batch.awaits_repair = True
                return
            if result.status is ReadStatus.NO_NEW:
                return
            if result.status is ReadStatus.OFFSET_TOO_LARGE:
                queue.end_at(result.next_begin_offset)
                return
            if undecoded and result.message_count == result.next_begin_offset - queue.cursor:
                new = queue.lease_new(result.message_count, batch.lease)
                batch.add_new(queue, new, result.records)
            else:
                for offset, record in iter_raw(result.records):
                    self._take(queue, offset, record, request=request, batch=batch, mine=mine)
                queue.cursor = result.next_begin_offset
            self._offsets.commit(*queue.key, queue.committed_offset)
            if result.is_all:
                return
        batch.scan_unfinished = True

    @staticmethod
    def _take(
        queue: InFlightQueue,
        offset: int,
        raw: bytes,
        *,
        request: PopRequest,
        batch: PopBatch,
        mine: set[str],
    ) -> None:
        """Put a message that matches the filter in flight, and lease it if its group permits.

        `mine` contains the message groups of this batch. A message cannot be leased while an
        earlier message of its message group waits or is on lease for another pop.
        """
        message_group, may_go = None, True
        if batch.ordered or not request.filter.everything:
            record = decode(raw, check_crc=False)
            if not request.filter.everything and not request.filter.matches(record.properties):
                return
            if batch.ordered:
                message_group = _message_group(record)
                earlier = queue.message_groups.get(message_group)
                may_go = earlier is None or (
                    request.fifo and message_group in mine and _all_leased(earlier)
                )
        message = queue.open_message(offset, message_group)
        if may_go:
            if message_group is not None:
                mine.add(message_group)
            queue.lease(message, batch.lease)
            batch.add(queue, message, raw)

    def _note_lost(self, batch: PopBatch) -> None:
        """Write to the journal that the lost messages of a batch are settled.

        Retention has deleted these messages, or they are damaged.
        """
        if not batch.lost:
            return
        structlog.get_logger().warning(
            "leased_messages_lost",
            group=batch.group.consumer_group,
            topic=batch.group.topic,
            messages=sum(map(len, batch.lost.values())),
            reason="no longer stored",
        )
        self._journal.append(
            SettleRecord(
                [
                    SettledQueue(*queue.key, settled_runs(offsets), [])
                    for queue, offsets in batch.lost.items()
                ]
            )
        )


def stored_record(store: LeasableQueues, queue: InFlightQueue, offset: int) -> bytes:
    """Return the record at a queue offset; empty if it is damaged or not stored any more."""
    result = store.read(queue.topic, queue.queue_id, offset, max_messages=1, max_bytes=1, tags=None)
    whole = result.status is ReadStatus.FOUND and result.next_begin_offset == offset + 1
    return result.records if whole else b""


def regroup(store: LeasableQueues, queue: InFlightQueue) -> None:
    """Set or clear the message groups of all messages in flight, according to `queue.fifo`."""
    for _ in regroup_slices(store, queue):
        pass


def regroup_slices(store: LeasableQueues, queue: InFlightQueue) -> Iterator[None]:
    """Do the same as `regroup`, but yield after each slice of the messages."""
    names: dict[int, str] = {}
    for number, offset in enumerate(list(queue.in_flight) if queue.fifo else (), 1):
        raw = stored_record(store, queue, offset)
        names[offset] = _message_group(next(iter_records(raw, check_crc=False))) if raw else ""
        if number % SLICE_RECORDS == 0:
            yield
    queue.regroup(names.__getitem__ if queue.fifo else None)


def _order(
    group: GroupLeases, request: PopRequest, queue_count: int, by_priority: bool
) -> Sequence[int]:
    if request.queue_id is not None:
        return [request.queue_id]
    if by_priority:
        return range(queue_count - 1, -1, -1)
    group.first_queue = first = (group.first_queue + 1) % queue_count
    return [(first + number) % queue_count for number in range(queue_count)]


def _all_leased(group: MessageGroupQueue) -> bool:
    return group.leased == len(group.offsets)


def _message_group(record: Record) -> str:
    """Return the message group of a record, or an empty string if it has none."""
    value = props.get(record.raw_properties, _SHARDING_KEY)
    return value.decode("utf-8", "replace") if value is not None else ""
