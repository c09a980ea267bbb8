"""Implement ReplicationService: the master's handlers, the slave's calls, and their messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing

from aerobee.broker.v1 import replication_pb2 as pb
from google.protobuf.message import DecodeError

from aerobee_broker.errors import StreamBroken
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync.quorum import Quorum
from aerobee_broker.replication.log.epochs import EpochEntry, EpochHistory
from aerobee_broker.replication.log.handshake import BEFORE_FEATURES, LogDescription
from aerobee_broker.replication.log.snapshot import (
    Snapshot,
    SnapshotAssembly,
    SnapshotEnd,
    SnapshotPiece,
)
from aerobee_broker.replication.log.stream import Hello, LogChunk, Report, Welcome
from aerobee_broker.store.format import Build
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.caller import Caller, Conversation
from aerobee_wire.rpcs import GET_SNAPSHOT, Blob, blob_tag, find_blob, varint

_CHUNK = blob_tag(pb.FollowResponse, "chunk")
_DATA = blob_tag(pb.FollowChunk, "data")


class SlaveCall:
    """Implement `SlaveLink` on the RPC that a slave has called."""

    def __init__(self, requests: AsyncIterator[pb.FollowRequest], call: Call) -> None:
        self._requests = requests
        self._call = call

    async def hello(self) -> Hello | None:
        """Return the first message, or None if the stream ends first. Raises StreamBroken."""
        async for request in self._requests:
            return hello_of(request)
        return None

    async def receive(self) -> Report | None:
        async for request in self._requests:
            if request.WhichOneof("kind") != "report":
                raise StreamBroken("the slave sent a message other than a report")
            report = request.report
            return Report(report.epoch, report.written_offset, report.synced_offset, report.time_ms)
        return None

    async def send(self, message: Welcome | LogChunk) -> None:
        await self._call.write(encoded_response(message))


Serve = Callable[[Hello, SlaveCall], Awaitable[None]]
# Arguments: the epoch of the master, and the physical offset at which the copied log begins.
TakeSnapshot = Callable[[int, int], Awaitable[Snapshot]]


class ReplicationRpcs:
    """Handle the RPCs of ReplicationService. `serve` raises an error if this is not a master."""

    def __init__(self, serve: Serve, snapshot: TakeSnapshot) -> None:
        self._serve = serve
        self._snapshot = snapshot

    async def get_snapshot(self, request: pb.GetSnapshotRequest, call: Call) -> None:
        for piece in (await self._snapshot(request.epoch, request.log_begin)).pieces():
            await call.write(snapshot_response(piece))

    async def follow(self, requests: AsyncIterator[pb.FollowRequest], call: Call) -> None:
        link = SlaveCall(requests, call)
        hello = await link.hello()
        if hello is not None:
            await self._serve(hello, link)


class MasterCall:
    """Implement `MasterLink` on the RPC that this slave has called."""

    def __init__(self, conversation: Conversation[pb.FollowResponse]) -> None:
        self._conversation = conversation

    async def open(self, hello: Hello) -> None:
        slave = replica_message(hello.slave)
        await self._conversation.write(
            pb.FollowRequest(
                hello=pb.FollowHello(
                    slave=slave,
                    from_last_file=hello.slave.from_last_file,
                    learner=hello.learner,
                    process_id=hello.process_id,
                )
            )
        )

    async def receive(self) -> Welcome | LogChunk | None:
        encoded = await self._conversation.read_encoded()
        return None if encoded is None else decoded_response(encoded)

    async def send(self, report: Report) -> None:
        await self._conversation.write(
            pb.FollowRequest(
                report=pb.FollowReport(
                    epoch=report.epoch,
                    written_offset=report.written,
                    synced_offset=report.synced,
                    time_ms=report.time_ms,
                )
            )
        )


async def fetch_snapshot(
    caller: Caller, address: str, epoch: int, log_begin: int, silence_s: float
) -> Snapshot:
    """Fetch a snapshot from the master of this epoch, for a log that begins at `log_begin`.

    Raises StreamBroken, and the errors of the call.
    """
    request = pb.GetSnapshotRequest(epoch=epoch, log_begin=log_begin)
    answers = caller.stream(address, GET_SNAPSHOT, request)

    async def pieces() -> AsyncGenerator[SnapshotPiece | SnapshotEnd, None]:
        async with aclosing(answers):
            while True:
                async with asyncio.timeout(silence_s):
                    answer = await anext(answers, None)
                if answer is None:
                    return
                yield snapshot_piece(answer)

    try:
        async with aclosing(pieces()) as found:
            return await SnapshotAssembly().assemble(found)
    except TimeoutError:
        raise StreamBroken(f"no piece of the snapshot for {silence_s} s") from None


# ---- messages ----


def snapshot_response(piece: SnapshotPiece | SnapshotEnd) -> pb.GetSnapshotResponse:
    if isinstance(piece, SnapshotEnd):
        return pb.GetSnapshotResponse(end=pb.SnapshotEnd(position=piece.position))
    return pb.GetSnapshotResponse(piece=pb.SnapshotPiece(name=piece.name, data=piece.data))


def snapshot_piece(response: pb.GetSnapshotResponse) -> SnapshotPiece | SnapshotEnd:
    """Convert a response of GetSnapshot. Raises StreamBroken."""
    match response.WhichOneof("kind"):
        case "piece":
            return SnapshotPiece(response.piece.name, response.piece.data)
        case "end":
            return SnapshotEnd(response.end.position)
    raise StreamBroken("a message of the snapshot that is neither piece nor end")


def hello_of(request: pb.FollowRequest) -> Hello:
    """Convert the first message of a slave. Raises StreamBroken."""
    if request.WhichOneof("kind") != "hello":
        raise StreamBroken("the slave's first message is not a hello")
    hello = request.hello
    slave = description_of(hello.slave, from_last_file=hello.from_last_file)
    return Hello(slave, hello.learner, hello.process_id)


def encoded_response(message: Welcome | LogChunk) -> bytes:
    """Return a welcome or a chunk as the bytes of a FollowResponse."""
    if isinstance(message, Welcome):
        welcome = pb.FollowWelcome(master=replica_message(message.master), crc32=message.crc)
        return pb.FollowResponse(welcome=welcome).SerializeToString()
    chunk = pb.FollowChunk(
        epoch=message.epoch,
        physical_offset=message.offset,
        crc32=message.crc,
        confirmed_offset=message.confirmed,
        end_offset=message.end,
        lowest_offset=message.lowest,
    )
    # The data is copied once here, not by protobuf, which takes five times as long.
    parts = (chunk.SerializeToString(), _DATA, varint(len(message.data)), message.data)
    return b"".join((_CHUNK, varint(sum(map(len, parts))), *parts))


def decoded_response(encoded: bytes) -> Welcome | LogChunk:
    """Decode a FollowResponse. Raises StreamBroken.

    The data of a chunk is a memoryview of `encoded`, because protobuf would copy it twice.
    """
    try:
        chunk = find_blob(encoded, 0, len(encoded), _CHUNK)
        if chunk is not None:
            return _decoded_chunk(encoded, chunk)
        response = pb.FollowResponse.FromString(encoded)
    except DecodeError as error:
        raise StreamBroken("a message of the master that cannot be read") from error
    if response.WhichOneof("kind") != "welcome":
        raise StreamBroken("a message of the master that is neither welcome nor chunk")
    return Welcome(description_of(response.welcome.master), response.welcome.crc32)


def _decoded_chunk(encoded: bytes, found: Blob) -> LogChunk:
    data = find_blob(encoded, found.begin, found.end, _DATA) or Blob(*[found.end] * 3)
    others = encoded[found.begin : data.at] + encoded[data.end : found.end]
    chunk = pb.FollowChunk.FromString(others)
    return LogChunk(
        chunk.epoch,
        chunk.physical_offset,
        memoryview(encoded)[data.begin : data.end],
        chunk.crc32,
        chunk.confirmed_offset,
        chunk.end_offset,
        chunk.lowest_offset,
    )


def replica_message(described: LogDescription) -> pb.LogReplica:
    return pb.LogReplica(
        protocol_version=described.protocol_version,
        cluster=described.cluster,
        broker_name=described.broker_name,
        replica_id=described.replica.replica_id,
        store_id=described.replica.store_id,
        epoch=described.epoch,
        epochs=[
            pb.LogEpoch(
                epoch=entry.epoch,
                store_id=entry.store_id,
                start_offset=entry.start,
                copies=0 if entry.quorum is None else entry.quorum.copies,
                required=0 if entry.quorum is None else entry.quorum.required,
            )
            for entry in described.history.entries
        ],
        lowest_offset=described.lowest,
        end_offset=described.end,
        confirmed_offset=described.confirmed,
        file_size=described.file_size,
        settings=described.settings,
        build_version=described.build.version,
        features=described.build.features,
        required_features=sorted(described.required),
        settled_epoch=described.history.settled,
        dropped_quorums=[
            pb.LogQuorum(copies=each.copies, required=each.required)
            for each in described.history.dropped
        ],
    )


def description_of(replica: pb.LogReplica, *, from_last_file: bool = False) -> LogDescription:
    entries = tuple(
        EpochEntry(
            entry.epoch,
            entry.store_id,
            entry.start_offset,
            Quorum(entry.copies, entry.required) if entry.required > 0 else None,
        )
        for entry in replica.epochs
    )
    try:
        dropped = tuple(Quorum(each.copies, each.required) for each in replica.dropped_quorums)
        history = EpochHistory(entries, max(replica.epoch, 0), replica.settled_epoch, dropped)
    except ValueError as error:
        raise StreamBroken(f"replica {replica.replica_id} has no history: {error}") from error
    return LogDescription(
        cluster=replica.cluster,
        broker_name=replica.broker_name,
        replica=Replica(replica.replica_id, replica.store_id),
        history=history,
        epoch=replica.epoch,
        lowest=replica.lowest_offset,
        end=replica.end_offset,
        confirmed=replica.confirmed_offset,
        file_size=replica.file_size,
        settings=dict(replica.settings),
        from_last_file=from_last_file,
        protocol_version=replica.protocol_version,
        build=(
            Build(replica.build_version, dict(replica.features))
            if replica.build_version
            else BEFORE_FEATURES
        ),
        required=frozenset(replica.required_features),
    )
