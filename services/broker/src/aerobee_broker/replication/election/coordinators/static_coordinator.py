"""Coordinate a group without etcd: each replica has a file, `config/replicas.json`.

    {"configured": "master", "epoch": 3, "master": {…}, "inSync": [{…}, …]}

A master writes the epoch that it begins, and then its in-sync set at each change. There are no
elections, and no other process writes the set of an epoch. So a read returns the set that was
written last. After a failed write, it is unknown whether the file was replaced, until another write
succeeds.

`configured` is the role that the options gave this replica at its last start. If the options give
another role at the next start, the operator has chosen the master. Otherwise the epochs determine
the master.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_broker.replication.election.coordinators.coordinator import State
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync.in_sync_set import Members
from aerobee_wire.checked_json import decode, encode


class StaticCoordinator:
    """Keep the state of a group in a file.

    `state` is the state in the file, valid after `load`; it is None if this replica was never
    master. `configured` is "master", "slave", or "" at the first start.
    """

    def __init__(self, disk: Disk, path: Path, writer: Worker) -> None:
        self.state: State | None = None
        self.configured = ""
        self._disk = disk
        self._path = path
        self._writer = writer

    @property
    def epoch(self) -> int:
        """Return the last epoch in which this replica was, or was about to be, master.

        Return 0 if there is none.
        """
        return 0 if self.state is None else self.state.epoch

    def load(self) -> None:
        """Load the file. Raises ConfigFileDamaged."""
        try:
            content = decode(read_file(self._disk, self._path))
            self.state = _state(content) if "epoch" in content else None
            self.configured = str(content["configured"])
        except FileNotFoundError:
            self.state, self.configured = None, ""
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigFileDamaged(self._path, f"{self._path}: {error}") from error

    async def begin(self, epoch: int, me: Replica) -> None:
        """Make this replica master, as the only member of the set, durably. Raises OSError."""
        await self._save(State(epoch, me, frozenset({me})))

    async def configure(self, role: str) -> None:
        """Record the role of the options, "master" or "slave", durably. Raises OSError."""
        if role != self.configured:
            await self._save(self.state, role)
            self.configured = role

    async def write(self, members: Members, confirmed: int = 0) -> Members | None:
        """Write the in-sync set and return it, or return None if the outcome is unknown.

        `confirmed` is not stored, because no other process reads the file.
        """
        state = self.state
        assert state is not None, "a master has begun its epoch"
        try:
            await self._save(State(state.epoch, state.master, members))
        except OSError as error:
            structlog.get_logger().error(
                "in_sync_set_not_saved", file=str(self._path), reason=str(error)
            )
            return None
        return members

    async def read(self) -> Members | None:
        """Rewrite the file with the in-sync set and return the set, or None if the write fails."""
        state = self.state
        assert state is not None, "a master has begun its epoch"
        return await self.write(state.in_sync)

    async def _save(self, state: State | None, configured: str | None = None) -> None:
        content: dict[str, Any] = {"configured": configured or self.configured}
        data = encode(content if state is None else content | _content(state))

        def write() -> None:
            self._disk.make_directory(self._path.parent)
            replace_file(self._disk, self._path, data)

        await self._writer(write)
        self.state = state


def _content(state: State) -> dict[str, Any]:
    return {
        "epoch": state.epoch,
        "master": _of_replica(state.master),
        "inSync": [_of_replica(member) for member in sorted(state.in_sync)],
    }


def _of_replica(replica: Replica) -> dict[str, Any]:
    return {"id": replica.replica_id, "storeId": replica.store_id}


def _state(content: Mapping[str, Any]) -> State:
    in_sync = frozenset(_replica(member) for member in content["inSync"])
    return State(int(content["epoch"]), _replica(content["master"]), in_sync)


def _replica(content: Mapping[str, Any]) -> Replica:
    return Replica(int(content["id"]), str(content["storeId"]))
