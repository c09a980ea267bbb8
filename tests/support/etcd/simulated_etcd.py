"""etcd in memory, on the loop of a test: linearizable, with leases, and with faults on purpose.

What is real: every write is one change with one revision, carried out whole or not at all. What may
go wrong, by `Faults` and by hand: an answer is lost although the write was carried out, a write is
carried out after its caller has given up, a lease ends early or late, a watch lags, all of etcd or
one client's way to it is away. While etcd is away no lease ends, and when it is back each starts
anew, as with a new leader of the real one. Its data can be wiped, or replaced by an older copy
(`SavedEtcd`): then revisions count from a lower number, and leases granted since are unknown.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from aerobee_broker.replication.election.coordinators.etcd import (
    Delete,
    EtcdNoAnswer,
    EtcdRefused,
    KeyValue,
    LeaseGone,
    Snapshot,
    Unchanged,
    WatchCompacted,
    Write,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities from 0 to 1, each for one call or for one renewal of a lease."""

    lost_request: float = 0.0
    lost_answer: float = 0.0
    late_write: float = 0.0  # carried out after its caller has given up
    early_lease: float = 0.0
    late_lease: float = 0.0
    delay_s: float = 0.0  # of a request, an answer and a watch: from 0 to this


NO_FAULTS = Faults()


@dataclass(slots=True)
class _Lease:
    ttl_s: int
    keys: set[str] = field(default_factory=set)
    end: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class SavedEtcd:
    """A backup: the keys with their leases, and the duration of each lease in seconds."""

    revision: int
    items: dict[str, tuple[KeyValue, int]]
    leases: dict[int, int]


EMPTY = SavedEtcd(1, {}, {})


class SimulatedEtcd:
    """The cluster. Its clients are made by `client`."""

    def __init__(self, rng: random.Random, faults: Faults = NO_FAULTS) -> None:
        self.faults = faults
        self.away = False
        self.silent = False  # watches report nothing: of a member that is isolated from the others
        self.rng = rng
        self.revision = 1
        # What was written below every key, in order: (revision, key, value or None).
        self.history: list[tuple[int, str, bytes | None]] = []
        self.compacted = 0
        # Is told of each key and its new value, None: deleted. What it raises first is kept, for
        # nobody who writes may see it.
        self.on_write: Callable[[str, bytes | None], None] | None = None
        self.broken: AssertionError | None = None
        self.on_restore: Callable[[], None] | None = None  # after the data was replaced
        self.generation = 0  # of the data: how often it was replaced
        self._items: dict[str, tuple[KeyValue, int]] = {}  # with the lease
        self._leases: dict[int, _Lease] = {}
        self._lease_ids = itertools.count(1)
        self._changed: dict[asyncio.Future[None], None] = {}  # in the order in which they began

    def client(self, *, timeout_s: float = 1.0) -> SimulatedEtcdClient:
        return SimulatedEtcdClient(self, timeout_s)

    # ---- faults by hand ----

    def go_away(self) -> None:
        self.away = True
        for lease in self._leases.values():
            if lease.end is not None:
                lease.end.cancel()
        self._wake()

    def come_back(self) -> None:
        self.away = False
        for lease_id, lease in self._leases.items():
            self._schedule(lease_id, lease)
        self._wake()

    def end_leases(self) -> None:
        """All at once, long before their time."""
        for lease_id in list(self._leases):
            self._end_lease(lease_id)

    def save(self) -> SavedEtcd:
        """Return a backup of the present data."""
        leases = {lease_id: lease.ttl_s for lease_id, lease in self._leases.items()}
        return SavedEtcd(self.revision, dict(self._items), leases)

    def restore(self, saved: SavedEtcd = EMPTY) -> None:
        """Replace all data by a backup, as an operator does; by default by nothing.

        Writes under way are lost with the old data.
        """
        self.generation += 1
        for lease in self._leases.values():
            if lease.end is not None:
                lease.end.cancel()
        self.revision, self._items = saved.revision, dict(saved.items)
        self.history = [
            (item.mod_revision, key, item.value) for key, (item, _) in saved.items.items()
        ]
        self.history.sort(key=lambda change: change[0])
        self.compacted = 0
        self._leases = {lease_id: _Lease(ttl_s) for lease_id, ttl_s in saved.leases.items()}
        for key, (_, lease_id) in saved.items.items():
            if lease_id:
                self._leases[lease_id].keys.add(key)
        if not self.away:
            for lease_id, lease in self._leases.items():
                self._schedule(lease_id, lease)
        if self.on_restore is not None:
            self.on_restore()
        self._wake()

    def compact(self) -> None:
        """Forgets every change so far: only what the keys hold now stays."""
        self.compacted = self.revision
        self._wake()

    # ---- requests, each at one moment ----

    def snapshot(self, prefix: str) -> Snapshot:
        found = (item for key, (item, _) in sorted(self._items.items()) if key.startswith(prefix))
        return Snapshot(self.revision, tuple(found))

    def write(self, conditions: Sequence[Unchanged], writes: Sequence[Write]) -> int | None:
        if any(self._mod_revision(each.key) != each.mod_revision for each in conditions):
            return None
        if len({write.key for write in writes}) < len(writes):
            raise EtcdRefused("a key is written twice")
        for write in writes:
            if not isinstance(write, Delete) and write.lease_id:
                self._lease(write.lease_id)
        self._change(writes)
        return self.revision

    def grant(self, ttl_s: int) -> int:
        lease_id = next(self._lease_ids)
        lease = self._leases[lease_id] = _Lease(ttl_s)
        self._schedule(lease_id, lease)
        return lease_id

    def keep_alive(self, lease_id: int) -> None:
        self._schedule(lease_id, self._lease(lease_id))

    def revoke(self, lease_id: int) -> None:
        if lease_id in self._leases:
            self._end_lease(lease_id)

    async def change(self) -> None:
        """The next change, or fault by hand."""
        changed = asyncio.get_running_loop().create_future()
        self._changed[changed] = None
        try:
            await changed
        finally:
            self._changed.pop(changed, None)

    # ---- state ----

    def _mod_revision(self, key: str) -> int:
        item = self._items.get(key)
        return 0 if item is None else item[0].mod_revision

    def _lease(self, lease_id: int) -> _Lease:
        lease = self._leases.get(lease_id)
        if lease is None:
            raise LeaseGone(f"no lease {lease_id}")
        return lease

    def _change(self, writes: Sequence[Write]) -> None:
        self.revision += 1
        for write in writes:
            old = self._items.pop(write.key, None)
            if old is not None and old[1]:
                self._leases[old[1]].keys.discard(write.key)
            if isinstance(write, Delete):
                self.history.append((self.revision, write.key, None))
                continue
            item = KeyValue(write.key, write.value, self.revision)
            self._items[write.key] = item, write.lease_id
            if write.lease_id:
                self._leases[write.lease_id].keys.add(write.key)
            self.history.append((self.revision, write.key, write.value))
        self._report(writes)
        self._wake()

    def _report(self, writes: Sequence[Write]) -> None:
        if (on_write := self.on_write) is None:
            return
        for write in writes:
            try:
                on_write(write.key, None if isinstance(write, Delete) else write.value)
            except AssertionError as error:
                self.broken = self.broken or error

    def _schedule(self, lease_id: int, lease: _Lease) -> None:
        if lease.end is not None:
            lease.end.cancel()
        after_s = lease.ttl_s + self.rng.uniform(0, 0.5)
        if self.rng.random() < self.faults.early_lease:
            after_s = self.rng.uniform(0.05, lease.ttl_s)
        elif self.rng.random() < self.faults.late_lease:
            after_s += self.rng.uniform(0, 3 * lease.ttl_s)
        # Of no simulated process: a lease outlives the one that has asked for it.
        context = contextvars.Context()
        loop = asyncio.get_running_loop()
        lease.end = loop.call_later(after_s, self._end_lease, lease_id, context=context)

    def _end_lease(self, lease_id: int) -> None:
        lease = self._leases[lease_id]
        if lease.end is not None:
            lease.end.cancel()
        if lease.keys:
            self._change([Delete(key) for key in sorted(lease.keys)])
        del self._leases[lease_id]

    def _wake(self) -> None:
        for changed in self._changed:
            if not changed.done():
                changed.set_result(None)


