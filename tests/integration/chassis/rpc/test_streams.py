"""Streams from the caller, and both ways, over the chassis' real transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import structlog
from google.protobuf.wrappers_pb2 import StringValue

from aerobee_chassis.rpc.call import Call, Failure
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind
from support.chassis import descriptors

WRITERS, LINES = 8, 50
STREAMS = descriptors.service("Streams", Collect=(True, False), Talk=(True, True))


class Refused(Exception):
    """What a domain raises."""


class Handlers:
    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def collect(self, requests: AsyncIterator[StringValue], call: Call) -> StringValue:
        return StringValue(value=" ".join([request.value async for request in requests]))

    async def talk(self, requests: AsyncIterator[StringValue], call: Call) -> None:
        try:
            async for request in requests:
                match request.value:
                    case "refused":
                        raise Refused("enough")
                    case "all at once":
                        await asyncio.gather(*(self._lines(call, n) for n in range(WRITERS)))
                    case text:
                        await call.write(StringValue(value=text.upper()))
        finally:
            self.ended.set()

    async def _lines(self, call: Call, writer: int) -> None:
        for line in range(LINES):
            await call.write(StringValue(value=f"{writer}:{line}"))


def failure_of(error: Exception) -> Failure | None:
    return Failure("INVALID_ARGUMENT", str(error)) if isinstance(error, Refused) else None


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
async def channel(handlers: Handlers) -> AsyncIterator[grpc.aio.Channel]:
    service = bind(STREAMS, handlers)
    server = Server([service], host="127.0.0.1", port=0, failure_of=failure_of, grace_s=0)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel
    await server.stop()


def talk(channel: grpc.aio.Channel) -> Any:
    method: Any = channel.stream_stream(
        "/test.Streams/Talk",
        request_serializer=StringValue.SerializeToString,
        response_deserializer=StringValue.FromString,
    )
    return method()


async def test_a_stream_of_requests_is_answered_once(channel: grpc.aio.Channel) -> None:
    collect: Any = channel.stream_unary(
        "/test.Streams/Collect",
        request_serializer=StringValue.SerializeToString,
        response_deserializer=StringValue.FromString,
    )
    answer = await collect(iter([StringValue(value="a"), StringValue(value="b")]))
    assert answer.value == "a b"


async def test_headers_come_before_the_first_request(channel: grpc.aio.Channel) -> None:
    call = talk(channel)
    await asyncio.wait_for(call.initial_metadata(), 10)
    await call.write(StringValue(value="late"))
    assert (await anext(aiter(call))).value == "LATE"
    await call.done_writing()
    assert [answer async for answer in call] == []


async def test_many_writers_lose_no_message(channel: grpc.aio.Channel) -> None:
    call = talk(channel)
    await call.write(StringValue(value="all at once"))
    await call.done_writing()
    lines = [answer.value async for answer in call]
    assert sorted(lines) == sorted(f"{w}:{n}" for w in range(WRITERS) for n in range(LINES))
    for writer in range(WRITERS):
        own = [line for line in lines if line.startswith(f"{writer}:")]
        assert own == [f"{writer}:{n}" for n in range(LINES)]


async def test_an_error_of_the_domain_ends_the_stream(channel: grpc.aio.Channel) -> None:
    call = talk(channel)
    await call.write(StringValue(value="refused"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "enough"


async def test_unreadable_request_ends_the_stream(channel: grpc.aio.Channel) -> None:
    without_serializer: Any = channel
    call = without_serializer.stream_stream("/test.Streams/Talk")(iter([b"\xff"]))
    with structlog.testing.capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(call))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not logs


async def test_the_handler_ends_when_its_caller_leaves(
    channel: grpc.aio.Channel, handlers: Handlers
) -> None:
    call = talk(channel)
    await call.write(StringValue(value="hello"))
    await call.read()
    call.cancel()
    await asyncio.wait_for(handlers.ended.wait(), 10)
    assert handlers.ended.is_set()
