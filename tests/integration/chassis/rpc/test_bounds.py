"""The bytes that a server holds for its callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from aerobee_chassis.healthcheck import DATA, END_STREAM, frame
from aerobee_chassis.rpc import in_flight as in_flight_module
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.http2 import listener
from aerobee_chassis.rpc.in_flight import RESERVED_BYTES, InFlight
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind
from support.chassis import descriptors
from support.chassis.http2 import begun_request
from support.clock.polling import until

MIB = 1024 * 1024
LIMIT = 4 * RESERVED_BYTES
LARGE = StringValue(value="x" * 4 * MIB)
SMALL = StringValue(value="x")
PARTS = 8
BOUNDS = descriptors.service("Bounds", Put=(False, False), Ask=(False, False), Get=(False, True))
Code = grpc.StatusCode


class Handlers:
    def __init__(self, in_flight: InFlight) -> None:
        self.in_flight = in_flight
        self.inside = 0
        self.going_on = asyncio.Event()

    async def put(self, request: StringValue, call: Call) -> StringValue:
        self.inside += 1
        await self.going_on.wait()
        return SMALL

    async def ask(self, request: StringValue, call: Call) -> StringValue:
        return LARGE if request.value == "large" else SMALL

    async def get(self, request: StringValue, call: Call) -> None:
        self.in_flight.check_room(PARTS * MIB)
        await call.write_all([StringValue(value="x" * MIB) for _ in range(PARTS)])


@pytest.fixture
def handlers(in_flight: InFlight) -> Handlers:
    return Handlers(in_flight)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is refused because this machine is slow. Comes before the server."""
    monkeypatch.setattr(in_flight_module, "WAIT_S", 60.0)
    monkeypatch.setattr(listener, "LOOK_S", 60.0)


@pytest.fixture
async def in_flight() -> InFlight:
    return InFlight(LIMIT, stall_s=2)


@pytest.fixture
async def address(handlers: Handlers, in_flight: InFlight) -> AsyncIterator[str]:
    server = Server(
        [bind(BOUNDS, handlers)],
        host="127.0.0.1",
        port=0,
        failure_of=lambda _: None,
        grace_s=0,
        in_flight=in_flight,
    )
    await server.start()
    yield server.address
    await server.stop()


@pytest.fixture
async def channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(
        address, options=(("grpc.http2.bdp_probe", 0), ("grpc.max_receive_message_length", -1))
    ) as channel:
        yield channel


def unary(channel: grpc.aio.Channel, method: str, request: StringValue) -> Any:
    make: Any = channel.unary_unary(
        f"/test.Bounds/{method}",
        request_serializer=StringValue.SerializeToString,
        response_deserializer=StringValue.FromString,
    )
    return make(request, timeout=60)


def stream(channel: grpc.aio.Channel) -> Any:
    make: Any = channel.unary_stream(
        "/test.Bounds/Get",
        request_serializer=StringValue.SerializeToString,
        response_deserializer=StringValue.FromString,
    )
    return make(SMALL, timeout=60)


async def test_large_requests_are_read_as_far_as_there_is_room(
    channel: grpc.aio.Channel, handlers: Handlers, in_flight: InFlight
) -> None:
    await unary(channel, "Ask", SMALL)  # no large one is expected any more
    calls = [unary(channel, "Put", LARGE) for _ in range(12)]
    await until(lambda: handlers.inside == 3 and in_flight.waiting + in_flight.refused == 9)
    # Those that wait are refused; small ones of another method go on.
    assert (await unary(channel, "Ask", SMALL)).value == "x"
    await until(lambda: sum(call.done() for call in calls) == 9)
    assert {await call.code() for call in calls if call.done()} == {Code.RESOURCE_EXHAUSTED}
    handlers.going_on.set()
    codes = {await call.code() for call in calls}
    assert codes == {Code.OK, Code.RESOURCE_EXHAUSTED}
    assert in_flight.peak <= LIMIT
    await until(lambda: in_flight.requests == in_flight.answers == 0)


async def test_a_request_that_waited_is_served_when_others_are_over(
    patient: None, channel: grpc.aio.Channel, handlers: Handlers, in_flight: InFlight
) -> None:
    calls = [unary(channel, "Put", LARGE) for _ in range(6)]
    await until(lambda: handlers.inside >= 3)
    handlers.going_on.set()
    assert [await call.code() for call in calls] == [Code.OK] * 6
    assert in_flight.peak <= LIMIT and in_flight.refused == 0


async def test_a_caller_that_stops_in_the_middle_of_its_request_does_not_keep_others_waiting(
    address: str, channel: grpc.aio.Channel, in_flight: InFlight
) -> None:
    await unary(channel, "Ask", SMALL)  # no large one is expected any more
    host, _, port = address.rpartition(":")
    frozen = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
    for _, writer in frozen:
        writer.write(begun_request("/test.Bounds/Ask", bytes(100), of=4 * MIB))
    await until(lambda: in_flight.requests == LIMIT)
    while await unary(channel, "Ask", SMALL).code() is not Code.OK:
        pass
    await until(lambda: in_flight.requests == 0)
    for _, writer in frozen:
        writer.close()


async def test_a_caller_that_does_not_take_its_one_answer_is_cut_off(
    address: str, in_flight: InFlight
) -> None:
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    large = StringValue(value="large").SerializeToString()
    writer.write(begun_request("/test.Bounds/Ask", large) + frame(DATA, END_STREAM, 1, b""))
    await until(lambda: in_flight.answers > MIB)
    await until(lambda: in_flight.cut == 1 and in_flight.answers == 0)
    writer.close()


async def test_an_answer_without_room_is_refused(
    channel: grpc.aio.Channel, handlers: Handlers, in_flight: InFlight
) -> None:
    first = stream(channel)
    await until(lambda: in_flight.answers > MIB)
    second = stream(channel)
    assert await second.code() is Code.RESOURCE_EXHAUSTED
    assert in_flight.answers <= LIMIT // 2
    parts = [part async for part in first]
    assert len(parts) == PARTS
    await until(lambda: in_flight.answers == 0)
    assert in_flight.cut == 0