class SimulatedEtcdClient:
    """One process' way to it (`Etcd`). `cut`: nothing of it arrives, and it hears nothing."""

    def __init__(self, etcd: SimulatedEtcd, timeout_s: float) -> None:
        self.cut = False
        self._etcd = etcd
        self._timeout_s = timeout_s

    async def read(self, prefix: str) -> Snapshot:
        return await self._call(lambda: self._etcd.snapshot(prefix))

    async def write(self, conditions: Sequence[Unchanged], writes: Sequence[Write]) -> int | None:
        etcd = self._etcd
        if etcd.rng.random() < etcd.faults.late_write:
            after_s = self._timeout_s * etcd.rng.uniform(1, 3)
            loop = asyncio.get_running_loop()
            late = partial(self._write_late, etcd.generation, conditions, writes)
            loop.call_later(after_s, late, context=contextvars.Context())
            await self._never()
        return await self._call(lambda: etcd.write(conditions, writes))

    async def grant(self, ttl_s: int) -> int:
        return await self._call(lambda: self._etcd.grant(ttl_s))

    async def keep_alive(self, lease_id: int) -> None:
        await self._call(lambda: self._etcd.keep_alive(lease_id))

    async def revoke(self, lease_id: int) -> None:
        await self._call(lambda: self._etcd.revoke(lease_id))

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[int, None]:
        etcd, seen = self._etcd, start_revision - 1
        generation = etcd.generation
        while True:
            if etcd.away or etcd.generation != generation:
                raise EtcdNoAnswer("the watch broke")
            if seen < etcd.compacted and any(
                seen < at <= etcd.compacted for at, *_ in etcd.history
            ):
                raise WatchCompacted("changes are forgotten")
            newer = [at for at, key, _ in etcd.history if at > seen and key.startswith(prefix)]
            if newer and not (self.cut or etcd.silent):
                await self._delay()
                seen = newer[-1]
                yield seen
            else:
                await etcd.change()

    async def close(self) -> None:
        pass

    async def _call(self, request: Callable[[], T]) -> T:
        etcd, generation = self._etcd, self._etcd.generation
        await self._delay()
        lost = etcd.generation != generation
        if etcd.away or self.cut or lost or etcd.rng.random() < etcd.faults.lost_request:
            await self._never()
        answer = request()
        if etcd.rng.random() < etcd.faults.lost_answer:
            await self._never()
        await self._delay()
        if etcd.away or self.cut:
            await self._never()
        return answer

    def _write_late(
        self, generation: int, conditions: Sequence[Unchanged], writes: Sequence[Write]
    ) -> None:
        if self._etcd.away or self._etcd.generation != generation:
            return
        try:
            self._etcd.write(conditions, writes)
        except EtcdRefused:
            return  # its lease has ended meanwhile, and nobody hears of it

    async def _never(self) -> None:
        await asyncio.sleep(self._timeout_s)
        raise EtcdNoAnswer("no answer")

    async def _delay(self) -> None:
        if self._etcd.faults.delay_s:
            await asyncio.sleep(self._etcd.rng.uniform(0, self._etcd.faults.delay_s))
