"""Repair damage in the log of this replica from other replicas of its group, in any role.

damage is known
→ ask each replica that name servers know for the ranges, the master first
→ check the received records, write them in place, sync → no damage is known
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import structlog

from aerobee_broker.replication.log.handshake import LogDescription
from aerobee_broker.replication.role.replica_store import ReplicaStore
from aerobee_broker.store.damage import DamagedRange
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.ship import Chunk
from aerobee_chassis.background import pause
from aerobee_wire.status import Code, MqError

LOOK_S = 1.0  # seconds between two checks for damage
AGAIN_S = 5.0  # seconds after an attempt that repaired nothing
ASKED_RANGES = 256  # ranges in one call
LONGEST_WAIT_MS = 60_000  # until readers skip damage that a silent replica might repair

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
        self._since_ms: dict[DamagedRange, int] = {}  # since when each damaged range is known

    async def run(self) -> None:
        """Repair known damage until the task is cancelled."""
        while True:
            await pause(LOOK_S)
            if self._own.damaged and not await self.attempt():
                await asyncio.sleep(AGAIN_S)

    async def attempt(self) -> bool:
        """Ask the other replicas once, and return whether less damage is left."""
        store = self._own.store
        before = store.repair.records, store.damage.damaged_bytes
        asked, reasons, answers = list(store.damage.ranges), [], 0
        for address in await self._addresses():
            try:
                answers += await self._repair_from(address, store)
            except (MqError, OSError) as error:
                reasons.append(f"{address}: {error}")
            if not self._own.damaged:
                break
        others = max(1, self._own.environment.options.total_replicas - 1)
        self._give_up(store, asked, are_all_asked=not reasons and answers >= others)
        self._report(store, before, "; ".join(reasons) or "no other replica is known")
        return store.damage.damaged_bytes < before[1]

    def _give_up(
        self, store: MessageStore, asked: Sequence[DamagedRange], *, are_all_asked: bool
    ) -> None:
        """Let readers skip damage that no other replica can repair.

        These are the ranges that all other replicas have damaged too, or that are known for
        LONGEST_WAIT_MS, if some replicas do not answer or do not have that part of the log.
        """
        now_ms = self._own.environment.clock.monotonic_ms()
        self._since_ms = {each: self._since_ms.get(each, now_ms) for each in store.damage.ranges}
        late = [each for each, ms in self._since_ms.items() if now_ms - ms >= LONGEST_WAIT_MS]
        store.damage.give_up([*late, *asked] if are_all_asked else late)

    async def _repair_from(self, address: str, store: MessageStore) -> bool:
        """Repair the damaged ranges that the replica at `address` has.

        Return whether the replica has these parts of the log, whole or damaged. Raises MqError,
        OSError.
        """
        has_all = True
        below = 0  # physical offset below which it has no more of the damaged ranges
        while ranges := [each for each in store.damage.ranges if each.begin >= below]:
            asked = ranges[:ASKED_RANGES]
            try:
                chunks = await self._peers.read_log(address, self._own.describe(), asked)
            except MqError as error:
                if error.code not in (Code.MESSAGE_CORRUPTED, Code.QUERY_NOT_FOUND):
                    raise
                has_all = has_all and error.code is Code.MESSAGE_CORRUPTED
                chunks = []
            if not chunks:
                below = asked[-1].end
                continue
            async with self._own.in_use:
                if not self._own.is_open or self._own.store is not store:
                    return False  # it was reopened meanwhile, and detects its damage itself
                await self._own.environment.flusher(partial(store.repair.write, chunks))
                store.repair.settle(chunks)
        return has_all

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
