"""Implement ReplicaService, and calls to that service of other replicas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from aerobee.broker.v1 import replica_pb2 as pb

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log.diverged import DivergedFiles
from aerobee_broker.replication.log.handshake import LogDescription
from aerobee_broker.replication.log.status import (
    DamageStatus,
    FollowerStatus,
    MasterStatus,
    ReplicaStatus,
    Role,
)
from aerobee_broker.replication.rpc.stream import description_of, replica_message
from aerobee_broker.store.damage import DamagedRange
from aerobee_broker.store.ship import Chunk
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.caller import Caller
from aerobee_wire import rpcs

STATUS_S = 2.0
NOTE_S = 5.0
READ_S = 10.0


class Promotion(NamedTuple):
    """The result of a promotion.

    `handed_over` is True if the previous master handed over. `was_master` is True if this replica
    was already the master.
    """

    epoch: int
    handed_over: bool = False
    was_master: bool = False


class Member(Protocol):
    """A replica that can become master. Its methods raise MqError and OSError."""

    async def promote(self, *, unclean: bool) -> Promotion: ...

    async def hand_over(self, epoch: int, successor: Replica) -> int:
        """Hand over to `successor`, and return the end of the log."""

    async def note_epoch(self, epoch: int) -> LogDescription: ...


# Read whole records of this replica's log for another replica. Raises MqError.
ReadLog = Callable[[LogDescription, list[DamagedRange]], Awaitable[list[Chunk]]]


class ReplicaRpcs:
    """Handle the RPCs of ReplicaService."""

    def __init__(
        self,
        status: Callable[[], ReplicaStatus],
        member: Callable[[], Member],
        diverged: DivergedFiles,
        read_log: ReadLog,
        worker: Worker,
    ) -> None:
        """Create the handlers. `worker` is the thread that reads the cut-off parts of the log."""
        self._status = status
        self._member = member
        self._diverged = diverged
        self._read_log = read_log
        self._worker = worker

    async def get_replication_status(
        self, request: pb.GetReplicationStatusRequest, call: Call
    ) -> pb.GetReplicationStatusResponse:
        return status_message(self._status())

    async def promote(self, request: pb.PromoteRequest, call: Call) -> pb.PromoteResponse:
        promotion = await self._member().promote(unclean=request.unclean)
        return pb.PromoteResponse(
            epoch=promotion.epoch,
            handed_over=promotion.handed_over,
            was_master=promotion.was_master,
        )

    async def hand_over(self, request: pb.HandOverRequest, call: Call) -> pb.HandOverResponse:
        successor = Replica(request.replica_id, request.store_id)
        end = await self._member().hand_over(request.epoch, successor)
        return pb.HandOverResponse(end_offset=end)

    async def note_epoch(self, request: pb.NoteEpochRequest, call: Call) -> pb.NoteEpochResponse:
        noted = await self._member().note_epoch(request.epoch)
        return pb.NoteEpochResponse(replica=replica_message(noted))

    async def list_diverged(
        self, request: pb.ListDivergedRequest, call: Call
    ) -> pb.ListDivergedResponse:
        found = await self._worker(self._diverged.files)
        return pb.ListDivergedResponse(
            files=[
                pb.DivergedFile(
                    name=file.name, epoch=file.epoch, begin_offset=file.begin, size=file.size
                )
                for file in found
            ]
        )

    async def read_diverged(
        self, request: pb.ReadDivergedRequest, call: Call
    ) -> pb.ReadDivergedResponse:
        read = partial(self._diverged.read, request.name, request.position)
        return pb.ReadDivergedResponse(data=await self._worker(read))

    async def read_log(self, request: pb.ReadLogRequest, call: Call) -> pb.ReadLogResponse:
        ranges = [DamagedRange(each.begin_offset, each.end_offset) for each in request.ranges]
        chunks = await self._read_log(description_of(request.replica), ranges)
        return pb.ReadLogResponse(
            pieces=[
                pb.LogPiece(
                    begin_offset=each.physical_offset, end_offset=each.end, data=bytes(each.data)
                )
                for each in chunks
            ]
        )


class ReplicaCalls:
    """Call other replicas of the group by their "host:port". All methods raise MqError."""

    def __init__(self, caller: Caller, hand_over_s: float) -> None:
        """Create the object. `hand_over_s` is how many seconds a master may take to hand over."""
        self._caller = caller
        self._hand_over_s = hand_over_s

    async def status(self, address: str) -> ReplicaStatus:
        request = pb.GetReplicationStatusRequest()
        answer = await self._caller.call(
            address, rpcs.GET_REPLICATION_STATUS, request, timeout_s=STATUS_S
        )
        return status_of(answer)

    async def hand_over(self, address: str, epoch: int, successor: Replica) -> int:
        request = pb.HandOverRequest(
            epoch=epoch, replica_id=successor.replica_id, store_id=successor.store_id
        )
        answer = await self._caller.call(
            address, rpcs.HAND_OVER, request, timeout_s=self._hand_over_s
        )
        return answer.end_offset

    async def note_epoch(self, address: str, epoch: int) -> LogDescription:
        request = pb.NoteEpochRequest(epoch=epoch)
        answer = await self._caller.call(address, rpcs.NOTE_EPOCH, request, timeout_s=NOTE_S)
        return description_of(answer.replica)

    async def read_log(
        self, address: str, own: LogDescription, ranges: Sequence[DamagedRange]
    ) -> list[Chunk]:
        request = pb.ReadLogRequest(
            replica=replica_message(own),
            ranges=[pb.LogRange(begin_offset=each.begin, end_offset=each.end) for each in ranges],
        )
        answer = await self._caller.call(address, rpcs.READ_LOG, request, timeout_s=READ_S)
        return [Chunk(each.begin_offset, each.data, each.end_offset) for each in answer.pieces]

    async def close(self) -> None:
        await self._caller.close()


# ---- messages ----


def status_message(status: ReplicaStatus) -> pb.GetReplicationStatusResponse:
    return pb.GetReplicationStatusResponse(
        replica=replica_message(status.log),
        address=status.address,
        role=status.role.value,
        reason=status.reason,
        master_address=status.master_address,
        synced_offset=status.synced,
        total_replicas=status.total_replicas,
        elected=status.elected,
        following=status.following,
        copying=status.copying,
        has_its_log=status.has_its_log,
        master_end_offset=status.master_end,
        generation=status.generation,
        learner=status.learner,
        master=None if status.master is None else _master_message(status.master),
        coordinator_reachable=status.coordinator_reachable,
        set_at_coordinator=sorted(status.set_at_coordinator),
        damaged_ranges=status.damage.ranges,
        damaged_bytes=status.damage.bytes,
        repaired_records=status.damage.repaired_records,
        scrubbed_timestamp_ms=status.damage.scrubbed_ms,
    )


def _master_message(master: MasterStatus) -> pb.MasterStatus:
    return pb.MasterStatus(
        synchronous=master.synchronous,
        required_replicas=master.required,
        in_sync=sorted(replica.replica_id for replica in master.in_sync),
        followers=[
            pb.FollowerStatus(
                replica_id=each.replica.replica_id,
                store_id=each.replica.store_id,
                in_sync=each.in_sync,
                connected=each.connected,
                learner=each.learner,
                synced_offset=each.synced,
                lag_bytes=each.lag_bytes,
                behind_ms=each.behind_ms,
                clock_offset_ms=each.clock_offset_ms,
            )
            for each in master.followers
        ],
    )


def status_of(answer: pb.GetReplicationStatusResponse) -> ReplicaStatus:
    """Convert a status. Raises StreamBroken if the answer is not the status of a replica."""
    log = description_of(answer.replica)
    return ReplicaStatus(
        log,
        answer.address,
        Role(answer.role),
        answer.synced_offset,
        answer.total_replicas,
        answer.elected,
        reason=answer.reason,
        master_address=answer.master_address,
        following=answer.following,
        copying=answer.copying,
        has_its_log=answer.has_its_log,
        master_end=answer.master_end_offset,
        generation=answer.generation,
        learner=answer.learner,
        master=_master_of(answer, log.replica) if answer.HasField("master") else None,
        coordinator_reachable=(
            answer.coordinator_reachable if answer.HasField("coordinator_reachable") else None
        ),
        set_at_coordinator=frozenset(answer.set_at_coordinator),
        damage=DamageStatus(
            answer.damaged_ranges,
            answer.damaged_bytes,
            answer.repaired_records,
            answer.scrubbed_timestamp_ms,
        ),
    )


def _master_of(answer: pb.GetReplicationStatusResponse, master: Replica) -> MasterStatus:
    found = answer.master
    followers = tuple(
        FollowerStatus(
            Replica(each.replica_id, each.store_id),
            each.in_sync,
            each.connected,
            each.learner,
            each.synced_offset,
            each.lag_bytes,
            each.behind_ms,
            each.clock_offset_ms if each.HasField("clock_offset_ms") else None,
        )
        for each in found.followers
    )
    members = {each.replica for each in followers if each.in_sync} | {master}
    return MasterStatus(found.synchronous, found.required_replicas, frozenset(members), followers)
