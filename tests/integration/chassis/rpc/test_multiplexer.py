"""Unary calls over one stream, over each transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aerobee.call.v1 import call_pb2 as pb
from google.protobuf.wrappers_pb2 import StringValue

from aerobee_broker.rpc.frames import FRAMES
from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc import in_flight as in_flight_module
from aerobee_chassis.rpc import multiplexer
from aerobee_chassis.rpc.access import Access
from aerobee_chassis.rpc.call import Call, Failure
from aerobee_chassis.rpc.in_flight import InFlight
from aerobee_chassis.rpc.loops import open_channel
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind
from aerobee_chassis.rpc.transport import CallFailed, Exchange
from aerobee_wire.access.caller import Caller
from aerobee_wire.rpcs import MULTIPLEX
from aerobee_wire.status import Code, MqError
from support.chassis import descriptors
from support.clock.polling import until

SAY, WATCH = "/test.Multiplexed/Say", "/test.Multiplexed/Watch"
MULTIPLEXED = descriptors.service("Multiplexed", Say=(False, False), Watch=(False, True))
LIMIT = 64 * 1024 * 1024


class Refused(Exception):
    """An error of a handler."""


class Handlers:
    def __init__(self) -> None:
        self.running: list[str] = []
        self.cancelled: list[str] = []
        self.calls: list[Call] = []
        self.going_on = asyncio.Event()

    async def say(self, request: StringValue, call: Call) -> StringValue:
        text = request.value
        self.calls.append(call)
        self.running.append(text)
        try:
            match text:
                case "refuse":
                    raise Refused("enough")
                case "end myself":
                    raise asyncio.CancelledError
                case "write":
                    await call.write(request)
                case _ if text.startswith("wait"):
                    await self.going_on.wait()
        except asyncio.CancelledError:
            self.cancelled.append(text)
            raise
        finally:
            self.running.remove(text)
        return StringValue(value=text.upper())

    async def watch(self, request: StringValue, call: Call) -> None:
        await call.write(request)


class Policy:
    """Admits the callers of each RPC except `closed`."""

    def __init__(self, closed: str) -> None:
        self.closed = closed

    def missing(self, paths: Iterable[str]) -> tuple[str, ...]:
        return ()

    def always_rejects(self, path: str) -> bool:
        return False

    def admit(self, caller: Caller, path: str) -> None:
        if path == self.closed:
            raise MqError(Code.NO_PERMISSION, f"{path} is closed")

    def authorize(self, caller: Caller, path: str, request: Any) -> None:
        if isinstance(request, StringValue) and request.value == "secret":
            raise MqError(Code.NO_PERMISSION, "the request is secret")


def failure_of(error: Exception) -> Failure | None:
    match error:
        case Refused():
            return Failure("NOT_FOUND", str(error), (("why", "because"),))
        case MqError():
            return Failure("INVALID_ARGUMENT", error.message)
    return None


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def in_flight() -> InFlight:
    return InFlight(LIMIT)


@asynccontextmanager
async def serving(handlers: Handlers, **settings: Any) -> AsyncIterator[Server]:
    server = Server(
        [bind(MULTIPLEXED, handlers)],
        host="127.0.0.1",
        port=0,
        failure_of=failure_of,
        grace_s=60,
        frames=FRAMES,
        **settings,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


class Stream:
    """The caller's end of a stream."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    async def send(self, number: int, text: str, path: str = SAY, **fields: Any) -> None:
        request = StringValue(value=text).SerializeToString()
        await self.write(pb.CallFrame(id=number, path=path, request=request, **fields))

    async def write(self, frame: pb.CallFrame) -> None:
        await self.exchange.write(frame.SerializeToString())

    async def answer(self) -> pb.AnswerFrame | None:
        data = await asyncio.wait_for(self.exchange.read(), 60)
        return None if data is None else pb.AnswerFrame.FromString(data)

    async def said(self) -> tuple[int, str]:
        answer = await self.answer()
        assert answer is not None and not answer.HasField("failure")
        return answer.id, StringValue.FromString(answer.response).value

    async def failed(self) -> tuple[int, pb.CallFailure]:
        answer = await self.answer()
        assert answer is not None and answer.HasField("failure") and not answer.response
        return answer.id, answer.failure


