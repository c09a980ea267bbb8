"""Calls with streams both ways from one service to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from aerobee_chassis.rpc.call import Call, Failure
from aerobee_chassis.rpc.caller import Caller
from aerobee_chassis.rpc.http2.channel import Http2Channel
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind
from aerobee_chassis.rpc.transport import CallFailed, Channel, Exchange
from support.chassis import descriptors

TALK, SAY = "/test.Exchanges/Talk", "/test.Exchanges/Say"
EXCHANGES = descriptors.service("Exchanges", Talk=(True, True), Say=(False, False))
LARGE, MANY = "x" * (256 * 1024), 200  # more than gRPC's windows and buffers hold


class Refused(Exception):
    """What a domain raises."""


class Handlers:
    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.going_on = asyncio.Event()
        self.read: list[str] = []

    async def say(self, request: StringValue, call: Call) -> StringValue:
        return request

    async def talk(self, requests: AsyncIterator[StringValue], call: Call) -> StringValue | None:
        try:
            async for request in requests:
                self.read.append(request.value)
                match request.value:
                    case "refuse":
                        raise Refused("enough")
                    case "end":
                        return None
                    case "wait":
                        await self.going_on.wait()
                    case "many":
                        for number in range(MANY):
                            await call.write(StringValue(value=f"{number} {LARGE}"))
                    case text if text != LARGE:
                        await call.write(StringValue(value=text.upper()))
            return StringValue(value=f"read {len(self.read)}")
        finally:
            self.ended.set()


def failure_of(error: Exception) -> Failure | None:
    if isinstance(error, Refused):
        return Failure("NOT_FOUND", str(error), (("why", "because"),))
    return None


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
async def served(handlers: Handlers) -> AsyncIterator[Server]:
    service = bind(EXCHANGES, handlers)
    server = Server([service], host="127.0.0.1", port=0, failure_of=failure_of, grace_s=0)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def channel(served: Server) -> AsyncIterator[Channel]:
    channel = Http2Channel(served.address)
    yield channel
    await channel.close()


async def write(exchange: Exchange, text: str) -> None:
    await exchange.write(StringValue(value=text).SerializeToString())


async def read(exchange: Exchange) -> str | None:
    message = await asyncio.wait_for(exchange.read(), 60)
    return None if message is None else StringValue.FromString(message).value


async def test_both_sides_write_when_they_like(channel: Channel) -> None:
    async with channel.exchange(TALK) as exchange:
        for text in ("a", "b"):
            await write(exchange, text)
        assert [await read(exchange), await read(exchange)] == ["A", "B"]
        await write(exchange, "c")
        assert await read(exchange) == "C"


async def test_half_closed_it_is_answered_to_the_end(channel: Channel) -> None:
    async with channel.exchange(TALK) as exchange:
        await write(exchange, "a")
        await exchange.done_writing()
        assert [await read(exchange) for _ in range(4)] == ["A", "read 1", None, None]


async def test_an_exchange_without_a_message_is_answered_too(channel: Channel) -> None:
    async with channel.exchange(TALK) as exchange:
        await exchange.done_writing()
        assert await read(exchange) == "read 0"


async def test_the_handler_ends_when_the_block_of_its_caller_does(
    channel: Channel, handlers: Handlers
) -> None:
    async with channel.exchange(TALK) as exchange:
        await write(exchange, "a")
        assert await read(exchange) == "A"
    await asyncio.wait_for(handlers.ended.wait(), 60)
    assert handlers.read == ["a"]


async def test_a_read_that_is_cancelled_ends_the_call(channel: Channel, handlers: Handlers) -> None:
    async with channel.exchange(TALK) as exchange:
        await write(exchange, "a")
        assert await read(exchange) == "A"
        reading = asyncio.create_task(exchange.read())
        await asyncio.sleep(0)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        await asyncio.wait_for(handlers.ended.wait(), 60)
        with pytest.raises(CallFailed) as caught:
            await write(exchange, "b")
        assert caught.value.status == "CANCELLED"


async def test_a_failure_is_raised_by_reads_and_writes(channel: Channel) -> None:
    async with channel.exchange(TALK) as exchange:
        await write(exchange, "refuse")
        with pytest.raises(CallFailed) as caught:
            await read(exchange)
        assert (caught.value.status, caught.value.message) == ("NOT_FOUND", "enough")
        assert ("why", "because") in caught.value.trailers
        with pytest.raises(CallFailed) as caught:
            await write(exchange, "b")
        assert caught.value.status == "NOT_FOUND"
        await exchange.done_writing()


async def test_a_write_after_the_end_of_the_call_fails(channel: Channel) -> None:
    async with channel.exchange(TALK) as exchange:
        await write(exchange, "end")
        assert await read(exchange) is None
        with pytest.raises(CallFailed) as caught:
            await write(exchange, "b")
        assert caught.value.status == "UNAVAILABLE"


async def test_who_writes_waits_for_who_does_not_read(channel: Channel, handlers: Handlers) -> None:
    written = 0

    async def write_all(exchange: Exchange) -> None:
        nonlocal written
        for _ in range(MANY):
            await write(exchange, LARGE)
            written += 1
        await exchange.done_writing()

    async with channel.exchange(TALK) as exchange:
        await write(exchange, "wait")
        writing = asyncio.create_task(write_all(exchange))
        unchanged, before = 0, -1
        while unchanged < 20:  # calls beside it pass all the while
            await channel.unary(SAY, b"", 60)
            unchanged, before = (unchanged + 1 if written == before else 0), written
        assert written < MANY
        handlers.going_on.set()
        assert await read(exchange) == f"read {MANY + 1}"
        await writing
    assert written == MANY


async def test_a_handler_waits_for_a_caller_that_does_not_read(
    channel: Channel, handlers: Handlers
) -> None:
    async with channel.exchange(TALK) as exchange:
        await write(exchange, "many")
        await exchange.done_writing()
        for _ in range(20):
            await channel.unary(SAY, b"", 60)
        assert not handlers.ended.is_set()
        for number in range(MANY):
            assert (await read(exchange) or "").startswith(f"{number} ")
        assert await read(exchange) == "read 1"


async def test_closing_the_channel_ends_it(served: Server, handlers: Handlers) -> None:
    channel = Http2Channel(served.address)
    async with channel.exchange(TALK) as exchange:
        await write(exchange, "a")
        assert await read(exchange) == "A"
        await channel.close()
        with pytest.raises(CallFailed) as caught:
            await read(exchange)
        assert caught.value.status == "CANCELLED"
    await asyncio.wait_for(handlers.ended.wait(), 60)
    with pytest.raises(CallFailed) as caught:
        async with channel.exchange(TALK) as exchange:
            await write(exchange, "b")
    assert caught.value.status == "CANCELLED"


async def test_a_server_that_is_severed_ends_it(served: Server, channel: Channel) -> None:
    async with channel.exchange(TALK) as exchange:
        await write(exchange, "a")
        assert await read(exchange) == "A"
        await served.sever()
        with pytest.raises(CallFailed):
            await read(exchange)


@dataclass(frozen=True)
class Rpc:
    path: str
    response: type[StringValue] = StringValue


async def test_a_caller_exchanges_messages_and_makes_errors_of_the_domain(served: Server) -> None:
    caller = Caller(lambda address, failure: LookupError(f"{address} {failure.status}"))
    async with caller.exchange(served.address, Rpc(TALK)) as conversation:
        await conversation.write(StringValue(value="a"))
        answer = await conversation.read()
        assert answer is not None and answer.value == "A"
        await conversation.write(StringValue(value="refuse"))
        with pytest.raises(LookupError) as caught:
            await conversation.read()
        assert str(caught.value) == f"{served.address} NOT_FOUND"
        await conversation.done_writing()
    await caller.close()
