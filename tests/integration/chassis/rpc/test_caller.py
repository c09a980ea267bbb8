"""Calls of a service to another over real sockets; failures as errors of the domain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from aerobee_chassis.rpc.call import Call, Failure
from aerobee_chassis.rpc.caller import Caller
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind
from aerobee_chassis.rpc.transport import CallFailed

# grpc's own health service, under another name, is the service that is called.
DESCRIPTOR = health_pb2.DESCRIPTOR.services_by_name["Health"]
Request, Response = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
UNREADABLE = b"\xff"


@dataclass(frozen=True)
class Rpc:
    path: str
    response: type[health_pb2.HealthCheckResponse] = Response


CHECK, WATCH = Rpc("/test.Echo/Check"), Rpc("/test.Echo/Watch")


class PeerError(Exception):
    def __init__(self, address: str, failure: CallFailed) -> None:
        super().__init__(failure.message)
        self.address = address
        self.status = failure.status


class Handlers:
    def __init__(self) -> None:
        self.held = asyncio.Event()  # a call is under way that is not answered

    async def check(self, request: Any, call: Call) -> Any:
        if request.service == "refused":
            raise LookupError
        if request.service == "held":
            self.held.set()
            await asyncio.Event().wait()
        return UNREADABLE if request.service == "unreadable" else Response(status=Response.SERVING)

    async def list(self, request: Any, call: Call) -> Any:
        return health_pb2.HealthListResponse()

    async def watch(self, request: Any, call: Call) -> None:
        await call.write(Response(status=Response.SERVING))
        if request.service == "unreadable":
            await call.write(UNREADABLE)


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
async def address(handlers: Handlers) -> AsyncIterator[str]:
    service = bind(DESCRIPTOR, handlers)
    renamed = type(service)("test.Echo", service.methods)
    failure = Failure("NOT_FOUND", "none here")
    server = Server([renamed], host="127.0.0.1", port=0, failure_of=lambda _: failure, grace_s=0)
    await server.start()
    yield server.address
    await server.stop()


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    caller = Caller(PeerError)
    yield caller
    await caller.close()


async def test_messages_go_out_and_come_back(caller: Caller, address: str) -> None:
    answer = await caller.call(address, CHECK, Request(), timeout_s=20)
    assert answer.status == Response.SERVING
    statuses = [answer.status async for answer in caller.stream(address, WATCH, Request())]
    assert statuses == [Response.SERVING]


@pytest.mark.parametrize(
    ("service", "status"), [("refused", "NOT_FOUND"), ("unreadable", "INTERNAL")]
)
async def test_failures_of_a_call_are_errors_of_the_domain(
    caller: Caller, address: str, service: str, status: str
) -> None:
    with pytest.raises(PeerError) as caught:
        await caller.call(address, CHECK, Request(service=service), timeout_s=20)
    assert (caught.value.address, caught.value.status) == (address, status)


async def test_failures_of_a_stream_are_errors_of_the_domain(caller: Caller, address: str) -> None:
    stream = caller.stream(address, WATCH, Request(service="unreadable"))
    assert (await anext(stream)).status == Response.SERVING
    with pytest.raises(PeerError) as caught:
        await anext(stream)
    assert (caught.value.address, caught.value.status) == (address, "INTERNAL")


async def test_calls_under_way_end_when_an_address_is_dropped(
    caller: Caller, address: str, handlers: Handlers
) -> None:
    held = asyncio.create_task(caller.call(address, CHECK, Request(service="held"), timeout_s=60))
    await handlers.held.wait()

    await caller.drop(address)

    with pytest.raises(PeerError) as caught:
        await held
    assert caught.value.status == "CANCELLED"
    answer = await caller.call(address, CHECK, Request(), timeout_s=20)
    assert answer.status == Response.SERVING


async def test_an_address_that_was_never_called_is_dropped_in_silence(caller: Caller) -> None:
    await caller.drop("127.0.0.1:1")
