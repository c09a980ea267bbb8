"""Calls from one service to another."""

from __future__ import annotations

import asyncio
import resource
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from aerobee_chassis.rpc import in_flight
from aerobee_chassis.rpc.call import Call, Failure
from aerobee_chassis.rpc.http2 import listener
from aerobee_chassis.rpc.http2.channel import Http2Channel
from aerobee_chassis.rpc.in_flight import MAX_MESSAGE_BYTES
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind
from aerobee_chassis.rpc.transport import CallFailed, Channel, ChannelOptions
from support.chassis import descriptors
from support.clock.polling import until

SAY = "/test.Words/Say"
SETTINGS, PING, GOAWAY = 4, 6, 7  # frames of HTTP/2
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
WORDS = descriptors.service("Words", Say=(False, False), Spell=(False, True))


class Refused(Exception):
    """What a domain raises."""


class Spoilt:
    def SerializeToString(self) -> bytes:
        raise ValueError("spoilt")


def spoilt_message() -> StringValue:
    return cast(StringValue, Spoilt())


class Handlers:
    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.going_on = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def say(self, request: StringValue, call: Call) -> StringValue:
        match request.value:
            case "refused":
                raise Refused("not that")
            case "wait":
                self.arrived.set()
                try:
                    await self.going_on.wait()
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise
        return StringValue(value=request.value.upper())

    async def spell(self, request: StringValue, call: Call) -> StringValue | None:
        try:
            if request.value == "spoilt":
                await call.write_all(
                    [StringValue(value="s"), spoilt_message(), StringValue(value="t")]
                )
            letters = [StringValue(value=letter) for letter in request.value]
            if request.value.isupper():
                await call.write(letters[0].SerializeToString())
                await call.write_all(
                    [letters[1], *(letter.SerializeToString() for letter in letters[2:])]
                )
            else:
                await call.write_all(letters)
            if request.value == "refused":
                raise Refused("not that")
            if request.value == "wait":
                await self.going_on.wait()
            if request.value.startswith("and "):
                await call.write_all([StringValue(value=letter) for letter in request.value])
                if request.value == "and refused":
                    raise Refused("not that")
                if request.value == "and at once":
                    self._background = asyncio.create_task(call.write_all(letters))
                    await asyncio.sleep(0)
                return StringValue(value="last")
            if request.value == "spoilt at last":
                self._background = asyncio.create_task(call.write_all(letters))
                await asyncio.sleep(0)
                return spoilt_message()
            return None
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def failure_of(error: Exception) -> Failure | None:
    if isinstance(error, Refused):
        return Failure("NOT_FOUND", str(error), (("why", "because"),))
    return None


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def grace_s() -> float:
    return 0.0


@pytest.fixture
async def served(handlers: Handlers, grace_s: float) -> AsyncIterator[Server]:
    service = bind(WORDS, handlers)
    server = Server([service], host="127.0.0.1", port=0, failure_of=failure_of, grace_s=grace_s)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def channel(served: Server) -> AsyncIterator[Channel]:
    channel = Http2Channel(served.address)
    yield channel
    await channel.close()


async def say(channel: Channel, text: str, timeout_s: float = 20) -> str:
    request = StringValue(value=text).SerializeToString()
    return StringValue.FromString(await channel.unary(SAY, request, timeout_s)).value


async def spell(channel: Channel, text: str) -> AsyncGenerator[str, None]:
    request = StringValue(value=text).SerializeToString()
    async with aclosing(channel.stream("/test.Words/Spell", request)) as answers:
        async for answer in answers:
            yield StringValue.FromString(answer).value


async def test_a_stream_is_read_to_its_end(channel: Channel) -> None:
    text = "abcdefgh" * 100
    assert "".join([letter async for letter in spell(channel, text)]) == text
    assert [letter async for letter in spell(channel, "")] == []


async def test_bytes_are_sent_as_serialized_messages(channel: Channel) -> None:
    assert [letter async for letter in spell(channel, "SERIALIZED")] == list("SERIALIZED")


async def test_what_a_stream_returns_is_its_last_message(channel: Channel) -> None:
    text = "and more" * 200
    assert [letter async for letter in spell(channel, text)] == [*text, *text, "last"]


