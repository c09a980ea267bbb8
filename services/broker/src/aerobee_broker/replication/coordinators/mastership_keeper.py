"""What a master keeps at the coordinator: its key, and the in-sync set as it wants it.

The rule for acknowledgements: the replicas that the master waits for contain the set at the
coordinator, at every moment. So a replica that joins is waited for before the set is written, one
that leaves until it has been, and while an answer is missing those of either outcome are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from aerobee_broker.replication.coordinators.coordinator import (
    Coordinator,
    CoordinatorAway,
    CoordinatorDamaged,
    Mastership,
    Reach,
)
from aerobee_broker.replication.identity import Replica

RETRY_S = 0.2  # after the coordinator was away


class MastershipKeeper:
    """For one epoch. `run` keeps it until another replica is elected."""

    def __init__(
        self,
        coordinator: Coordinator,
        mastership: Mastership,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` is called after each change of `awaited` that is not by `want`."""
        self._coordinator = coordinator
        self._mastership = mastership
        self._on_change = on_change
        self._wanted = mastership.state.in_sync
        self._floor = mastership.state.floor
        # Sets whose writes have no answer: one of them may be at the coordinator, or may yet be.
        self._unanswered: frozenset[Replica] = frozenset()
        self._asked = asyncio.Event()
        self._moved = (
            asyncio.Event()
        )  # what is known of the coordinator, since it was last waited for

    @property
    def mastership(self) -> Mastership:
        return self._mastership

    @property
    def in_sync(self) -> frozenset[Replica]:
        """As it was last known to be at the coordinator."""
        return self._mastership.state.in_sync

    @property
    def awaited(self) -> frozenset[Replica]:
        """Nothing may be acknowledged that one of these does not have."""
        return self.in_sync | self._wanted | self._unanswered

    @property
    def is_settled(self) -> bool:
        """Whether the set at the coordinator is the one that is wanted, and no write can change it
        any more. Only then `in_sync` may be taken for the answer to what was wanted: a set that was
        merely read may still be replaced by a write that is carried out late."""
        known = self.in_sync == self._wanted and not self._unanswered
        held = self._mastership.master_revision != 0 and not self._mastership.is_forgotten
        return known and held

    def want(self, in_sync: frozenset[Replica], confirmed: int) -> None:
        """From now on the set is to be this one; the master is a member of it.

        Args:
            in_sync: the set.
            confirmed: a physical offset: each of the set has everything below it on its disk.
        """
        self._wanted = in_sync | {self._mastership.state.master}
        self._floor = Reach(self._mastership.epoch, confirmed)
        self._asked.set()

    async def settled(self) -> frozenset[Replica]:
        """The set at the coordinator, once it is the one that is wanted, and stays."""
        while not self.is_settled:
            self._moved.clear()
            await self._moved.wait()
        return self.in_sync

    async def run(self) -> None:
        """Returns once another replica was elected. Cancelled: nothing more is written."""
        told = False
        while True:
            self._asked.clear()
            try:
                current = await (self._news() if self.is_settled else self._write())
            except (CoordinatorAway, CoordinatorDamaged) as error:
                if not told:
                    structlog.get_logger().warning("mastership_not_written", reason=str(error))
                told = True
                await asyncio.sleep(RETRY_S)
                continue
            told = False
            if current is None:
                return
            self._take(current)

    async def _write(self) -> Mastership | None:
        """One step to what is wanted, or what stands in its way."""
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
        """By the next view, or as it is when another set is wanted before."""
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
        before, awaited = self._mastership, self.awaited
        self._mastership = current
        if current.revisions != before.revisions:
            # Each unanswered write compared with the revisions before: now none can be carried out.
            self._unanswered = frozenset()
        self._moved.set()
        if self.awaited != awaited:
            self._on_change()