@asynccontextmanager
async def streaming(server: Server) -> AsyncIterator[Stream]:
    channel = open_channel(server.address, ())
    try:
        async with channel.exchange(MULTIPLEX.path) as exchange:
            yield Stream(exchange)
    finally:
        await channel.close()


@pytest.fixture
async def server(handlers: Handlers, in_flight: InFlight) -> AsyncIterator[Server]:
    async with serving(handlers, in_flight=in_flight) as server:
        yield server


@pytest.fixture
async def stream(server: Server) -> AsyncIterator[Stream]:
    async with streaming(server) as stream:
        yield stream


async def test_calls_of_a_stream_do_not_wait_for_each_other(
    stream: Stream, handlers: Handlers, in_flight: InFlight
) -> None:
    await stream.send(7, "wait")
    await stream.send(3, "b")
    assert await stream.said() == (3, "B")
    handlers.going_on.set()
    assert await stream.said() == (7, "WAIT")
    await until(lambda: in_flight.requests == in_flight.answers == 0)


async def test_a_call_has_its_own_metadata_and_deadline(stream: Stream, handlers: Handlers) -> None:
    await stream.send(1, "a", timeout_ms=60_000, metadata={"key": "value"})
    await stream.send(2, "b")
    assert sorted([await stream.said(), await stream.said()]) == [(1, "A"), (2, "B")]
    first, second = handlers.calls
    assert first.metadata == {"key": "value"} and second.metadata == {}
    remaining_s = first.time_remaining_s()
    assert remaining_s is not None and 0 < remaining_s <= 60
    assert second.time_remaining_s() is None
    assert first.peer.startswith("127.0.0.1:") and not first.is_encrypted


async def test_a_failed_call_has_the_status_of_a_call_of_its_own(stream: Stream) -> None:
    await stream.send(1, "refuse")
    number, failure = await stream.failed()
    assert (number, failure.status, failure.message) == (1, "NOT_FOUND", "enough")
    assert [(each.key, each.value) for each in failure.trailers] == [("why", "because")]
    await stream.send(2, "b")
    assert await stream.said() == (2, "B")


@pytest.mark.parametrize("path", ["/test.Multiplexed/None", WATCH, MULTIPLEX.path, "", "Say"])
async def test_only_unary_rpcs_are_called(stream: Stream, path: str) -> None:
    await stream.send(1, "a", path)
    number, failure = await stream.failed()
    assert (number, failure.status) == (1, "UNIMPLEMENTED")


async def test_a_request_that_cannot_be_parsed_fails_alone(stream: Stream) -> None:
    await stream.write(pb.CallFrame(id=1, path=SAY, request=b"\xff"))
    number, failure = await stream.failed()
    assert (number, failure.status) == (1, "INVALID_ARGUMENT")
    await stream.send(2, "b")
    assert await stream.said() == (2, "B")


