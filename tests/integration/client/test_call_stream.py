"""The client's calls over a stream, at servers with and without such streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aerobee.broker.v1 import message_pb2 as pb

from aerobee_broker.errors import TopicNotExist
from aerobee_broker.rpc.frames import FRAMES
from aerobee_chassis.rpc.call import Call, Failure
from aerobee_chassis.rpc.multiplexer import Frames, MultiplexedCall
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind_part
from aerobee_client.cluster.transport import STREAMED, STREAMED_BYTES, Channels, GrpcTransport
from aerobee_client.errors import BrokerUnreachable, RequestTimeout
from aerobee_wire import rpcs
from aerobee_wire.status import MqError, grpc_status_of, trailers_of
from support.clock.polling import until

MESSAGES = pb.DESCRIPTOR.services_by_name["MessageService"]


class Handlers:
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.cancelled = asyncio.Event()

    async def send(self, request: pb.SendRequest, call: Call) -> pb.SendResponse:
        self.calls.append(call)
        if request.producer_group == "refused":
            raise TopicNotExist("orders")
        if request.producer_group == "late":
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        return pb.SendResponse(broker_name=request.producer_group)

    @property
    def streamed(self) -> list[bool]:
        return [isinstance(call, MultiplexedCall) for call in self.calls]


def failure_of(error: Exception) -> Failure | None:
    assert isinstance(error, MqError)
    return Failure(grpc_status_of(error.code), error.message, trailers_of(error))


@asynccontextmanager
async def serving(
    handlers: Handlers, frames: Frames | None = FRAMES, port: int = 0
) -> AsyncIterator[Server]:
    server = Server(
        [bind_part(MESSAGES, handlers)],
        host="127.0.0.1",
        port=port,
        failure_of=failure_of,
        grace_s=0,
        frames=frames,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
async def transport() -> AsyncIterator[GrpcTransport]:
    transport = GrpcTransport(streamed=STREAMED)
    yield transport
    await transport.close()


async def send(
    transport: GrpcTransport, server: Server, name: str = "a", timeout_s: float = 60, **fields: Any
) -> str:
    request = pb.SendRequest(producer_group=name, **fields)
    response = await transport.call(server.address, rpcs.SEND, request, timeout_s=timeout_s)
    return response.broker_name


async def test_sends_use_a_stream(transport: GrpcTransport, handlers: Handlers) -> None:
    async with serving(handlers) as server:
        sends = (send(transport, server, name) for name in "abc")
        assert await asyncio.gather(*sends) == ["a", "b", "c"]
    assert handlers.streamed == [True] * 3


async def test_a_large_request_is_a_call_of_its_own(
    transport: GrpcTransport, handlers: Handlers
) -> None:
    large = [pb.Message(topic="t", body=bytes(STREAMED_BYTES))]
    async with serving(handlers) as server:
        assert await send(transport, server, messages=large) == "a"
    assert handlers.streamed == [False]


async def test_a_server_without_streams_gets_calls_of_their_own(
    transport: GrpcTransport, handlers: Handlers
) -> None:
    async with serving(handlers, frames=None) as server:
        assert [await send(transport, server, name) for name in "ab"] == ["a", "b"]
    assert handlers.streamed == [False] * 2


async def test_a_server_without_streams_is_known_in_each_order_of_events(
    handlers: Handlers,
) -> None:
    """grpc.aio hides the status of a call that ends during a write."""
    async with serving(handlers, frames=None) as server:
        transport = GrpcTransport(streamed=STREAMED)
        groups = [f"{number} {'a' * 1_000}" for number in range(5)]
        try:
            for _ in range(30):
                calls = (
                    transport.call(
                        server.address,
                        rpcs.SEND,
                        pb.SendRequest(producer_group=group),
                        timeout_s=60,
                    )
                    for group in groups
                )
                answers = await asyncio.gather(*calls)
                assert [answer.broker_name for answer in answers] == groups
                await transport.close()
                transport = GrpcTransport(streamed=STREAMED)
        finally:
            await transport.close()


async def test_errors_are_those_of_calls_of_their_own(
    transport: GrpcTransport, handlers: Handlers
) -> None:
    found = []
    for frames in (FRAMES, None):
        async with serving(handlers, frames) as server:
            with pytest.raises(MqError) as caught:
                await send(transport, server, "refused")
            found.append((caught.value.code, caught.value.message, caught.value.retryable))
    assert found[0] == found[1]
    assert handlers.streamed == [True, False]


async def test_a_late_answer_is_a_timeout_and_ends_the_handler(
    transport: GrpcTransport, handlers: Handlers
) -> None:
    async with serving(handlers) as server:
        assert await send(transport, server) == "a"
        with pytest.raises(RequestTimeout) as caught:
            await send(transport, server, "late", timeout_s=0.2)
        assert server.address in caught.value.message
        await asyncio.wait_for(handlers.cancelled.wait(), 60)
        assert await send(transport, server, "b") == "b"


async def test_a_server_that_restarts_is_reached_again(
    transport: GrpcTransport, handlers: Handlers
) -> None:
    async with serving(handlers) as first:
        await send(transport, first)
    with pytest.raises(BrokerUnreachable):
        await send(transport, first)
    async with serving(handlers, port=first.port) as second:
        again = await until(lambda: send(transport, second, "b"), retry_on=(BrokerUnreachable,))
        assert again == "b"
    assert handlers.streamed == [True] * 2


async def test_each_call_has_its_own_metadata(handlers: Handlers) -> None:
    def metadata(path: str, request: bytes) -> tuple[tuple[str, str], ...]:
        return (("signature", f"{path} {len(request)}"),)

    transport = GrpcTransport(Channels(metadata=metadata), streamed=STREAMED)
    async with serving(handlers) as server:
        await asyncio.gather(send(transport, server, "a"), send(transport, server, "bcd"))
        signatures = sorted(call.metadata["signature"] for call in handlers.calls)
        assert signatures == [f"{rpcs.SEND.path} 3", f"{rpcs.SEND.path} 5"]
        await transport.close()


async def test_a_dropped_address_fails_the_calls_in_progress(
    transport: GrpcTransport, handlers: Handlers
) -> None:
    async with serving(handlers) as server:
        late = asyncio.create_task(send(transport, server, "late"))
        await until(lambda: len(handlers.calls) == 1)
        await transport.drop(server.address)
        with pytest.raises(BrokerUnreachable):
            await late
        assert await send(transport, server, "b") == "b"
