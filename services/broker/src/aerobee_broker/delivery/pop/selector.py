"""Which messages a pop gets: first those that come again, then new ones. Leases them in memory.

Of a topic by priority, everything of a higher queue before anything of a lower one.

Synchronous: between choosing and leasing nobody else can choose. The caller takes the result to
the log, or undoes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from aerobee_broker.delivery.pop import journal_format
from aerobee_broker.delivery.pop.in_flight import Held, Lease, QueueLeases
from aerobee_broker.delivery.pop.journal import LeaseJournal
from aerobee_broker.delivery.pop.lease_table import Attempt, GroupLeases, LeaseTable
from aerobee_broker.filter.filter import Filter
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import ReadStatus
from aerobee_chassis.clock import Clock
from aerobee_wire import properties as props
from aerobee_wire.record import Record, decode, iter_raw, iter_records

Start = Literal["automatic", "earliest", "latest"]

SCAN_ROUNDS = 16  # of one queue before the loop serves others: 12,800 messages that do not match
_SHARDING_KEY = props.SHARDING_KEY.encode() + b"\x01"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a pop asks for. `queue_id` None: of any queue."""

    consumer_group: str
    topic: str
    queue_id: int | None
    max_messages: int
    max_bytes: int
    invisible_ms: int
    wanted: Filter
    fifo: bool
    attempt_id: str
    start: Start


@dataclass(slots=True)
class Choice:
    """What a pop gets: `records`, of one message or several each, and of each message its attempt.
    `leased`: the same messages, those of one queue together that stand together.
    `logged`: queue → its cursor in the log before, and what was passed."""

    place: GroupLeases
    lease: Lease
    records: list[bytes] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    leased: list[tuple[QueueLeases, list[Held]]] = field(default_factory=list)
    size: int = 0
    lost: list[tuple[QueueLeases, Held]] = field(default_factory=list)
    logged: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    # There may be more at once: the scan was broken off.
    unfinished: bool = False
    again: bool = False  # of an attempt that was named before

    def add(self, queue: QueueLeases, held: Held, record: bytes) -> None:
        if not self.leased or self.leased[-1][0] is not queue:
            self.leased.append((queue, []))
        self.leased[-1][1].append(held)
        self.attempts.append(held.attempt)
        self.records.append(record)
        self.size += len(record)

    def add_new(self, queue: QueueLeases, several: list[Held], records: bytes) -> None:
        """Messages that are handed out for the first time."""
        self.leased.append((queue, several))
        self.attempts += [1] * len(several)
        self.records.append(records)
        self.size += len(records)

    def messages(self) -> Iterator[tuple[QueueLeases, Held]]:
        for queue, several in self.leased:
            for held in several:
                yield queue, held