async def test_a_handler_cannot_stream_its_answer(
    stream: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    await stream.send(1, "write")
    number, failure = await stream.failed()
    assert (number, failure.status) == (1, "INTERNAL")


async def test_a_cancelled_call_ends_and_is_not_answered(
    stream: Stream, handlers: Handlers, in_flight: InFlight
) -> None:
    await stream.send(1, "wait")
    await until(lambda: handlers.running == ["wait"])
    await stream.write(pb.CallFrame(id=1, cancel=True))
    await stream.write(pb.CallFrame(id=9, cancel=True))  # a call that has ended
    await until(lambda: handlers.cancelled == ["wait"])
    await stream.send(1, "b")
    assert await stream.said() == (1, "B")
    await until(lambda: in_flight.requests == 0)


async def test_a_call_that_the_server_cancels_is_answered(stream: Stream) -> None:
    await stream.send(1, "end myself")
    number, failure = await stream.failed()
    assert (number, failure.status) == (1, "CANCELLED")


async def test_an_id_of_a_call_in_progress_ends_the_stream(
    stream: Stream, handlers: Handlers
) -> None:
    await stream.send(1, "wait")
    await stream.send(1, "b")
    with pytest.raises(CallFailed) as caught:
        await stream.answer()
    assert caught.value.status == "INVALID_ARGUMENT" and "call 1" in caught.value.message
    await until(lambda: handlers.cancelled == ["wait"])


async def test_after_the_end_of_the_requests_calls_are_answered(
    stream: Stream, handlers: Handlers
) -> None:
    await stream.send(1, "wait")
    await stream.exchange.done_writing()
    await until(lambda: handlers.running == ["wait"])
    handlers.going_on.set()
    assert await stream.said() == (1, "WAIT")
    assert await stream.answer() is None


async def test_the_calls_of_a_caller_that_leaves_are_cancelled(
    server: Server, handlers: Handlers, in_flight: InFlight
) -> None:
    async with streaming(server) as stream:
        await stream.send(1, "wait 1")
        await stream.send(2, "wait 2")
        await until(lambda: len(handlers.running) == 2)
    await until(lambda: sorted(handlers.cancelled) == ["wait 1", "wait 2"])
    await until(lambda: in_flight.requests == 0)


async def test_a_server_that_stops_answers_the_calls_in_progress(
    server: Server, stream: Stream, handlers: Handlers
) -> None:
    await stream.send(1, "wait")
    await until(lambda: handlers.running == ["wait"])
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    handlers.going_on.set()
    assert await stream.said() == (1, "WAIT")
    assert await stream.answer() is None
    await asyncio.wait_for(stopping, 60)


async def test_a_server_stops_at_once_beside_an_idle_stream(server: Server, stream: Stream) -> None:
    await stream.send(1, "a")
    assert await stream.said() == (1, "A")
    await asyncio.wait_for(asyncio.gather(server.stop(), stream.answer()), 30)


async def test_each_call_is_checked_by_its_own_permission(handlers: Handlers) -> None:
    access = Access(Policy(closed=SAY), enforced=True)
    async with serving(handlers, access=access) as server, streaming(server) as stream:
        await stream.send(1, "a")
        number, failure = await stream.failed()
        assert (number, failure.message) == (1, f"{SAY} is closed")
        assert handlers.calls == []


async def test_each_request_is_authorized(handlers: Handlers) -> None:
    access = Access(Policy(closed=""), enforced=True)
    async with serving(handlers, access=access) as server, streaming(server) as stream:
        await stream.send(1, "secret")
        number, failure = await stream.failed()
        assert (number, failure.message) == (1, "the request is secret")
        await stream.send(2, "b")
        assert await stream.said() == (2, "B")


async def test_a_stream_itself_needs_a_permission(handlers: Handlers) -> None:
    access = Access(Policy(closed=MULTIPLEX.path), enforced=True)
    async with serving(handlers, access=access) as server, streaming(server) as stream:
        with pytest.raises(CallFailed) as caught:
            await stream.answer()
        assert caught.value.message == f"{MULTIPLEX.path} is closed"


async def test_a_request_waits_until_the_bytes_in_flight_allow_it(
    stream: Stream, handlers: Handlers, in_flight: InFlight
) -> None:
    in_flight.answering(LIMIT)
    await stream.send(1, "a")
    await until(lambda: in_flight.waiting == 1)
    assert handlers.calls == []
    in_flight.answered(LIMIT)
    assert await stream.said() == (1, "A")


async def test_a_request_that_has_waited_too_long_is_refused(
    stream: Stream, in_flight: InFlight, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (multiplexer, in_flight_module):
        monkeypatch.setattr(module, "WAIT_S", 0.01)
    in_flight.answering(LIMIT)
    await stream.send(1, "a")
    number, failure = await stream.failed()
    assert (number, failure.status) == (1, "RESOURCE_EXHAUSTED")
    assert in_flight.refused == 1


async def test_further_calls_wait_for_a_place(handlers: Handlers) -> None:
    limits = PortLimits(streams=2)
    async with serving(handlers, limits=limits) as server, streaming(server) as stream:
        for number in range(3):
            await stream.send(number, f"wait {number}")
        await until(lambda: len(handlers.running) == 2)
        handlers.going_on.set()
        answers = [await stream.said(), await stream.said(), await stream.said()]
        assert sorted(answers) == [(number, f"WAIT {number}") for number in range(3)]


async def test_an_id_may_be_used_again_after_its_answer(stream: Stream) -> None:
    for _ in range(100):
        await stream.send(1, "a")
        assert await stream.said() == (1, "A")
