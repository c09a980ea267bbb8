"""Implement the coordinator on etcd, with five kinds of keys below the prefix of a group.

    state           {epoch, master, inSync, version, floor}    permanent
    master          {replica, address, epoch, nonce}           lease of the master's process
    replicas/ID     {replica, address, epoch, end, ...}        lease of each replica's process
    stores/STORE    {id, generation}                           permanent: the last start of a store
    ends/STORE      {epoch, end}                               permanent: the end of the store's log

Every change of `master` or `state` compares the revisions of both keys in one transaction. The
compared revision is the one of the last put, not of the creation. An election over an existing
master key puts that key without deleting it.

Each process has one lease, which it renews every third of the lease's duration. The process reads
the keys again with each renewal. So a silent watch delays a change by at most that time.

etcd may lose its data, or an older copy of the data may be restored. A linearizable read never has
a lower revision than a revision known before the request. If it has, the data was replaced, and all
earlier knowledge of it is invalid (`incarnation`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import structlog

from aerobee_broker.replication.election.coordinators.coordinator import (
    Candidacy,
    CoordinatorAway,
    CoordinatorDamaged,
    MasterKey,
    Mastership,
    State,
    StoreOpenedElsewhere,
    StoreRecord,
    View,
)
from aerobee_broker.replication.election.coordinators.etcd import (
    Delete,
    Etcd,
    EtcdError,
    LeaseGone,
    Put,
    Snapshot,
    Unchanged,
    Write,
)
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log.epochs import NOTHING, Reach
from aerobee_chassis.background import BackgroundTask
from aerobee_chassis.clock import Clock, real_time

_REPLICAS, _STORES, _ENDS = "replicas/", "stores/", "ends/"
_NONCE_BITS = 64
_RENEWALS = 3  # renewals within the duration of a lease
_REWATCH_S = 0.2  # seconds after a watch broke
# Errors of a value that no broker wrote. An infinite number is valid JSON in Python.
_INVALID = (ValueError, TypeError, KeyError, OverflowError)


class EtcdCoordinator:
    """Coordinate a group through etcd.

    `announce` starts the background tasks; `close` ends the lease.
    """

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
        """Create the coordinator. `prefix` begins each key of the group and ends with a slash."""
        self._etcd = etcd
        self._prefix = prefix
        self._key_of_master, self._key_of_state = prefix + "master", prefix + "state"
        self._key_of_store = f"{prefix}{_STORES}{replica.store_id}"
        self._key_of_end = f"{prefix}{_ENDS}{replica.store_id}"
        self._replica = replica
        self._ttl_s = lease_ttl_s
        self._clock = clock.real
        self._rng = rng
        self._view: View | None = None
        self._read_revision = 0
        self._written_revision = 0
        self._incarnation = 0
        self._store_revision = 0  # revision of the own record, as this process wrote it
        self._generation = 0
        self._recorded_end: Reach | None = None  # how far the own log goes, as recorded in etcd
        self._news = asyncio.Event()
        self._candidacy: Candidacy | None = None
        self._announced: Candidacy | None = None  # the candidacy in etcd, under `_lease`
        self._lease = 0
        self._alive_until_ms = 0
        self._claims: dict[str, int] = {}  # nonce → epoch, while the claim may still be carried out
        self._wake = asyncio.Event()
        self._is_reachable = True
        self._tasks: list[BackgroundTask] = []

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
        while True:
            incarnation = self._incarnation
            known = max(self._read_revision, self._written_revision)
            snapshot = await self._snapshot()
            if incarnation != self._incarnation:
                continue  # requested before it was known that the data went back
            if snapshot.revision < known:
                self._went_back(known, snapshot.revision)
            break
        view = _view_of(snapshot, self._prefix, self._incarnation)
        if snapshot.revision >= self._read_revision:  # otherwise a slow answer, after a newer one
            self._read_revision = snapshot.revision
            self._publish(view)
        return view

    async def _snapshot(self) -> Snapshot:
        try:
            return await self._etcd.read(self._prefix)
        except EtcdError as error:
            raise CoordinatorAway(str(error)) from error

    def _went_back(self, known: int, revision: int) -> None:
        _log().warning("coordinator_went_back", known_revision=known, revision=revision)
        self._incarnation += 1
        self._read_revision = self._written_revision = self._store_revision = 0
        self._claims.clear()
        self._recorded_end = None
        self._announced = None
        self._wake.set()

    def _publish(self, view: View) -> None:
        if view == self._view:
            return
        self._view = view
        self._forget_claims(view)
        news, self._news = self._news, asyncio.Event()
        news.set()

    # ---- elections ----

    async def elect(self, view: View, *, unclean: bool = False) -> Mastership | None:
        own = self._own_candidacy()
        trusted = view.trusted_state(own.seen)
        if not (trusted is None or view.may_be_elected(own) or unclean):
            raise ValueError(f"replica {self._replica} is not in sync")
        epoch = view.next_epoch(own)
        # At most one of the claims of an epoch is carried out, so they share one nonce: a candidate
        # claims repeatedly while etcd answers no write.
        known = (nonce for nonce, at in self._claims.items() if at == epoch)
        nonce = next(known, None) or f"{self._rng.getrandbits(_NONCE_BITS):016x}"
        alone = frozenset({self._replica})
        state = State(epoch, self._replica, alone, view.next_version(own), own.reach)
        master = self._put_master(epoch, nonce)
        self._claims[nonce] = epoch
        conditions = self._unchanged(view.master_revision, view.state_revision)
        if self._store_revision:
            conditions.append(Unchanged(self._key_of_store, self._store_revision))
        incarnation = self._incarnation
        try:
            revision = await self._write(conditions, master, self._put_state(state))
        except CoordinatorAway:
            mastership = self.claimed_in(await self.read())
            if mastership is None:  # refused, or may still be carried out
                raise
            return mastership
        if not revision:  # an earlier claim with this nonce may be what has changed
            return None
        self._claims.pop(nonce, None)  # forgotten if a later epoch was seen before this answer
        return Mastership(state, nonce, revision, revision, incarnation)

    def claimed_in(self, view: View) -> Mastership | None:
        master, state = view.master, view.state
        if master is None or state is None or master.nonce not in self._claims:
            return None
        del self._claims[master.nonce]
        revisions = view.master_revision, view.state_revision
        return Mastership(state, master.nonce, *revisions, view.incarnation)

    async def change_in_sync(
        self, mastership: Mastership, in_sync: frozenset[Replica], floor: Reach
    ) -> Mastership | None:
        version = mastership.state.version + 1
        state = State(mastership.epoch, self._replica, in_sync, version, floor)
        conditions = self._unchanged(mastership.master_revision, mastership.state_revision)
        revision = await self._write(conditions, self._put_state(state))
        if not revision:
            return None
        return replace(mastership, state=state, state_revision=revision)

    async def restore(self, mastership: Mastership) -> Mastership | None:
        before = mastership.state
        state = replace(before, version=before.version + 1)
        conditions = self._unchanged(mastership.master_revision, mastership.state_revision)
        master = self._put_master(mastership.epoch, mastership.nonce)
        revision = await self._write(conditions, master, self._put_state(state))
        if not revision:
            return None
        _log().warning("state_written_back", epoch=state.epoch, version=state.version)
        return replace(
            mastership,
            state=state,
            master_revision=revision,
            state_revision=revision,
            is_forgotten=False,
        )

    async def reclaim(self, mastership: Mastership) -> Mastership | None:
        conditions = self._unchanged(0, mastership.state_revision)
        master = self._put_master(mastership.epoch, mastership.nonce)
        revision = await self._write(conditions, master)
        if not revision:
            return None
        return replace(mastership, master_revision=revision)

    async def resign(self, mastership: Mastership) -> None:
        condition = Unchanged(self._key_of_master, mastership.master_revision)
        await self._write([condition], Delete(self._key_of_master))

    def _unchanged(self, master_revision: int, state_revision: int) -> list[Unchanged]:
        return [
            Unchanged(self._key_of_master, master_revision),
            Unchanged(self._key_of_state, state_revision),
        ]

    def _put_master(self, epoch: int, nonce: str) -> Put:
        """Return the write of the master key under this process's lease.

        Raises CoordinatorAway if this process has no lease.
        """
        address = self._own_candidacy().address
        if not self._lease:
            raise CoordinatorAway("this replica has no lease at etcd yet")
        content = {**_of_replica(self._replica), "address": address}
        value = _encoded({**content, "epoch": epoch, "nonce": nonce})
        return Put(self._key_of_master, value, self._lease)

    def _put_state(self, state: State) -> Put:
        content = {
            "epoch": state.epoch,
            "master": _of_replica(state.master),
            "inSync": [_of_replica(member) for member in sorted(state.in_sync)],
            "version": state.version,
            "floor": state.floor._asdict(),
        }
        return Put(self._key_of_state, _encoded(content))

    async def _write(self, conditions: list[Unchanged], *writes: Write) -> int | None:
        incarnation = self._incarnation
        try:
            revision = await self._etcd.write(conditions, writes)
            if incarnation == self._incarnation:
                self._written_revision = max(self._written_revision, revision or 0)
            return revision
        except LeaseGone as error:
            self._lease = 0
            self._wake.set()
            raise CoordinatorAway(str(error)) from error
        except EtcdError as error:
            raise CoordinatorAway(str(error)) from error

    def _forget_claims(self, view: View) -> None:
        """Forget claims that can no longer be carried out.

        A claim is only carried out while the state has the revision that the claim compares with.
        Another claim has replaced that state.
        """
        epoch = view.state.epoch if view.state else 0
        self._claims = {nonce: at for nonce, at in self._claims.items() if at >= epoch}

    # ---- the store of this replica ----

    async def recorded(self) -> StoreRecord:
        record, _ = await self._read_record()
        return record

    async def _read_record(self) -> tuple[StoreRecord, int]:
        """Return the record of this store, and the revision of its last start.

        The revision is 0 if etcd has no record of the store.
        """
        found = {item.key: item for item in (await self._snapshot()).items}
        store, end = found.get(self._key_of_store), found.get(self._key_of_end)
        try:
            generation = 0 if store is None else int(json.loads(store.value)["generation"])
            reach = NOTHING if end is None else _reach(json.loads(end.value))
        except _INVALID as error:
            text = f"etcd's record of store {self._replica.store_id} is invalid: {error!r}"
            raise CoordinatorDamaged(text) from error
        return StoreRecord(generation, reach), 0 if store is None else store.mod_revision

    async def enroll(self, generation: int) -> None:
        await self._write_record(generation, is_first=True)
        self._generation = generation

    async def _write_record(self, generation: int, *, is_first: bool) -> None:
        """Write the record of this store.

        Raises CoordinatorAway, CoordinatorDamaged, StoreOpenedElsewhere.
        """
        (known, _), before = await self._read_record()
        if known > generation or (is_first and known == generation):
            raise StoreOpenedElsewhere(
                f"another process has started with a copy of store {self._replica.store_id}: "
                "stop one of the two, and give it an empty storePathRootDir"
            )
        if before and known == generation:  # an older copy of etcd's data has it
            self._store_revision = before
            return
        content = {**_of_replica(self._replica), "generation": generation}
        put = Put(self._key_of_store, _encoded(content))
        revision = await self._write([Unchanged(self._key_of_store, before)], put)
        if not revision:
            raise CoordinatorAway(f"store {self._replica.store_id} is being enrolled elsewhere")
        self._store_revision = revision

    def _own_candidacy(self) -> Candidacy:
        if self._candidacy is None:
            raise CoordinatorAway("this replica has not announced itself to etcd yet")
        return self._candidacy

    # ---- lease and candidacy of this replica ----

    def announce(self, candidacy: Candidacy) -> None:
        self._candidacy = candidacy
        if not self._tasks:
            self._tasks = [
                BackgroundTask("lease at etcd", self._keep),
                BackgroundTask("watch of etcd", self._watch),
            ]
            with real_time():
                for task in self._tasks:
                    task.begin()

    async def close(self) -> None:
        for task in self._tasks:
            await task.stop()
        lease, self._lease = self._lease, 0
        if lease:
            try:
                await self._record_end()
                await self._etcd.revoke(lease)
            except (CoordinatorAway, EtcdError) as error:
                _log().warning("lease_not_revoked", reason=str(error))

    async def _record_end(self) -> None:
        """Record the end of the log when the process stops. Raises CoordinatorAway.

        The last renewal may have recorded an older end.
        """
        if self._candidacy is not None and self._candidacy.recorded_reach != self._recorded_end:
            await self._write([], self._put_end(self._candidacy.recorded_reach))

    async def _keep(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._renew()
                await self.read()
            except (CoordinatorAway, CoordinatorDamaged, StoreOpenedElsewhere) as error:
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
        """Renew the lease, and write the candidacy and the end of the log if they have changed.

        Raises CoordinatorAway, CoordinatorDamaged, StoreOpenedElsewhere.
        """
        asked_ms = self._clock.monotonic_ms()
        try:
            await self._renew_lease()
        except EtcdError as error:
            raise CoordinatorAway(str(error)) from error
        if self._generation and not self._store_revision:  # etcd has lost its data
            await self._write_record(self._generation, is_first=False)
        if self._candidacy != self._announced:
            candidacy = self._candidacy
            assert candidacy is not None, "announced before this task began"
            key = f"{self._prefix}{_REPLICAS}{self._replica.replica_id}"
            writes = [Put(key, _of_candidacy(candidacy), self._lease)]
            if candidacy.recorded_reach != self._recorded_end:
                writes.append(self._put_end(candidacy.recorded_reach))
            await self._write([], *writes)
            self._announced, self._recorded_end = candidacy, candidacy.recorded_reach
        self._alive_until_ms = asked_ms + self._ttl_s * 1000

    def _put_end(self, reach: Reach) -> Put:
        return Put(self._key_of_end, _encoded(reach._asdict()))

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
        """Read the keys again after each change."""
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


def _view_of(snapshot: Snapshot, prefix: str, incarnation: int) -> View:
    """Return the view of a snapshot. Raises CoordinatorDamaged."""
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
        except _INVALID as error:
            text = f"etcd's key {item.key} is not what a broker wrote: {error!r}"
            raise CoordinatorDamaged(text) from error
        revisions[name] = item.mod_revision
    return View(
        state,
        revisions["state"],
        master,
        revisions["master"],
        candidacies,
        incarnation,
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
            "heard": candidacy.heard,
            "seen": candidacy.seen,
            "whole": candidacy.whole,
            "learner": candidacy.learner,
        }
    )


def _replica(content: Mapping[str, Any]) -> Replica:
    return Replica(int(content["id"]), str(content["storeId"]))


def _state(content: Mapping[str, Any]) -> State:
    in_sync = frozenset(_replica(member) for member in content["inSync"])
    version, floor = int(content.get("version", 0)), content.get("floor")
    return State(
        int(content["epoch"]),
        _replica(content["master"]),
        in_sync,
        version,
        NOTHING if floor is None else _reach(floor),
    )


def _reach(content: Mapping[str, Any]) -> Reach:
    return Reach(int(content["epoch"]), int(content["end"]))


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
        int(content.get("heard", 0)),
        int(content.get("seen", 0)),
        bool(content.get("whole", True)),
        bool(content.get("learner", False)),
    )


def _log() -> Any:
    return structlog.get_logger()
