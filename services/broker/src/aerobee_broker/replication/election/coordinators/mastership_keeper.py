"""Keep the master key and the wanted in-sync set of a master at the coordinator.

A master acknowledges a message only when certain replicas have it (`InSyncSet`). At every moment,
these replicas must include the in-sync set at the coordinator. So the master waits for the old set
and for each wanted set until `settled` returns the set that stays.

If the coordinator has lost the state, the lost data may have had an election. So the keeper writes
the state back only after `MayRestore` has found that no other replica was elected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from aerobee_broker.replication.election.coordinators.coordinator import (
    Coordinator,
    CoordinatorAway,
    CoordinatorDamaged,
    Mastership,
)
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log.epochs import Reach
from aerobee_chassis.background import until_one_ends

RETRY_S = 0.2  # seconds after the coordinator was unreachable

# Return whether the master may write its lost state back: False if another replica was elected.
# The argument has the replicas that the lost data allowed to be elected. Raises MayBeReplaced.
MayRestore = Callable[[frozenset[Replica]], Awaitable[bool]]


class MayBeReplaced(Exception):
    """The coordinator has lost the state, and a replica that may have been elected is silent."""


class MastershipKeeper:
    """Keep the mastership of one epoch; `run` ends when another replica is elected."""

    def __init__(
        self, coordinator: Coordinator, mastership: Mastership, may_restore: MayRestore
    ) -> None:
        self._coordinator = coordinator
        self._mastership = mastership
        self._may_restore = may_restore
        self._wanted = mastership.state.in_sync
        self._floor = mastership.state.floor
        # The replicas of all sets whose writes have no answer. One of these sets may be at the
        # coordinator, or may be written later.
        self._unanswered: frozenset[Replica] = frozenset()
        self._asked = asyncio.Event()
        self._moved = asyncio.Event()  # set on news of the coordinator

    @property
    def mastership(self) -> Mastership:
        return self._mastership

    @property
    def in_sync(self) -> frozenset[Replica]:
        """Return the in-sync set that was last known to be at the coordinator."""
        return self._mastership.state.in_sync

    @property
    def is_settled(self) -> bool:
        """Return whether the coordinator has stored the in-sync set that this master wants.

        No pending write can then change that set. Having read it from the coordinator is not
        enough, because a late write may still replace it.
        """
        known = self.in_sync == self._wanted and not self._unanswered
        held = self._mastership.master_revision != 0 and not self._mastership.is_forgotten
        return known and held

    def want(self, in_sync: frozenset[Replica], confirmed: int) -> None:
        """Set the wanted in-sync set; the master is always added to it.

        Args:
            in_sync: the replicas of the set.
            confirmed: the physical offset below which each member has everything on its disk.
        """
        self._wanted = in_sync | {self._mastership.state.master}
        self._floor = Reach(self._mastership.epoch, confirmed)
        self._asked.set()

    async def settled(self) -> frozenset[Replica]:
        """Wait until the coordinator has the wanted in-sync set, and return that set.

        No write is pending then, so the set stays.
        """
        while not self.is_settled:
            self._moved.clear()
            await self._moved.wait()
        return self.in_sync

    async def run(self) -> None:
        """Keep the mastership until another replica is elected.

        After a cancellation the keeper writes nothing more.
        """
        await until_one_ends(self._keep(), self._until_superseded())

    async def _until_superseded(self) -> None:
        """Wait for a view of another election.

        A write that waits for its answer must not hide such a view: if the coordinator then loses
        its data, no later view shows the election.
        """
        view = self._coordinator.view
        while view is None or self._mastership.seen_in(view) is not None:
            view = await self._coordinator.changed(view)

    async def _keep(self) -> None:
        logged = ""
        while True:
            self._asked.clear()
            try:
                current = await (self._news() if self.is_settled else self._write())
            except (CoordinatorAway, CoordinatorDamaged, MayBeReplaced) as error:
                if str(error) != logged:
                    structlog.get_logger().warning("mastership_not_written", reason=str(error))
                logged = str(error)
                await asyncio.sleep(RETRY_S)
                continue
            logged = ""
            if current is None:
                return
            self._take(current)

    async def _write(self) -> Mastership | None:
        """Do one write toward the wanted set, and return the resulting mastership.

        Return None if another replica was elected.
        """
        before = self._mastership
        if before.is_forgotten:
            possible = before.state.in_sync | self._unanswered
            if not await self._may_restore(possible):
                return None
            written = await self._coordinator.restore(before)
        elif not before.master_revision:
            written = await self._coordinator.reclaim(before)
        else:
            self._unanswered |= self._wanted
            written = await self._coordinator.change_in_sync(before, self._wanted, self._floor)
        return written or before.seen_in(await self._coordinator.read())

    async def _news(self) -> Mastership | None:
        """Wait for a new view or another wanted set, and return the mastership.

        Return None if another replica was elected.
        """
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
        if current.revisions != before.revisions and not current.is_forgotten:
            # Each unanswered write compares with the earlier revisions, so it can no longer be
            # carried out. But the data that the coordinator has lost may have had its set.
            self._unanswered = frozenset()
        self._moved.set()
