"""Read the lease journal for what happened to one message: its leases and its settlement.

The journal and the message are in the same log. Records about a message are stored after it, so the
log has all of them as long as it has the message.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum

from aerobee_broker.delivery.pop import lease_journal_format
from aerobee_broker.delivery.pop.lease_journal_format import (
    DeleteRecord,
    LeasedQueue,
    LeaseRecord,
    ResetRecord,
    SettledQueue,
    SettleRecord,
)
from aerobee_broker.delivery.tracking.state import Place
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire.record import iter_records

STEP_RECORDS, STEP_BYTES = 256, 256 * 1024  # about 2 ms of the event loop
MAX_RECORDS = 2_000_000  # about half a minute


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
    """The events that were read, by group."""

    trails: dict[str, Trail] = field(default_factory=dict)
    records: int = 0
    is_whole: bool = False
    begin_ms: int = 0  # store time of the first record of the journal

    def is_known(self, group: str) -> bool:
        """Return whether the end is known, or the journal does not have it."""
        return self.is_whole or self.trails[group].end is not None


def read_trails(
    store: MessageStore, journal: str, place: Place, groups: Collection[str], from_ms: int
) -> tuple[Reading, Iterator[bool]]:
    """Return an empty reading, and the steps that fill it.

    The steps read the journal from the store time `from_ms` on, until the end of the message is
    known in all `groups`. Each step raises StoreReadError.
    """
    reading = Reading({group: Trail() for group in groups})
    return reading, _steps(reading, store, journal, place, from_ms)


def _steps(
    reading: Reading, store: MessageStore, journal: str, place: Place, from_ms: int
) -> Iterator[bool]:
    queue_id = lease_journal_format.QUEUE_ID
    offset = store.search_offset(journal, queue_id, from_ms)
    reading.begin_ms = store.store_timestamp(journal, queue_id, store.min_offset(journal, queue_id))
    # A quick check: most records are about other topics.
    token = json.dumps(place.topic, ensure_ascii=False).encode()
    while reading.records < MAX_RECORDS and not _is_known(reading):
        yield True
        offset = max(offset, store.min_offset(journal, queue_id))
        found = store.read(
            journal, queue_id, offset, max_messages=STEP_RECORDS, max_bytes=STEP_BYTES
        )
        for record in iter_records(found.records, check_crc=False):
            reading.records += 1
            if token in record.body:
                _apply(reading, record.body, place, record.store_timestamp_ms)
        if found.next_begin_offset <= offset:
            reading.is_whole = True
            return
        offset = found.next_begin_offset


def _is_known(reading: Reading) -> bool:
    return all(trail.end for trail in reading.trails.values())


def _apply(reading: Reading, body: bytes, place: Place, at_ms: int) -> None:
    try:
        record = lease_journal_format.decode(body)
    except (KeyError, TypeError, ValueError):
        return  # LeaseJournal reports it at the start
    offset = place.queue_offset
    match record:
        case LeaseRecord(group, topic) if topic == place.topic and group in reading.trails:
            for leased in record.queues:
                if leased.queue_id == place.queue_id:
                    reading.trails[group].lease(record, leased, offset, at_ms)
        case SettleRecord(queues, dead):
            for settled in queues:
                group, *at = settled[:3]
                if at == [place.topic, place.queue_id] and group in reading.trails:
                    is_dead = [group, *at, offset] in map(list, dead)
                    reading.trails[group].settle(settled, offset, at_ms, is_dead=is_dead)
        case ResetRecord(group, topic, queue_id) if (topic, queue_id) == (
            place.topic,
            place.queue_id,
        ):
            if group in reading.trails:
                reading.trails[group].reset(record, offset, at_ms)
        case DeleteRecord(group, topic) if topic == place.topic:
            for name in [group] if group else list(reading.trails):
                if name in reading.trails and reading.trails[name].end is None:
                    reading.trails[name] = Trail()