async def test_a_failure_follows_messages_that_were_held_back(channel: Channel) -> None:
    letters = spell(channel, "and refused")
    text = "and refused"
    assert [await anext(letters) for _ in text * 2] == list(text * 2)
    with pytest.raises(CallFailed) as caught:
        await anext(letters)
    assert caught.value.status == "NOT_FOUND"


async def test_the_last_message_waits_for_a_write_in_progress(channel: Channel) -> None:
    letters = [letter async for letter in spell(channel, "and at once")]
    assert letters == [*"and at once" * 3, "last"]


async def test_a_failure_ends_a_stream_behind_its_messages(channel: Channel) -> None:
    letters = spell(channel, "refused")
    assert [await anext(letters) for _ in range(7)] == list("refused")
    with pytest.raises(CallFailed) as caught:
        await anext(letters)
    assert (caught.value.status, caught.value.message) == ("NOT_FOUND", "not that")


async def test_a_stream_that_is_left_is_cancelled(channel: Channel, handlers: Handlers) -> None:
    letters = spell(channel, "wait")
    assert [await anext(letters) for _ in range(4)] == list("wait")
    await letters.aclose()
    await asyncio.wait_for(handlers.cancelled.wait(), 10)
    assert await say(channel, "still there") == "STILL THERE"


async def test_closing_a_channel_ends_its_streams(served: Server, handlers: Handlers) -> None:
    channel = Http2Channel(served.address)
    letters = spell(channel, "wait")
    assert [await anext(letters) for _ in range(4)] == list("wait")
    waiting = asyncio.ensure_future(anext(letters))
    await asyncio.sleep(0)
    await channel.close()
    with pytest.raises((CallFailed, asyncio.CancelledError)):
        await waiting
    await asyncio.wait_for(handlers.cancelled.wait(), 10)


async def test_a_call_is_answered(channel: Channel) -> None:
    assert await say(channel, "hello") == "HELLO"
    assert await asyncio.gather(*(say(channel, f"a{n}") for n in range(500))) == [
        f"A{n}" for n in range(500)
    ]


async def test_a_failure_has_status_message_and_trailers(channel: Channel) -> None:
    with pytest.raises(CallFailed) as caught:
        await say(channel, "refused")
    assert (caught.value.status, caught.value.message) == ("NOT_FOUND", "not that")
    assert ("why", "because") in caught.value.trailers


async def test_a_method_that_is_not_there_is_unimplemented(channel: Channel) -> None:
    with pytest.raises(CallFailed) as caught:
        await channel.unary("/test.Words/Sing", b"", 20)
    assert caught.value.status == "UNIMPLEMENTED"


async def test_bytes_that_are_no_message_are_refused_as_such(channel: Channel) -> None:
    with pytest.raises(CallFailed) as caught:
        await channel.unary(SAY, b"\xff", 20)
    assert caught.value.status == "INVALID_ARGUMENT"


async def test_a_message_over_the_limit_is_refused(served: Server) -> None:
    channel = Http2Channel(served.address, ChannelOptions(max_request_bytes=2 * MAX_MESSAGE_BYTES))
    with pytest.raises(CallFailed) as caught:
        await channel.unary(SAY, b"\0" * (MAX_MESSAGE_BYTES + 1), 20)
    assert caught.value.status == "RESOURCE_EXHAUSTED"
    await channel.close()


async def test_a_request_over_the_limit_of_its_channel_is_not_sent(channel: Channel) -> None:
    with pytest.raises(CallFailed) as caught:
        await channel.unary(SAY, b"\0" * (MAX_MESSAGE_BYTES + 1), 20)
    assert caught.value.status == "RESOURCE_EXHAUSTED"
    with pytest.raises(CallFailed) as caught:
        await anext(channel.stream("/test.Words/Spell", b"\0" * (MAX_MESSAGE_BYTES + 1)))
    assert caught.value.status == "RESOURCE_EXHAUSTED"
    assert channel.is_idle


async def test_a_large_message_comes_whole(served: Server) -> None:
    channel = Http2Channel(served.address)
    text = "x" * 8_000_000
    assert await say(channel, text) == text.upper()
    await channel.close()


