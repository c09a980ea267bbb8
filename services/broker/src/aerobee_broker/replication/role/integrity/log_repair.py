"""Repair damage in the log of this replica from other replicas of its group, in any role.

damage is known
→ ask each replica that name servers know for the ranges, the master first
→ check the received records, write them in place, sync → no damage is known
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import structlog

from aerobee_broker.replication.log.handshake import LogDescription
from aerobee_broker.replication.role.replica_store import ReplicaStore
from aerobee_broker.store.damage import DamagedRange
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.ship import Chunk
from aerobee_wire.status import Code, MqError

LOOK_S = 0.5  # seconds between two checks for damage
AGAIN_S = 5.0  # seconds after an attempt that repaired nothing
ASKED_RANGES = 256  # ranges in one call
# Until then readers wait for a replica that may have the records and does not answer: a minute.
MAX_ATTEMPTS = 12

# "host:port" of the other replicas, the master first.
Addresses = Callable[[], Awaitable[Sequence[str]]]


class PeerLogs(Protocol):
    async def read_log(
        self, address: str, own: LogDescription, ranges: Sequence[DamagedRange]
    ) -> list[Chunk]:
        """Return the records of these ranges. Raises MqError."""


class LogRepairs:
    def __init__(self, own: ReplicaStore, addresses: Addresses, peers: PeerLogs) -> None:
        self._own = own
        self._addresses = addresses
        self._peers = peers
        self._reported = ""
        self._attempts: Counter[int] = Counter()  # by begin of a range

    async def run(self) -> None:
        """Repair known damage until the task is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._own.damaged and not await self.attempt():
                await asyncio.sleep(AGAIN_S)

    async def attempt(self) -> bool:
        """Ask the other replicas once, and return whether less damage is left."""
        store = self._own.store
        before = store.repair.records, store.damage.damaged_bytes
        reasons, answers = [], 0
        for address in await self._addresses():
            try:
                await self._repair_from(address, store)
                answers += 1
            except (MqError, OSError) as error:
                reasons.append(f"{address}: {error}")
            if not self._own.damaged:
                break
        self._give_up(store, answers)
        self._report(store, before, "; ".join(reasons) or "no other replica is known")
        return store.damage.damaged_bytes < before[1]

    def _give_up(self, store: MessageStore, answers: int) -> None:
        """Let readers skip damage that no other replica can repair.

        These are the ranges that all of them were asked for, or that were asked for MAX_ATTEMPTS
        times while some of them did not answer.
        """
        others = max(1, self._own.environment.options.total_replicas - 1)
        ranges = store.damage.ranges
        self._attempts = Counter({each.begin: self._attempts[each.begin] + 1 for each in ranges})
        lost = [each for each in ranges if self._attempts[each.begin] >= MAX_ATTEMPTS]
        store.damage.give_up(ranges if answers >= others else lost)

    async def _repair_from(self, address: str, store: MessageStore) -> None:
        """Repair the damaged ranges that the replica at `address` has. Raises MqError, OSError."""
        below = 0  # physical offset below which it has no more of the damaged ranges
        while ranges := [each for each in store.damage.ranges if each.begin >= below]:
            asked = ranges[:ASKED_RANGES]
            try:
                chunks = await self._peers.read_log(address, self._own.describe(), asked)
            except MqError as error:
                if error.code not in (Code.MESSAGE_CORRUPTED, Code.QUERY_NOT_FOUND):
                    raise
                chunks = []
            if not chunks:
                below = asked[-1].end
                continue
            async with self._own.in_use:
                if not self._own.is_open or self._own.store is not store:
                    return  # it was reopened meanwhile, and detects its damage itself
                await self._own.environment.flusher(partial(store.repair.write, chunks))
                store.repair.settle(chunks)

    def _report(self, store: MessageStore, before: tuple[int, int], reason: str) -> None:
        records, damaged = store.repair.records - before[0], store.damage.damaged_bytes
        log = structlog.get_logger()
        if damaged < before[1]:
            log.warning(
                "damage_repaired",
                records=records,
                bytes=before[1] - damaged,
                still_damaged_bytes=damaged,
            )
            self._reported = ""
        elif damaged and reason != self._reported:
            self._reported = reason
            log.error("damage_not_repaired", damaged_bytes=damaged, reason=reason)
