"""A broker group in one virtual loop: replicas (`replica.py`), their network, their clients.

The test elects; nobody else is asked.
"""

from __future__ import annotations

import asyncio
import random

from aerobee_broker.replication.in_sync.in_sync_set import InSyncRules
from aerobee_broker.store.messages import Appended
from aerobee_wire.status import MqError
from support.clock.virtual_loop import LoopClock
from support.disk.stores import visible
from support.replication.network import SimulatedNetwork
from support.replication.replica import Coordinator, SimulatedReplica, make_task
from support.replication.table_clients import TableClients, contents


class SimulatedGroup:
    """`rules`: of each master. Steps of a history are methods; what must hold is checked as it
    happens, and by `check_end`."""

    def __init__(self, seed: int, rules: InSyncRules, count: int = 3) -> None:
        self.rng = random.Random(seed)
        self.rules = rules
        self.clock = LoopClock()
        self.failures: list[BaseException] = []
        self.network = SimulatedNetwork(self.rng)
        self.coordinator = Coordinator(self.rng)
        self.replicas = [SimulatedReplica(self, number) for number in range(count)]
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.shown: dict[tuple[int, int], bytes] = {}
        self.number = 0
        self.reported_master: int | None = None
        self.tables = TableClients(self)
        self._senders: set[asyncio.Task[None]] = set()

    # ---- who leads ----

    def start(self, *numbers: int) -> None:
        asyncio.get_running_loop().set_task_factory(make_task)
        for number in numbers or range(len(self.replicas)):
            self.replicas[number].start()

    async def elect(self, number: int) -> SimulatedReplica:
        """One that is `electable`; the first time anybody."""
        replica = self.replicas[number]
        coordinator = self.coordinator
        await replica.lead(coordinator.elect(replica.identity))
        return replica

    @property
    def master(self) -> SimulatedReplica | None:
        """The one of the newest epoch, if it is up."""
        for replica in self.replicas:
            if replica.leader is not None and replica.identity == self.coordinator.master:
                return replica
        return None

    def master_for(self, slave: SimulatedReplica) -> SimulatedReplica | None:
        """Whom a slave takes for its master: mostly the newest, at times one of before, or the one
        that the test says."""
        if self.reported_master is not None:
            return self.replicas[self.reported_master]
        masters = [r for r in self.replicas if r.leader is not None and r is not slave]
        if self.master in masters and self.rng.random() < 0.7:
            return self.master
        return self.rng.choice(masters) if masters else None

    def electable(self) -> list[int]:
        """Whose disk fails does not stand for election."""
        return [
            r.number
            for r in self.replicas
            if r.is_up and not r.disk_fails and r.identity in self.coordinator.in_sync
        ]

    # ---- clients ----

    def send(self, count: int, replica: SimulatedReplica | None = None) -> None:
        """Single sends at once, to a master."""
        target = replica or self.master
        if target is not None and target.leader is not None:
            for _ in range(count):
                self.number += 1
                task = target.process.spawn(self._send(target, self.number))
                self._senders.add(task)
                task.add_done_callback(self._senders.discard)

    async def _send(self, replica: SimulatedReplica, number: int) -> None:
        try:
            place = await replica.send(number)
        except MqError:
            return
        self._check_acknowledged(replica, place)
        body = b"%d|" % number * 20
        self._note(self.acknowledged, (place.queue_id, place.queue_offset), body, "acknowledged")

    def _check_acknowledged(self, master: SimulatedReplica, place: Appended) -> None:
        """R4: it is on all that may be elected, and on as many replicas as are required."""
        if not self.rules.synchronous:
            return
        end = place.physical_offset + place.store_size
        copies = [r for r in self.replicas if self.has(r, end, master)]
        lacking = [
            r.number
            for r in self.replicas
            if r.is_up and r.identity in self.coordinator.in_sync and r not in copies
        ]
        assert not lacking, f"R4: acknowledged {end}, and replicas {lacking} may be elected"
        least = (
            self.rules.min_in_sync_replicas
            if self.rules.auto_in_sync_replicas
            else (self.rules.in_sync_replicas)
        )
        held = len(copies) + sum(not r.is_up for r in self.replicas)
        assert held >= least, f"R4: acknowledged {end} on {held} replicas"

    def has(self, replica: SimulatedReplica, end: int, master: SimulatedReplica) -> bool:
        """Whether a replica that is up has the bytes before `end` on its disk, as the master."""
        if not replica.is_up or replica.opened().flushed_offset < end:
            return False
        begin = max(0, end - 300)
        return replica.log_bytes(begin, end) == master.log_bytes(begin, end)

    def look_at(self, replica: SimulatedReplica) -> None:
        """What is visible on any replica was shown, and stays."""
        for place, body in replica.visible().items():
            self._note(self.shown, place, body, f"shown on {replica.number}")

    def _note(
        self, table: dict[tuple[int, int], bytes], place: tuple[int, int], body: bytes, how: str
    ) -> None:
        for known in (self.acknowledged, self.shown):
            if self.rules.synchronous or table is known is self.shown:
                before = known.get(place, body)
                assert before == body, f"{how} at {place}: {body[:9]!r}, before: {before[:9]!r}"
        table[place] = body

    # ---- the end ----

    def check_failures(self) -> None:
        for failure in self.failures:
            raise failure

    async def check_end(self) -> None:
        """Everybody is back, and one that may be elected leads: what was acknowledged and what was
        shown is there, and all logs are alike."""
        self.network.heal()
        self.coordinator.loses_answers, self.coordinator.away = 0.0, False
        self.coordinator.away_from.clear()
        for replica in self.replicas:
            if replica.is_up and replica.disk_fails:
                replica.stop_at_once()
            if not replica.is_up:
                replica.start()
        if self.master is None:
            await self.elect(self.rng.choice(self.electable()))
        await self.settle()
        master = self.master
        assert master is not None
        found = master.visible()
        if self.rules.synchronous:
            self._check_there(found, self.acknowledged, "acknowledged")
        self._check_there(found, self.shown, "shown")
        self.tables.check(master, synchronous=self.rules.synchronous)
        end = master.opened().end_offset
        for replica in self.replicas:
            assert replica.refused is None, f"{replica.number} was refused: {replica.refused}"
            assert replica.opened().end_offset == end, f"{replica.number} lags"
            assert replica.log_bytes(0, end) == master.log_bytes(0, end)
            assert replica.visible() == found, f"{replica.number} shows something else"
            everything = visible(master.opened())
            assert visible(replica.opened()) == everything, f"{replica.number} differs"
            assert contents(replica) == contents(master), f"{replica.number} has other tables"
            assert not replica.opened().corruption_count, f"{replica.number} found damage"

    def _check_there(
        self,
        found: dict[tuple[int, int], bytes],
        expected: dict[tuple[int, int], bytes],
        what: str,
    ) -> None:
        gone = {place for place, body in expected.items() if found.get(place) != body}
        assert not gone, f"{what} and gone: {sorted(gone)[:5]} of {len(expected)}"

    async def settle(self, seconds: float = 60) -> None:
        """Until all replicas are in the set and have everything."""
        deadline = self.clock.monotonic_ms() + seconds * 1000
        while self.clock.monotonic_ms() < deadline:
            await asyncio.sleep(0.5)
            self.check_failures()
            master = self.master
            if master is None or self._senders or self.tables.is_busy:
                continue
            ends = {r.opened().end_offset for r in self.replicas if r.is_up}
            shown = {r.opened().confirmed_offset for r in self.replicas if r.is_up}
            if (
                len(ends) == 1
                and len(shown) == 1
                and len(self.coordinator.in_sync) == len(self.replicas)
            ):
                return
        raise AssertionError(f"not settled after {seconds} s: {self.describe()}")

    def describe(self) -> str:
        parts = []
        for replica in self.replicas:
            role = "leads" if replica.leader else "follows" if replica.is_up else "is off"
            parts.append(f"{replica.number} {role}, epoch {replica.epochs.history.highest}")
            if replica.is_up:
                store = replica.opened()
                ends = store.end_offset, store.flushed_offset, store.confirmed_offset
                parts.append(f"end, flushed, confirmed {ends}")
        in_sync = sorted(member.replica_id for member in self.coordinator.in_sync)
        return f"{'; '.join(parts)}; set {in_sync}"
