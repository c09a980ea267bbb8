"""The coordinator on etcd: three kinds of keys below the prefix of a broker group.

    state           {epoch, master, inSync}        for ever
    master          {replica, address, epoch, nonce}   under the lease of the master's process
    replicas/ID     {replica, address, epoch, end, priority}   under the lease of each

Every change compares revisions of `master` and `state` in one transaction. A key is compared by the
revision of its last put, not of its creation: an election over a master key that still stands puts
that key without deleting it. One lease for each process, renewed every third of its duration; with
each renewal the keys are read again, so that a watch which is silent delays news by that much.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import structlog

from aerobee_broker.etcd import (
    Delete,
    Etcd,
    EtcdError,
    LeaseGone,
    Put,
    Snapshot,
    Unchanged,
    Write,
)
from aerobee_broker.replication.coordinators.coordinator import (
    Candidacy,
    CoordinatorAway,
    CoordinatorDamaged,
    MasterKey,
    Mastership,
    State,
    View,
)
from aerobee_broker.replication.identity import Replica
from aerobee_chassis.clock import Clock, real_time

_REPLICAS = "replicas/"
_NONCE_BITS = 64
_RENEWALS = 3  # within the duration of a lease
_REWATCH_S = 0.2  # after a watch broke


class EtcdCoordinator:
    """`announce` starts it; `close` ends its lease."""

    def __init__(
        self,
        etcd: Etcd,
        prefix: str,
        replica: Replica,
        *,
        lease_ttl_s: int,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """`prefix`: of the group's keys, with a slash at its end."""
        self._etcd = etcd
        self._prefix = prefix
        self._key_of_master, self._key_of_state = prefix + "master", prefix + "state"
        self._replica = replica
        self._ttl_s = lease_ttl_s
        self._clock = clock.real
        self._rng = rng
        self._view: View | None = None
        self._read_revision = 0
        self._news = asyncio.Event()
        self._candidacy: Candidacy | None = None
        self._announced: Candidacy | None = None  # as it is in etcd, under `_lease`
        self._lease = 0
        self._alive_until_ms = 0
        self._claims: dict[str, int] = {}  # nonce → epoch, while one may still be carried out
        self._wake = asyncio.Event()
        self._is_reachable = True
        self._tasks: list[asyncio.Task[None]] = []

    # ---- views ----

    @property
    def view(self) -> View | None:
        return self._view

    @property
    def is_reachable(self) -> bool:
        return self._is_reachable

    def alive_until_ms(self) -> int:
        return self._alive_until_ms

    async def changed(self, seen: View | None) -> View:
        while self._view is None or self._view is seen:
            await self._news.wait()
        return self._view

    async def read(self) -> View:
        try:
            snapshot = await self._etcd.read(self._prefix)
        except EtcdError as error:
            raise CoordinatorAway(str(error)) from error
        view = _view_of(snapshot, self._prefix)
        if snapshot.revision >= self._read_revision:  # else a slow answer, after a newer one
            self._read_revision = snapshot.revision
            self._publish(view)
        return view

    def _publish(self, view: View) -> None:
        if view == self._view:
            return
        self._view = view
        self._forget_claims(view)
        news, self._news = self._news, asyncio.Event()
        news.set()

    # ---- elections ----

    async def elect(self, view: View, *, unclean: bool = False) -> Mastership | None:
        if not (view.state is None or view.may_be_elected(self._replica) or unclean):
            raise ValueError(f"replica {self._replica} is not in sync")
        epoch = 1 if view.state is None else view.state.epoch + 1
        # At most one of the claims of an epoch is carried out, so they have one nonce: a candidate
        # claims again and again while etcd answers no write.
        known = (nonce for nonce, at in self._claims.items() if at == epoch)
        nonce = next(known, None) or f"{self._rng.getrandbits(_NONCE_BITS):016x}"
        state = State(epoch, self._replica, frozenset({self._replica}))
        master = self._put_master(epoch, nonce)
        self._claims[nonce] = epoch
        conditions = self._unchanged(view.master_revision, view.state_revision)
        try:
            revision = await self._write(conditions, master, self._put_state(state))
        except CoordinatorAway:
            mastership = self.claimed_in(await self.read())
            if mastership is None:  # refused, or it may be carried out yet
                raise
            return mastership
        if not revision:  # an earlier claim with this nonce may be what has changed
            return None
        self._claims.pop(nonce, None)  # forgotten if a later epoch was seen before this answer
        return Mastership(state, nonce, revision, revision)

    def claimed_in(self, view: View) -> Mastership | None:
        master, state = view.master, view.state
        if master is None or state is None or master.nonce not in self._claims:
            return None
        del self._claims[master.nonce]
        return Mastership(state, master.nonce, view.master_revision, view.state_revision)

    async def change_in_sync(
        self, mastership: Mastership, in_sync: frozenset[Replica]
    ) -> Mastership | None:
        state = State(mastership.epoch, self._replica, in_sync)
        conditions = self._unchanged(mastership.master_revision, mastership.state_revision)
        revision = await self._write(conditions, self._put_state(state))
        if not revision:
            return None
        return Mastership(state, mastership.nonce, mastership.master_revision, revision)

    async def reclaim(self, mastership: Mastership) -> Mastership | None:
        conditions = self._unchanged(0, mastership.state_revision)
        master = self._put_master(mastership.epoch, mastership.nonce)
        revision = await self._write(conditions, master)
        if not revision:
            return None
        return Mastership(mastership.state, mastership.nonce, revision, mastership.state_revision)

    async def resign(self, mastership: Mastership) -> None:
        condition = Unchanged(self._key_of_master, mastership.master_revision)
        await self._write([condition], Delete(self._key_of_master))

    def _unchanged(self, master_revision: int, state_revision: int) -> list[Unchanged]:
        return [
            Unchanged(self._key_of_master, master_revision),
            Unchanged(self._key_of_state, state_revision),
        ]

    def _put_master(self, epoch: int, nonce: str) -> Put:
        """Under this process' lease. Raises CoordinatorAway when it has none."""
        if self._candidacy is None or not self._lease:
            raise CoordinatorAway("this replica has no lease at etcd yet")
        content = {**_of_replica(self._replica), "address": self._candidacy.address}
        value = _encoded({**content, "epoch": epoch, "nonce": nonce})
        return Put(self._key_of_master, value, self._lease)

    def _put_state(self, state: State) -> Put:
        members = [_of_replica(member) for member in sorted(state.in_sync)]
        content = {"epoch": state.epoch, "master": _of_replica(state.master), "inSync": members}
        return Put(self._key_of_state, _encoded(content))

    async def _write(self, conditions: list[Unchanged], *writes: Write) -> int | None:
        try:
            return await self._etcd.write(conditions, writes)
        except LeaseGone as error:
            self._lease = 0
            self._wake.set()
            raise CoordinatorAway(str(error)) from error
        except EtcdError as error:
            raise CoordinatorAway(str(error)) from error

    def _forget_claims(self, view: View) -> None:
        """Those that can be carried out no more: the state that they compare with has been
        replaced, and not by them."""
        epoch = view.state.epoch if view.state else 0
        self._claims = {nonce: at for nonce, at in self._claims.items() if at >= epoch}

    # ---- this replica as alive ----

    def announce(self, candidacy: Candidacy) -> None:
        self._candidacy = candidacy
        if not self._tasks:
            with real_time():
                self._tasks = [
                    asyncio.create_task(self._keep()),
                    asyncio.create_task(self._watch()),
                ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        lease, self._lease = self._lease, 0
        if lease:
            try:
                await self._etcd.revoke(lease)
            except EtcdError as error:
                _log().warning("lease_not_revoked", reason=str(error))

    async def _keep(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._renew()
                await self.read()
            except (CoordinatorAway, CoordinatorDamaged) as error:
                if self._is_reachable:
                    _log().warning("coordinator_away", reason=str(error))
                self._is_reachable = False
            else:
                if not self._is_reachable:
                    _log().info("coordinator_back")
                self._is_reachable = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._ttl_s / _RENEWALS):
                    await self._wake.wait()

    async def _renew(self) -> None:
        """Raises CoordinatorAway."""
        asked_ms = self._clock.monotonic_ms()
        try:
            await self._renew_lease()
        except EtcdError as error:
            raise CoordinatorAway(str(error)) from error
        if self._candidacy != self._announced:
            candidacy = self._candidacy
            assert candidacy is not None, "announced before this task began"
            key = f"{self._prefix}{_REPLICAS}{self._replica.replica_id}"
            await self._write([], Put(key, _of_candidacy(candidacy), self._lease))
            self._announced = candidacy
        self._alive_until_ms = asked_ms + self._ttl_s * 1000

    async def _renew_lease(self) -> None:
        if self._lease:
            try:
                await self._etcd.keep_alive(self._lease)
            except LeaseGone as error:
                _log().warning("lease_lost", reason=str(error))
                self._lease = 0
        if not self._lease:
            self._announced = None
            self._lease = await self._etcd.grant(self._ttl_s)

    async def _watch(self) -> None:
        """Reads again after each change."""
        while True:
            try:
                await self.read()
                changes = self._etcd.watch(self._prefix, self._read_revision + 1)
                async with aclosing(changes):
                    async for revision in changes:
                        if revision > self._read_revision:
                            await self.read()
            except (CoordinatorAway, CoordinatorDamaged, EtcdError) as error:
                _log().debug("watch_broke", reason=str(error))
                await asyncio.sleep(_REWATCH_S)


# ---- values ----


def _view_of(snapshot: Snapshot, prefix: str) -> View:
    """Raises CoordinatorDamaged."""
    state: State | None = None
    master: MasterKey | None = None
    revisions = {"state": 0, "master": 0}
    candidacies: dict[int, Candidacy] = {}
    for item in snapshot.items:
        name = item.key.removeprefix(prefix)
        try:
            content = json.loads(item.value)
            if name == "state":
                state = _state(content)
            elif name == "master":
                master = _master(content)
            elif name.startswith(_REPLICAS):
                candidacies[int(name.removeprefix(_REPLICAS))] = _candidacy(content)
        except (ValueError, TypeError, KeyError) as error:
            text = f"etcd's key {item.key} is not what a broker wrote: {error!r}"
            raise CoordinatorDamaged(text) from error
        revisions[name] = item.mod_revision
    return View(
        state,
        revisions["state"],
        master,
        revisions["master"],
        candidacies,
        revision=snapshot.revision,
    )


def _encoded(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _of_replica(replica: Replica) -> dict[str, Any]:
    return {"id": replica.replica_id, "storeId": replica.store_id}


def _of_candidacy(candidacy: Candidacy) -> bytes:
    return _encoded(
        {
            **_of_replica(candidacy.replica),
            "address": candidacy.address,
            "epoch": candidacy.epoch,
            "end": candidacy.end,
            "priority": candidacy.priority,
        }
    )


def _replica(content: Mapping[str, Any]) -> Replica:
    return Replica(int(content["id"]), str(content["storeId"]))


def _state(content: Mapping[str, Any]) -> State:
    in_sync = frozenset(_replica(member) for member in content["inSync"])
    return State(int(content["epoch"]), _replica(content["master"]), in_sync)


def _master(content: Mapping[str, Any]) -> MasterKey:
    epoch, nonce = int(content["epoch"]), str(content["nonce"])
    return MasterKey(_replica(content), str(content["address"]), epoch, nonce)


def _candidacy(content: Mapping[str, Any]) -> Candidacy:
    return Candidacy(
        _replica(content),
        str(content["address"]),
        int(content["epoch"]),
        int(content["end"]),
        int(content["priority"]),
    )


def _log() -> Any:
    return structlog.get_logger()