class Chooser:
    def __init__(
        self,
        *,
        store: MessageStore,
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
        self._rollback_count = store.rollback_count

    def choose(self, wish: Wish, queue_count: int, highest_first: bool) -> Choice:
        """Raises MqError when the log does not take where a new group begins, or a queue cannot be
        read; then nothing is leased."""
        self._distrust_log()
        place = self._table.of(wish.consumer_group, wish.topic)
        repeated = self._repeated(place, wish)
        if repeated is not None:
            return repeated
        now_ms = self._clock.now_ms()
        lease_id = self._table.next_lease_id(now_ms)
        deadline_ms = self._clock.monotonic_ms() + wish.invisible_ms
        choice = Choice(place, Lease(lease_id, now_ms, now_ms + wish.invisible_ms, deadline_ms))
        order = _order(place, wish, queue_count, highest_first)
        queues = [self._queue(place, wish, one) for one in order]
        try:
            self._fill(choice, wish, [[one] for one in queues] if highest_first else [queues])
        except Exception:
            self.undo(choice)
            for queue in queues:  # what was taken out of line
                queue.rebuild()
            raise
        if wish.attempt_id and wish.fifo and choice.leased:
            messages = tuple((queue.queue_id, held.offset) for queue, held in choice.messages())
            place.attempts[wish.attempt_id] = Attempt(lease_id, now_ms, wish.invisible_ms, messages)
        return choice

    def _fill(self, choice: Choice, wish: Wish, tiers: Sequence[Sequence[QueueLeases]]) -> None:
        for equals in tiers:
            for queue in equals:
                self._take_ready(queue, wish, choice)
            for queue in equals:
                self._take_new(queue, wish, choice)
            if choice.unfinished:  # a lower queue has to wait for what is not looked at yet
                break

    def _distrust_log(self) -> None:
        """After records were taken out of the log again, perhaps some of leases that nobody undid:
        who waited had given up. What is open is then told anew."""
        if self._rollback_count != self._store.rollback_count:
            self._rollback_count = self._store.rollback_count
            for place in self._table:
                for queue in place.queues.values():
                    queue.logged, queue.passed = queue.committed, sorted(queue.open)

    def undo(self, choice: Choice) -> None:
        """The log did not take it: as if it had not been chosen."""
        for _, held in choice.messages():
            held.leased = False
            held.attempt -= 1
        for queue in {queue for queue, _ in choice.leased}:
            before, passed = choice.logged.get(queue.queue_id, (queue.logged, queue.passed))
            queue.logged = min(queue.logged, before)
            queue.passed = sorted({*passed, *queue.passed})
            queue.rebuild()

    def lease_entry(self, choice: Choice, wish: Wish) -> dict[str, Any]:
        """Content of the `lease` record; the log then knows the cursors."""
        leased: dict[QueueLeases, list[Held]] = {}
        for queue, several in choice.leased:
            leased.setdefault(queue, []).extend(several)
        entries = []
        lease_id = choice.lease.lease_id
        for queue, held in leased.items():
            runs = journal_format.leased_runs((one.offset, one.attempt) for one in held)
            waiting = [
                offset
                for offset in queue.passed
                if (one := queue.open.get(offset)) is not None and one.lease_id != lease_id
            ]
            entries.append([queue.queue_id, queue.logged, queue.cursor, runs, waiting])
            choice.logged[queue.queue_id] = (queue.logged, queue.passed)
            queue.logged, queue.passed = queue.cursor, []
        return {
            "group": wish.consumer_group,
            "topic": wish.topic,
            "id": lease_id,
            "at": choice.lease.since_ms,
            "for": choice.lease.expires_ms - choice.lease.since_ms,
            "fifo": wish.fifo,
            "attempt": wish.attempt_id if wish.fifo else "",
            "queues": entries,
        }

    def has_messages(self, topic: str) -> bool:
        """Or had some, since it was made."""
        return any(self._store.max_offset(topic, one) for one in self._store.queues(topic))

    def restore_rows(self, topic: str, queue: QueueLeases) -> None:
        """Puts the open messages into rows by message group, or out of them."""

        def message_group_of(offset: int) -> str:
            raw = self.raw(topic, queue.queue_id, offset)
            return _message_group(next(iter_records(raw, check_crc=False))) if raw else ""

        queue.regroup(message_group_of if queue.fifo else None)

    def raw(self, topic: str, queue_id: int, offset: int) -> bytes:
        """The record at a queue offset; empty when it is no longer stored, or damaged."""
        result = self._store.read(topic, queue_id, offset, max_messages=1, max_bytes=1, tags=None)
        whole = result.status is ReadStatus.FOUND and result.next_begin_offset == offset + 1
        return result.records if whole else b""

    # ---- steps ----

    def _repeated(self, place: GroupLeases, wish: Wish) -> Choice | None:
        attempt = place.attempts.get(wish.attempt_id) if wish.fifo and wish.attempt_id else None
        if attempt is None:
            return None
        at_ms, for_ms = attempt.at_ms, attempt.for_ms
        lease = Lease(attempt.lease_id, at_ms, at_ms + for_ms, deadline_ms=0)  # each has its own
        choice = Choice(place, lease, again=True)
        for queue, held in place.alive(attempt):
            raw = self.raw(wish.topic, queue.queue_id, held.offset)
            if raw and held.deadline_ms > self._clock.monotonic_ms():
                choice.add(queue, held, raw)
        if choice.leased:
            return choice
        del place.attempts[wish.attempt_id]
        return None

    def _queue(self, place: GroupLeases, wish: Wish, queue_id: int) -> QueueLeases:
        queue = place.queues.get(queue_id)
        if queue is None:
            queue = place.queues[queue_id] = self._begin(wish, queue_id)
        moved = self._offsets.take_reset(wish.consumer_group, wish.topic, queue_id)
        if moved is not None:
            queue.reset(moved)
        if queue.fifo != wish.fifo:
            queue.fifo = wish.fifo
            self.restore_rows(wish.topic, queue)
        return queue

    def _begin(self, wish: Wish, queue_id: int) -> QueueLeases:
        group, topic = wish.consumer_group, wish.topic
        committed = self._offsets.get(group, topic, queue_id)
        if committed is not None:
            return QueueLeases(queue_id, committed, fifo=wish.fifo)
        cursor = low = self._store.min_offset(topic, queue_id)
        if wish.start == "latest" or (wish.start == "automatic" and low > 0):
            cursor = self._store.max_offset(topic, queue_id)
        if cursor:
            # What comes after it in the log comes after it in the queue, too: no need to wait.
            content = {"group": group, "topic": topic, "queue": queue_id, "offset": cursor}
            self._journal.note("move", content)
        self._offsets.commit(group, topic, queue_id, cursor)
        return QueueLeases(queue_id, cursor, fifo=wish.fifo)

    def _take_ready(self, queue: QueueLeases, wish: Wish, choice: Choice) -> None:
        while _room(choice, wish):
            row = queue.next_ready()
            if not row:
                return
            for held in row:
                raw = self.raw(wish.topic, queue.queue_id, held.offset)
                if not raw:
                    choice.lost.extend((queue, one) for one in queue.drop(held))
                    continue
                if not _room(choice, wish, len(raw)):
                    # Nothing of the row is out yet: it stays in line.
                    if not any(one.leased for one in row):
                        queue.put_back(held)
                    return
                queue.lease(held, choice.lease)
                choice.add(queue, held, raw)

    def _take_new(self, queue: QueueLeases, wish: Wish, choice: Choice) -> None:
        if queue.full or not _room(choice, wish):
            return
        # Most groups want everything, in any order: then there is no need to look inside.
        blindly = wish.wanted.everything and not wish.fifo
        mine = {held.message_group or "" for one, held in choice.messages() if one is queue}
        for _ in range(SCAN_ROUNDS):
            if queue.full or not _room(choice, wish):
                return
            result = self._store.read(
                wish.topic,
                queue.queue_id,
                queue.cursor,
                max_messages=wish.max_messages - len(choice.attempts),
                max_bytes=max(1, wish.max_bytes - choice.size),
                tags=wish.wanted.tags_codes,
            )
            if result.status is ReadStatus.NO_NEW:
                return
            if result.status is ReadStatus.OFFSET_TOO_LARGE:  # the topic was made anew
                queue.reset(result.next_begin_offset)
                return
            if blindly and result.message_count == result.next_begin_offset - queue.cursor:
                new = queue.lease_new(result.message_count, choice.lease)
                choice.add_new(queue, new, result.records)
            else:
                for offset, raw in iter_raw(result.records):
                    self._take(queue, offset, raw, wish=wish, choice=choice, mine=mine)
                queue.cursor = result.next_begin_offset
            self._offsets.commit(wish.consumer_group, wish.topic, queue.queue_id, queue.committed)
        choice.unfinished = True

    def _take(  # one step of a loop
        self,
        queue: QueueLeases,
        offset: int,
        raw: bytes,
        *,
        wish: Wish,
        choice: Choice,
        mine: set[str],
    ) -> None:
        group, free = None, True
        if wish.fifo or not wish.wanted.everything:
            record = decode(raw, check_crc=False)
            if not wish.wanted.everything and not wish.wanted.matches(record.properties):
                return
            if wish.fifo:
                group = _message_group(record)
                row = queue.rows.get(group)
                free = row is None or (group in mine and row.leased == len(row.offsets))
        held = queue.pass_by(offset, group)
        if free:
            if group is not None:
                mine.add(group)
            queue.lease(held, choice.lease)
            choice.add(queue, held, raw)


def _order(place: GroupLeases, wish: Wish, queue_count: int, highest_first: bool) -> Sequence[int]:
    if wish.queue_id is not None:
        return [wish.queue_id]
    if highest_first:
        return range(queue_count - 1, -1, -1)
    place.turn = first = (place.turn + 1) % queue_count
    return [(first + number) % queue_count for number in range(queue_count)]


def _room(choice: Choice, wish: Wish, size: int = 1) -> bool:
    if not choice.attempts:
        return True
    return len(choice.attempts) < wish.max_messages and choice.size + size <= wish.max_bytes


def _message_group(record: Record) -> str:
    """Empty for a message that has none."""
    value = props.get(record.raw_properties, _SHARDING_KEY)
    return value.decode("utf-8", "replace") if value is not None else ""
