"""Compare the store of a replica with its records at name servers, in a group without etcd.

A replica whose disk was replaced by an older copy has its number and its store id, and lacks what
it has confirmed since the copy. It cannot know that by itself. So it records at the name servers,
every second, its generation and the end of its log on the disk (`LogRecord`).

    the record of this store         the replica
    none, or not above the disk      raises its generation once after it started
    above the disk                   its disk is an older copy, or another process has a copy of it:
                                     it does not count among the replicas that answer a promotion,
                                     and does not lead again by itself, until it has caught up
                                     with a master

Each replica sends all records that it knows, so that a name server that has started again gets them
back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import structlog

from aerobee_broker.replication.role.replica_store import ReplicaStore
from aerobee_wire.epochs import can_reach

MOST_STARTS = 1 << 40  # a higher generation is wrong


class LogRecord(NamedTuple):
    """How far a log went.

    - `generation`: rises at each start, and before each cut of the log.
    - `end`: the physical offset at which the log on the disk ended. It only grows within a
      generation.
    - `epoch`: the highest epoch that the replica knew. It never falls.
    """

    generation: int
    end: int
    epoch: int

    def joined(self, other: LogRecord) -> LogRecord:
        """Return the newest values of two records of one store."""
        newest = max(self[:2], other[:2])
        return LogRecord(*newest, max(self.epoch, other.epoch))

    def shows_older(self, generation: int, end: int, epoch: int) -> bool:
        """Return whether a disk in this state is an older copy, or has an older `epochs.json`."""
        is_lower = epoch < self.epoch and can_reach(self.epoch, epoch)
        return is_lower or (generation, end) < (self.generation, self.end)


class NameServers(Protocol):
    """The name servers, as a witness needs them (`Masters`)."""

    async def record_logs(self, records: Mapping[str, LogRecord]) -> Mapping[str, LogRecord] | None:
        """Send records by store id, and return all that the name servers know of the group.

        Return None if no name server answers.
        """


class LogWitness:
    """Record how far this log goes, and find out whether it went further before.

    `records` has the known records of the group by store id.
    """

    def __init__(
        self, own: ReplicaStore, name_servers: NameServers, leads: Callable[[], bool]
    ) -> None:
        """Create it. `leads` returns whether this replica is master."""
        self.records: dict[str, LogRecord] = {}
        self._own = own
        self._name_servers = name_servers
        self._leads = leads
        self._is_raised = False  # the generation, since this process started
        self._lock = asyncio.Lock()  # two exchanges at once would compare with each other

    async def look(self) -> None:
        """Exchange records with the name servers, and compare. Log an error of the disk."""
        async with self._lock:
            if not self._own.is_open:
                return
            own, store_id = self._present(), self._own.replica.store_id
            answer = await self._name_servers.record_logs({**self.records, store_id: own})
            if answer is None or not self._own.is_open:
                return
            for each, record in answer.items():
                if record.generation < MOST_STARTS:
                    self.records[each] = record.joined(self.records.get(each, record))
            try:
                await self._compare(own, self.records.get(store_id, own))
            except OSError as error:
                structlog.get_logger().error("log_not_compared", reason=str(error))

    def _present(self) -> LogRecord:
        own = self._own
        return LogRecord(own.enrollment.generation, own.store.flushed_offset, own.highest_epoch())

    async def _compare(self, own: LogRecord, known: LogRecord) -> None:
        store = self._own
        if self._leads():
            store.note_current(own.epoch)  # nothing is confirmed that a master lacks
        if store.enrollment.is_doubtful and not store.is_displaced:
            self._is_raised = True
            await store.note_complete(known.generation)
        elif known.shows_older(*own):
            await self._went_back(own, known)
        elif not self._is_raised:
            self._is_raised = True
            await store.raise_generation(known.generation)

    async def _went_back(self, own: LogRecord, known: LogRecord) -> None:
        store = self._own
        if not store.is_displaced:
            structlog.get_logger().error(
                "store_went_back",
                replica=str(store.replica),
                end=own.end,
                generation=own.generation,
                known_end=known.end,
                known_generation=known.generation,
                advice="this disk is an older copy, or another process has a copy of it: the "
                "replica does not count in a promotion until it has caught up with a master",
            )
        await store.note_displaced()
        if known.epoch > store.highest_epoch() and can_reach(known.epoch, store.highest_epoch()):
            note = partial(store.epochs.change, lambda history: history.note(known.epoch))
            await store.environment.flusher(note)
