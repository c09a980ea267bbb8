"""Read the lease journal for what happened to a message in a group: its leases and its settlement.

The journal and the message are in the same log. Records about a message are stored after it, so the
log has all of them as long as it has the message.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from aerobee_broker.delivery.pop import lease_journal_format
from aerobee_broker.delivery.pop.lease_journal_format import (
    QUEUE_ID,
    DeleteRecord,
    JournalRecord,
    LeasedQueue,
    LeaseRecord,
    ResetRecord,
    SettledQueue,
    SettleRecord,
)
from aerobee_broker.delivery.tracking.state import Place
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire.record import decode, iter_raw

STEP_RECORDS, STEP_BYTES = 256, 256 * 1024  # about 2 ms of the event loop
MAX_RECORDS = 2_000_000  # about half a minute
# A group that keeps up has its leases and settlements among these records after the message. For
# other groups, the search begins after them.
NEAR_RECORDS = 2_048
# Places in a range: 1/2, 1/4, 3/4, 1/8, … A search needs a lease of the group at one of them.
_PROBES = tuple(odd / (1 << level) for level in range(1, 7) for odd in range(1, 1 << level, 2))
FORGET_TOKEN = b'"forget"'  # in a record about all groups of a topic


class End(Enum):
    """The first event that settled a message for a group."""

    SETTLED = "acknowledged"
    DEAD = "dead-lettered"
    PASSED = "a pop passed it without a lease"
    BEHIND_START = "the group had no offset, and began after it"
    BEFORE_FIRST_POP = "the first pop of the group began after it"
    RESET = "an operator moved the group over it"


@dataclass(slots=True)
class Trail:
    """The events of a message in one group. Times are milliseconds since the epoch.

    `client_id` and `attempt` are those of the last lease before the end. `at_ms` is the time of the
    end, and `reset_by` the operator of a reset.
    """

    end: End | None = None
    at_ms: int = 0
    client_id: str = ""
    attempt: int = 0
    leased_ms: int = 0
    reset_by: str = ""
    has_started: bool = False  # a record shows that the group had not passed the message before

    def lease(self, record: LeaseRecord, queue: LeasedQueue, offset: int, at_ms: int) -> None:
        for run in queue.leased:
            if run.first_offset <= offset < run.first_offset + run.length:
                self.client_id, self.attempt = record.client_id, run.attempt
                self.leased_ms = record.pop_time_ms
                self.has_started = True
                return
        if offset < queue.cursor_before and not self.has_started:
            self._finish(End.BEFORE_FIRST_POP, at_ms)
        elif queue.cursor_before <= offset < queue.cursor_after and offset not in queue.waiting:
            self._finish(End.PASSED, at_ms)
        self.has_started = True

    def settle(self, queue: SettledQueue, offset: int, at_ms: int, *, is_dead: bool) -> None:
        for run in queue.settled:
            if run.first_offset <= offset < run.first_offset + run.length:
                self._finish(End.DEAD if is_dead else End.SETTLED, at_ms)

    def reset(self, record: ResetRecord, offset: int, at_ms: int) -> None:
        if record.offset <= offset:
            self.has_started = True
            return
        if record.requested_by or self.has_started:
            self.reset_by = record.requested_by
            self._finish(End.RESET, at_ms)
        else:
            self._finish(End.BEHIND_START, at_ms)

    def _finish(self, end: End, at_ms: int) -> None:
        if self.end is None:
            self.end, self.at_ms = end, at_ms


@dataclass(slots=True)
class Reading:
    """The events of a message in one group, as far as the journal is read.

    `records` counts the records after the place where the reading began. `begin_ms` is the store
    time of the first record of the journal.
    """

    trail: Trail = field(default_factory=Trail)
    records: int = 0
    is_whole: bool = False
    begin_ms: int = 0

    @property
    def is_known(self) -> bool:
        """Return whether the end is known, or the journal does not have it."""
        return self.is_whole or self.trail.end is not None


def read_trail(
    store: MessageStore, journal: str, place: Place, group: str, from_ms: int
) -> tuple[Reading, Iterator[bool]]:
    """Return an empty reading, and the steps that fill it.

    The steps read the journal from the store time `from_ms` on, until the end of the message is
    known. They leave out records before the group reached the message. Each step raises
    StoreReadError.
    """
    trails = _Journal(store, journal, place, group)
    return trails.reading, trails.steps(from_ms)


class _Journal:
    """The lease journal, read for one message in one group."""

    def __init__(self, store: MessageStore, journal: str, place: Place, group: str) -> None:
        self.reading = Reading()
        self._store, self._journal = store, journal
        self._place, self._group = place, group
        # Checks without decoding, because most records are about other topics and groups: 0.5 µs
        # instead of 15.
        self._topic_token = json.dumps(place.topic, ensure_ascii=False).encode()
        self._group_token = json.dumps(group, ensure_ascii=False).encode()

    def steps(self, from_ms: int) -> Iterator[bool]:
        reading, store = self.reading, self._store
        low, high = self._bounds()
        reading.begin_ms = store.store_timestamp(self._journal, QUEUE_ID, low)
        offset = max(low, store.search_offset(self._journal, QUEUE_ID, from_ms))
        has_searched = False
        while reading.records < MAX_RECORDS:
            yield True
            part, next_offset = self._read(offset, STEP_RECORDS)
            reading.records += len(part)
            if self._has_end(part):
                return
            if next_offset <= offset:
                reading.is_whole = True
                return
            offset = next_offset
            if reading.records >= NEAR_RECORDS and not (has_searched or reading.trail.leased_ms):
                has_searched = True
                offset = yield from self._reached(offset, high)

    def _bounds(self) -> tuple[int, int]:
        store = self._store
        return (
            store.min_offset(self._journal, QUEUE_ID),
            store.max_offset(self._journal, QUEUE_ID),
        )

    def _read(self, offset: int, count: int) -> tuple[list[tuple[int, bytes]], int]:
        """Return records from an offset on, each with its own, and the offset after them.

        The second value is not above `offset` at the end of the journal.
        """
        offset = max(offset, self._bounds()[0])
        found = self._store.read(
            self._journal, QUEUE_ID, offset, max_messages=count, max_bytes=STEP_BYTES
        )
        return list(iter_raw(found.records)), found.next_begin_offset

    # ---- where the group reached the message ----

    def _reached(self, low: int, high: int) -> Generator[bool, None, int]:
        """Return the offset of a record from which on the journal has the leases of the message.

        A group that was away for a day has its leases of a message millions of records after it.
        The cursor in the leases of one queue only rises, until an operator resets it, so a binary
        search finds them. After a reset it may find any of the pops that passed the message.

        Returns `low` if no lease of the group is at the probed places.
        """
        while high - low > STEP_RECORDS:
            cursor: int | None = None
            for share in _PROBES:  # the group may not pop at some of them
                middle = low + int((high - low) * share)
                yield True
                part, _ = self._read(middle, min(STEP_RECORDS, high - middle))
                offset, cursor = self._first_cursor(part)
                if cursor is not None:
                    break
            else:
                return low
            if cursor <= self._place.queue_offset:
                low = offset
            else:
                high = middle
        return low

    def _first_cursor(self, part: Iterable[tuple[int, bytes]]) -> tuple[int, int | None]:
        """Return the first lease of the group in the queue: its offset, and the cursor before it.

        The cursor is None if there is no such lease.
        """
        for offset, raw in part:
            if self._may_concern(raw):
                record = _decoded(decode(raw, check_crc=False).body)
                for queue in self._leased(record):
                    return offset, queue.cursor_before
        return 0, None

    # ---- records ----

    def _has_end(self, part: Iterable[tuple[int, bytes]]) -> bool:
        """Apply records up to the end of the message. Return whether they have it.

        Later records, such as leases after a reset, do not count.
        """
        for _, raw in part:
            if self._may_concern(raw):
                record = decode(raw, check_crc=False)  # the store has checked it
                self._apply(_decoded(record.body), record.store_timestamp_ms)
                if self.reading.trail.end is not None:
                    return True
        return False

    def _may_concern(self, raw: bytes) -> bool:
        return self._topic_token in raw and (self._group_token in raw or FORGET_TOKEN in raw)

    def _leased(self, record: JournalRecord | None) -> Iterator[LeasedQueue]:
        """Yield the part of a lease of this group in the queue of the message."""
        if isinstance(record, LeaseRecord):
            at = record.consumer_group, record.topic
            if at == (self._group, self._place.topic):
                for queue in record.queues:
                    if queue.queue_id == self._place.queue_id:
                        yield queue

    def _apply(self, record: JournalRecord | None, at_ms: int) -> None:
        trail, place, offset = self.reading.trail, self._place, self._place.queue_offset
        match record:
            case LeaseRecord():
                for leased in self._leased(record):
                    trail.lease(record, leased, offset, at_ms)
            case SettleRecord(queues, dead):
                for settled in queues:
                    at = [self._group, place.topic, place.queue_id]
                    if list(settled[:3]) == at:
                        is_dead = [*at, offset] in map(list, dead)
                        trail.settle(settled, offset, at_ms, is_dead=is_dead)
            case ResetRecord(group, topic, queue_id):
                if (group, topic, queue_id) == (self._group, place.topic, place.queue_id):
                    trail.reset(record, offset, at_ms)
            case DeleteRecord(group, topic):
                if topic == place.topic and group in ("", self._group) and trail.end is None:
                    self.reading.trail = Trail()


def _decoded(body: bytes) -> JournalRecord | None:
    """Return the record in a body, or None if it is invalid, which LeaseJournal reports."""
    try:
        return lease_journal_format.decode(body)
    except (KeyError, TypeError, ValueError):
        return None
