"""The gRPC server of the chassis over its real transport, on port 0 of the loopback."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import structlog
from aerobee_foreign.grpc.reflection.v1 import reflection_pb2 as v1
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2 as v1alpha

from aerobee_chassis import healthcheck
from aerobee_chassis.errors import PortInUse
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind
from support.codes import raises_about
from support.stubs import Stub

# grpc's own health service, implemented by hand, stands for any service.
DESCRIPTOR = health_pb2.DESCRIPTOR.services_by_name["Health"]
Request, Response = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse


class Handlers:
    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    async def check(self, request: Any, call: Call) -> Any:
        self.seen = {"metadata": call.metadata, "peer": call.peer, "left": call.time_remaining_s()}
        if request.service == "defect":
            raise ZeroDivisionError("a secret detail")
        return Response(status=Response.SERVING)

    async def list(self, request: Any, call: Call) -> Any:
        return health_pb2.HealthListResponse()

    async def watch(self, request: Any, call: Call) -> None:
        await call.write(Response(status=Response.SERVING))


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
async def server(handlers: Handlers) -> AsyncIterator[Server]:
    service = bind(DESCRIPTOR, handlers)
    renamed = type(service)("test.Echo", service.methods)
    server = Server([renamed], host="127.0.0.1", port=0, failure_of=lambda _: None, grace_s=0)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def target(server: Server) -> str:
    return server.address


@pytest.fixture
async def channel(target: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(target) as channel:
        yield channel


def unary(channel: grpc.aio.Channel) -> Any:
    return channel.unary_unary(
        "/test.Echo/Check",
        request_serializer=Request.SerializeToString,
        response_deserializer=Response.FromString,
    )


async def test_handler_sees_metadata_peer_and_deadline(
    channel: grpc.aio.Channel, handlers: Handlers
) -> None:
    answer = await unary(channel)(Request(), metadata=(("x-client-id", "c1"),), timeout=30)
    assert answer.status == Response.SERVING
    assert handlers.seen["metadata"]["x-client-id"] == "c1"
    assert handlers.seen["peer"].startswith("127.0.0.1:")
    # On the wire a timeout of this length is rounded up to tenths of a second.
    assert 0 < handlers.seen["left"] <= 30.2


async def test_defect_is_reported_without_its_details(channel: grpc.aio.Channel) -> None:
    with structlog.testing.capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(channel)(Request(service="defect"))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (caught.value.details() or "")
    assert [line["rpc"] for line in logs if line["event"] == "handler_failed"] == [
        "test.Echo/Check"
    ]


async def test_health_answers_for_the_process_and_each_service(channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for name in ("", "test.Echo"):
        assert (await stub.Check(Request(service=name))).status == Response.SERVING


async def test_the_probe_of_a_container_imports_no_client(server: Server) -> None:
    assert await asyncio.to_thread(healthcheck.serving, server.address)
    server.set_serving(False)
    assert not await asyncio.to_thread(healthcheck.serving, server.address)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-X", "importtime", "-m", "aerobee_chassis.healthcheck", server.address],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "not serving\n")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    heavy = {"asyncio", "google.protobuf", "ssl", "structlog"}
    assert "socket" in imported and not imported & heavy


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(9)])
async def test_the_probe_reports_a_port_that_is_no_grpc(answer: bytes) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(OSError):
            await asyncio.to_thread(healthcheck.serving, f"127.0.0.1:{port}")


@pytest.mark.parametrize("version", [v1, v1alpha], ids=lambda each: each.DESCRIPTOR.package)
async def test_reflection_lists_the_services(channel: grpc.aio.Channel, version: Any) -> None:
    ask = version.ServerReflectionRequest(list_services="")
    async for answer in Stub(version, channel).ServerReflectionInfo(iter([ask])):
        names = {service.name for service in answer.list_services_response.service}
    assert {"test.Echo", "grpc.health.v1.Health"} <= names


async def test_second_server_on_the_port_is_refused(target: str) -> None:
    port = int(target.rpartition(":")[2])
    second = Server([], host="127.0.0.1", port=port, failure_of=lambda _: None)
    with raises_about(PortInUse, target):
        await second.start()


@pytest.mark.parametrize("count", [0, 2])
def test_rpc_without_a_handler_or_with_two_is_refused_at_start(
    handlers: Handlers, count: int
) -> None:
    with pytest.raises(TypeError):
        bind(DESCRIPTOR, *[handlers] * count)
    bind(DESCRIPTOR, handlers)
