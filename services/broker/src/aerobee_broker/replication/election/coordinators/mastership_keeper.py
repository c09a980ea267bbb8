"""Keep the master key and the wanted in-sync set of a master at the coordinator.

The rule for acknowledgements: at every moment, the replicas that the master waits for include the
set at the coordinator. So a joining replica is waited for before the set is written. A leaving
replica is waited for until the set without it was written. While an answer is missing, the replicas
of both outcomes are waited for.
"""

from __future__ import annotations

import asyncio

import structlog

from aerobee_broker.replication.election.coordinators.coordinator import (
    Coordinator,
    CoordinatorAway,
    CoordinatorDamaged,
    Mastership,
)
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log.epochs import Reach

RETRY_S = 0.2  # seconds after the coordinator was unreachable


class MastershipKeeper:
    """Keep the mastership of one epoch; `run` ends when another replica is elected."""

    def __init__(self, coordinator: Coordinator, mastership: Mastership) -> None:
        self._coordinator = coordinator
        self._mastership = mastership
        self._wanted = mastership.state.in_sync
        self._floor = mastership.state.floor
        # Sets whose writes have no answer: one of them may be at the coordinator, or be written
        # later.
        self._unanswered: frozenset[Replica] = frozenset()
        self._asked = asyncio.Event()
        self._moved = asyncio.Event()  # set on news of the coordinator

    @property
    def mastership(self) -> Mastership:
        return self._mastership

    @property
    def in_sync(self) -> frozenset[Replica]:
        """Return the set as it was last known to be at the coordinator."""
        return self._mastership.state.in_sync

    @property
    def awaited(self) -> frozenset[Replica]:
        """Return the replicas that must all have what is acknowledged."""
        return self.in_sync | self._wanted | self._unanswered

    @property
    def is_settled(self) -> bool:
        """Return whether the coordinator has the wanted set, and no write can change it any more.

        Only then is `in_sync` the answer to what was wanted. A set that was merely read may still
        be replaced by a late write.
        """
        known = self.in_sync == self._wanted and not self._unanswered
        held = self._mastership.master_revision != 0 and not self._mastership.is_forgotten
        return known and held

    def want(self, in_sync: frozenset[Replica], confirmed: int) -> None:
        """Set the wanted in-sync set; the master is a member of it.

        Args: in_sync: the set. confirmed: a physical offset: each member has everything below it on
        its disk.
        """
        self._wanted = in_sync | {self._mastership.state.master}
        self._floor = Reach(self._mastership.epoch, confirmed)
        self._asked.set()

    async def settled(self) -> frozenset[Replica]:
        """Return the set at the coordinator, once it is the wanted one and stays so."""
        while not self.is_settled:
            self._moved.clear()
            await self._moved.wait()
        return self.in_sync

    async def run(self) -> None:
        """Keep the mastership, and return when another replica was elected.

        After a cancellation nothing more is written.
        """
        is_logged = False
        while True:
            self._asked.clear()
            try:
                current = await (self._news() if self.is_settled else self._write())
            except (CoordinatorAway, CoordinatorDamaged) as error:
                if not is_logged:
                    structlog.get_logger().warning("mastership_not_written", reason=str(error))
                is_logged = True
                await asyncio.sleep(RETRY_S)
                continue
            is_logged = False
            if current is None:
                return
            self._take(current)

    async def _write(self) -> Mastership | None:
        """Do one step toward the wanted set, and return the resulting mastership."""
        before = self._mastership
        if before.is_forgotten:
            written = await self._coordinator.restore(before)
        elif not before.master_revision:
            written = await self._coordinator.reclaim(before)
        else:
            self._unanswered |= self._wanted
            written = await self._coordinator.change_in_sync(before, self._wanted, self._floor)
        return written or before.seen_in(await self._coordinator.read())

    async def _news(self) -> Mastership | None:
        """Wait for the next view or another wanted set, and return the mastership."""
        view = self._coordinator.view
        now = self._mastership if view is None else self._mastership.seen_in(view)
        if now != self._mastership:
            return now
        waits = [
            asyncio.create_task(self._asked.wait()),
            asyncio.create_task(self._coordinator.changed(view)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        return self._mastership

    def _take(self, current: Mastership) -> None:
        before = self._mastership
        self._mastership = current
        if current.revisions != before.revisions:
            # Each unanswered write compared with the earlier revisions: none can be carried out
            # now.
            self._unanswered = frozenset()
        self._moved.set()
