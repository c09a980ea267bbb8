"""Implement the RPCs that a broker answers from its store alone, as master or slave.

These are Pull, GetMessage and QueryMessages of MessageService, and GetQueueOffsets and SearchOffset
of OffsetService. `messages.py` and `offsets.py` list their codes.
"""

from __future__ import annotations

from typing import Protocol

from aerobee.broker.v1 import message_pb2 as pb
from aerobee.broker.v1 import offset_pb2

from aerobee_broker.delivery.pull.offsets import QueueQueries
from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.errors import InvalidParameter, MessageCorrupted
from aerobee_broker.rpc import convert
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import ReadResult
from aerobee_chassis.rpc.call import Call
from aerobee_wire.message_id import parse_offset_message_id
from aerobee_wire.record import iter_records

DEFAULT_QUERIED = 32  # messages in an answer of QueryMessages
MAX_QUERIED = 64
_FOREVER_MS = (1 << 63) - 1


class Pulls(Protocol):
    """Answer pulls; a master and a slave have different implementations."""

    async def pull(self, request: PullRequest) -> tuple[ReadResult, int]: ...


class LookupRpcs:
    """Look up messages by their position in the log, which is the same on all replicas."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    async def get_message(self, request: pb.GetMessageRequest, call: Call) -> pb.GetMessageResponse:
        match request.WhichOneof("id"):
            case "physical_offset":
                record = self._store.get(request.physical_offset)
            case "offset_message_id":
                # The host in the id is ignored, because the broker may have another address now.
                _, physical_offset = parse_offset_message_id(request.offset_message_id)
                record = self._store.get(physical_offset)
            case _:
                raise InvalidParameter("give a physical_offset or an offset_message_id")
        return pb.GetMessageResponse(message=convert.stored_message(record))


class ReadRpcs:
    def __init__(self, pull: Pulls, store: MessageStore) -> None:
        self._pull = pull
        self._store = store

    async def pull(self, request: pb.PullRequest, call: Call) -> pb.PullResponse:
        result, suggested = await self._pull.pull(convert.pull(request))
        response = convert.pull_response(result, suggested)
        if request.plain:
            records = iter_records(result.records, check_crc=False)  # the store has checked them
            response.messages.extend(map(convert.stored_message, records))
            response.ClearField("records")
        return response

    async def query_messages(
        self, request: pb.QueryMessagesRequest, call: Call
    ) -> pb.QueryMessagesResponse:
        if not request.topic or not request.key:
            raise InvalidParameter("give a topic and a key")
        if request.max_messages < 0:
            raise InvalidParameter(f"max_messages {request.max_messages} is below 0")
        damaged: list[MessageCorrupted] = []
        records = self._store.query(
            request.topic,
            request.key,
            max_messages=min(request.max_messages or DEFAULT_QUERIED, MAX_QUERIED),
            begin_ms=request.begin_timestamp_ms,
            end_ms=request.end_timestamp_ms or _FOREVER_MS,
            unique=request.unique,
            damaged=damaged,
        )
        return pb.QueryMessagesResponse(
            messages=map(convert.stored_message, records),
            damaged=[error.message for error in damaged],
        )


class QueueRpcs:
    def __init__(self, queries: QueueQueries) -> None:
        self._queries = queries

    async def get_queue_offsets(
        self, request: offset_pb2.GetQueueOffsetsRequest, call: Call
    ) -> offset_pb2.GetQueueOffsetsResponse:
        found = self._queries.bounds(
            request.topic,
            list(request.queue_ids),
            with_timestamps=not request.without_timestamps,
        )
        return offset_pb2.GetQueueOffsetsResponse(
            queues=[
                offset_pb2.QueueBounds(
                    queue_id=queue.queue_id,
                    min_offset=queue.min_offset,
                    max_offset=queue.max_offset,
                    earliest_timestamp_ms=queue.earliest_timestamp_ms,
                    latest_timestamp_ms=queue.latest_timestamp_ms,
                )
                for queue in found.queues
            ],
            read_queue_count=found.read_queue_count,
            permission=found.permission,
        )

    async def search_offset(
        self, request: offset_pb2.SearchOffsetRequest, call: Call
    ) -> offset_pb2.SearchOffsetResponse:
        offset = self._queries.search(
            request.topic,
            request.queue_id,
            request.timestamp_ms,
            upper=request.boundary == offset_pb2.SearchOffsetRequest.UPPER,
        )
        return offset_pb2.SearchOffsetResponse(queue_offset=offset)