async def test_streams_and_calls_share_a_channel_without_waiting(
    channel: Channel, handlers: Handlers
) -> None:
    letters = spell(channel, "wait")
    assert [await anext(letters) for _ in range(4)] == list("wait")
    waiting = asyncio.create_task(say(channel, "wait"))
    end = asyncio.ensure_future(anext(letters, "the end"))
    await asyncio.wait_for(handlers.arrived.wait(), 10)
    assert await say(channel, "meanwhile") == "MEANWHILE"
    handlers.going_on.set()
    assert await asyncio.wait_for(waiting, 10) == "WAIT"
    assert await asyncio.wait_for(end, 10) == "the end"
    assert await say(channel, "after") == "AFTER"


async def test_an_idle_loop_with_a_silent_stream_does_not_wake_up(
    channel: Channel, handlers: Handlers
) -> None:
    letters = spell(channel, "wait")
    assert [await anext(letters) for _ in range(4)] == list("wait")

    async def sleeps_for_a_second() -> bool:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        await asyncio.sleep(1)
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before <= 4

    # Other threads, for which the loop waits too, are not there in every second.
    await until(sleeps_for_a_second)
    handlers.going_on.set()
    assert await asyncio.wait_for(anext(letters, "the end"), 10) == "the end"


async def test_a_deadline_ends_the_wait_on_both_sides(channel: Channel, handlers: Handlers) -> None:
    with pytest.raises(CallFailed) as caught:
        await say(channel, "wait", timeout_s=0.2)
    assert caught.value.status == "DEADLINE_EXCEEDED"
    await asyncio.wait_for(handlers.cancelled.wait(), 10)


async def test_a_caller_that_is_cancelled_cancels_its_call(
    channel: Channel, handlers: Handlers
) -> None:
    task = asyncio.create_task(say(channel, "wait"))
    await asyncio.wait_for(handlers.arrived.wait(), 10)
    task.cancel()
    await asyncio.wait_for(handlers.cancelled.wait(), 10)
    assert await say(channel, "still there") == "STILL THERE"


async def test_nobody_at_the_address_is_unavailable() -> None:
    channel = Http2Channel("127.0.0.1:1")
    with pytest.raises(CallFailed) as caught:
        await say(channel, "hello")
    assert caught.value.status == "UNAVAILABLE"
    await channel.close()


async def test_closing_a_channel_ends_its_calls(served: Server, handlers: Handlers) -> None:
    channel = Http2Channel(served.address)
    waiting = [asyncio.create_task(say(channel, "wait")) for _ in range(3)]
    await asyncio.wait_for(handlers.arrived.wait(), 10)
    await channel.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(outcome, CallFailed | asyncio.CancelledError) for outcome in outcomes)


async def test_no_call_begins_on_a_channel_that_closes(served: Server, handlers: Handlers) -> None:
    channel = Http2Channel(served.address)
    waiting = asyncio.create_task(say(channel, "wait"))
    await asyncio.wait_for(handlers.arrived.wait(), 10)
    closing = asyncio.create_task(channel.close())
    begun = []
    while not closing.done():  # at every turn of it
        begun.append(asyncio.create_task(say(channel, "hello")))
        await asyncio.sleep(0)
    late = await asyncio.gather(*begun[1:], say(channel, "hello"), return_exceptions=True)
    assert {outcome.status for outcome in late if isinstance(outcome, CallFailed)} == {"CANCELLED"}
    assert all(isinstance(outcome, CallFailed) for outcome in late)
    with pytest.raises(CallFailed) as caught:
        _ = [letter async for letter in spell(channel, "hello")]
    assert caught.value.status == "CANCELLED"
    await asyncio.gather(waiting, begun[0], return_exceptions=True)
    await channel.close()  # once more: as it was


@pytest.mark.parametrize("grace_s", [30])
async def test_a_stop_waits_for_calls_and_refuses_new_ones(
    served: Server, channel: Channel, handlers: Handlers
) -> None:
    task = asyncio.create_task(say(channel, "wait"))
    await asyncio.wait_for(handlers.arrived.wait(), 10)
    stopping = asyncio.create_task(served.stop())
    await asyncio.sleep(0)
    late = Http2Channel(served.address)
    with pytest.raises(CallFailed) as caught:
        await say(late, "hello")
    assert caught.value.status in ("UNAVAILABLE", "CANCELLED")
    await late.close()
    handlers.going_on.set()
    assert await task == "WAIT"
    await asyncio.wait_for(stopping, 10)


