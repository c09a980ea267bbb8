"""Implement SearchService: SearchMessages, FindMessage.

Codes: TOPIC_NOT_EXIST, NO_PERMISSION (the topic is not readable), INVALID_PARAMETER,
SUBSCRIPTION_PARSE_FAILED, FLOW_CONTROL (too many searches run), ILLEGAL_OPERATION (no index).

Apache's server has no such RPC: its console pulls all messages and filters them itself.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from aerobee.broker.v1 import search_pb2 as pb

from aerobee_broker.delivery.search.copies import Copies
from aerobee_broker.delivery.search.matching import Conditions
from aerobee_broker.delivery.search.search import QueueRange, Request, Search, Searches, Stop
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.filter.filter import Filter
from aerobee_broker.rpc import convert
from aerobee_chassis.rpc.call import Call

PROGRESS_S = 1.0  # the longest time without a response while the search runs
_EVERYTHING = Filter("TAG", "*")
_FOREVER_MS = (1 << 63) - 1
_REASONS = {
    Stop.COMPLETE: pb.SearchEnd.COMPLETE,
    Stop.MESSAGE_LIMIT: pb.SearchEnd.MESSAGE_LIMIT,
    Stop.BYTE_LIMIT: pb.SearchEnd.BYTE_LIMIT,
    Stop.SCAN_LIMIT: pb.SearchEnd.SCAN_LIMIT,
    Stop.BROKER_STOPS: pb.SearchEnd.BROKER_STOPS,
}


class SearchRpcs:
    def __init__(self, searches: Searches, copies: Copies) -> None:
        self._searches = searches
        self._copies = copies

    async def find_message(
        self, request: pb.FindMessageRequest, call: Call
    ) -> pb.FindMessageResponse:
        found = await self._copies.find(request.unique_message_id)
        return pb.FindMessageResponse(
            copies=map(convert.stored_message, found.records),
            damaged=[error.message for error in found.damaged],
            truncated=found.truncated,
        )

    async def search_messages(
        self, request: pb.SearchMessagesRequest, call: Call
    ) -> pb.SearchMessagesResponse:
        search = self._searches.search(_request(request))
        loop = asyncio.get_running_loop()
        written_s = loop.time()
        async with aclosing(search.run()) as steps:
            async for records in steps:
                if records or loop.time() - written_s >= PROGRESS_S:
                    messages = map(convert.stored_message, records)
                    await call.write(
                        pb.SearchMessagesResponse(messages=messages, progress=_progress(search))
                    )
                    written_s = loop.time()
        return pb.SearchMessagesResponse(progress=_progress(search), end=_end(search))


def _request(request: pb.SearchMessagesRequest) -> Request:
    for name in ("begin_timestamp_ms", "end_timestamp_ms"):
        if getattr(request, name) < 0:
            raise InvalidParameter(f"invalid {name} {getattr(request, name)}: use 0 or more")
    given = request.HasField("subscription")
    return Request(
        request.topic,
        Conditions(
            convert.filter_of(request.subscription) if given else _EVERYTHING,
            key=request.key,
            text=request.text.encode(),
            begin_ms=request.begin_timestamp_ms,
            end_ms=request.end_timestamp_ms or _FOREVER_MS,
        ),
        queues={
            queue.queue_id: QueueRange(
                queue.begin_offset, queue.end_offset if queue.HasField("end_offset") else None
            )
            for queue in request.queues
        },
        newest_first=request.newest_first,
        max_messages=request.max_messages,
        max_bytes=request.max_bytes,
        max_scanned=request.max_scanned,
        follow=request.follow,
    )


def _progress(search: Search) -> pb.SearchProgress:
    return pb.SearchProgress(
        scanned=search.scanned,
        matched=search.matched,
        unreadable=search.unreadable,
        remaining=search.remaining,
    )


def _end(search: Search) -> pb.SearchEnd:
    assert search.stop is not None
    return pb.SearchEnd(
        reason=_REASONS[search.stop],
        positions=[
            pb.SearchPosition(
                queue_id=position.queue_id,
                begin_offset=position.begin,
                end_offset=position.end,
                queue_end=position.queue_end,
            )
            for position in search.positions()
        ],
    )