@pytest.mark.parametrize("grace_s", [0.05])
async def test_a_stop_cancels_what_lasts_longer_than_the_grace(
    served: Server, channel: Channel, handlers: Handlers
) -> None:
    task = asyncio.create_task(say(channel, "wait"))
    await asyncio.wait_for(handlers.arrived.wait(), 10)
    await asyncio.wait_for(served.stop(), 10)
    with pytest.raises(CallFailed):
        await task
    assert handlers.cancelled.is_set()


@pytest.mark.parametrize("grace_s", [30])
async def test_a_stop_sends_goaway_without_error_to_idle_clients(served: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(PREFACE)
    stopping: asyncio.Task[None] | None = None
    partings: list[tuple[int, int]] = []  # last stream, error code
    async with asyncio.timeout(30):
        while len(partings) < 2:
            head = await reader.readexactly(9)
            body = await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags = head[3], head[4]
            if kind == SETTINGS and stopping is None:  # the server knows this connection
                stopping = asyncio.create_task(served.stop())
            elif kind == PING and not flags:
                writer.write(head[:4] + b"\x01" + head[5:] + body)
            elif kind == GOAWAY:
                partings.append(struct.unpack_from(">II", body))
        writer.close()
        assert stopping is not None
        await stopping
    # First that it will go, then the last stream that it has heard of.
    assert partings == [(0x7FFF_FFFF, 0), (0, 0)]


@pytest.mark.parametrize("grace_s", [600])
async def test_cancelled_calls_leave_nothing_behind(
    served: Server, channel: Channel, handlers: Handlers
) -> None:
    async def read(text: str) -> list[str]:
        return [letter async for letter in spell(channel, text)]

    for turns in range(60):
        several = [asyncio.create_task(say(channel, "wait")) for _ in range(5)]
        several += [asyncio.create_task(say(channel, "hello")) for _ in range(5)]
        reading = [asyncio.create_task(read(text)) for text in ("wait", "abc" * 50)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in (*several, *reading):
            task.cancel()
        await asyncio.gather(*several, *reading, return_exceptions=True)
    # Whatever it still held as in progress, it would wait for.
    await asyncio.wait_for(served.stop(), 30)


async def test_two_thousand_calls_wait_at_once(
    channel: Channel, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "WAIT_S", 60.0)  # a slow machine reads them in more than 2 s
    assert await say(channel, "first") == "FIRST"  # requests are known to be small from here on
    tasks = [asyncio.create_task(say(channel, "wait", 60)) for _ in range(2_000)]
    await asyncio.wait_for(handlers.arrived.wait(), 10)
    assert await say(channel, "hello") == "HELLO"
    handlers.going_on.set()
    assert set(await asyncio.gather(*tasks)) == {"WAIT"}


async def test_a_message_that_does_not_serialize_fails_its_call(channel: Channel) -> None:
    async with aclosing(spell(channel, "spoilt")) as letters:
        # What stood before it may have left.
        with pytest.raises(CallFailed) as caught:
            _ = [letter async for letter in letters]
    assert caught.value.status == "INTERNAL"


async def test_a_last_message_that_does_not_serialize_ends_its_call(channel: Channel) -> None:
    async with asyncio.timeout(10), aclosing(spell(channel, "spoilt at last")) as letters:
        with pytest.raises(CallFailed) as caught:
            _ = [letter async for letter in letters]
    assert caught.value.status in ("INTERNAL", "UNKNOWN")


async def test_the_connection_of_a_silent_peer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert listener.KEEPALIVE_S + listener.PING_TIMEOUT_S <= 90
    monkeypatch.setattr(listener, "KEEPALIVE_S", 0.05)
    monkeypatch.setattr(listener, "PING_TIMEOUT_S", 0.05)
    server = Server([], host="127.0.0.1", port=0, failure_of=failure_of, grace_s=0)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(PREFACE)
    async with asyncio.timeout(30):
        await reader.read()  # until it closes
    writer.close()
    await server.stop()
