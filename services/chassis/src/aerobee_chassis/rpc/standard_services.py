"""Implement the services that every server has: grpc.health.v1 and server reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from google.protobuf.descriptor_pool import Default
from grpc_health.v1 import health_pb2 as pb
from grpc_reflection.v1alpha import reflection, reflection_pb2

from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.services import Service

HEALTH = pb.DESCRIPTOR.services_by_name["Health"]
_Status = pb.HealthCheckResponse


class ServiceNotFound(Exception):
    """The server does not have the requested service."""


class Health:
    """Report the status of the process and of each of its services."""

    def __init__(self, services: Iterable[str]) -> None:
        """Start with NOT_SERVING. `services` are names; the empty name is the process itself."""
        self._names = frozenset(("", *services))
        self._serving = False
        self._closed = False
        self._changed = asyncio.Event()

    def set(self, serving: bool) -> None:
        if serving != self._serving and not self._closed:
            self._serving = serving
            self._wake()

    def close(self) -> None:
        """Switch to NOT_SERVING for the rest of the process: notify watchers, end their streams."""
        self._closed = True
        self._serving = False
        self._wake()

    async def check(self, request: pb.HealthCheckRequest, call: Call) -> pb.HealthCheckResponse:
        """Return the status of a service. Raises ServiceNotFound."""
        if request.service not in self._names:
            raise ServiceNotFound(f"no service {request.service} here")
        return self._answer(request.service)

    async def list(self, request: pb.HealthListRequest, call: Call) -> pb.HealthListResponse:
        return pb.HealthListResponse(statuses={name: self._answer(name) for name in self._names})

    async def watch(self, request: pb.HealthCheckRequest, call: Call) -> None:
        """Send the status now, and again after each change."""
        sent = None
        while True:
            changed = self._changed
            answer = self._answer(request.service)
            if answer.status != sent:
                await call.write(answer)
                sent = answer.status
            if self._closed:
                return
            await changed.wait()

    def _answer(self, name: str) -> pb.HealthCheckResponse:
        if name not in self._names:
            return _Status(status=_Status.SERVICE_UNKNOWN)
        return _Status(status=_Status.SERVING if self._serving else _Status.NOT_SERVING)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]


class Reflection:
    """Server reflection on any transport, implemented by grpc's own servicer."""

    def __init__(self, services: Sequence[Service]) -> None:
        names = [*(service.name for service in services), HEALTH.full_name, REFLECTION.full_name]
        # What is in a service's own pool hides what has the same name in the default one.
        pools = dict.fromkeys([service.pool or Default() for service in services] + [Default()])
        self._servicers: list[Any] = [reflection.ReflectionServicer(names, pool) for pool in pools]

    async def server_reflection_info(
        self, requests: AsyncIterator[reflection_pb2.ServerReflectionRequest], call: Call
    ) -> None:
        async for request in requests:
            await call.write(self._answer(request))

    def _answer(
        self, request: reflection_pb2.ServerReflectionRequest
    ) -> reflection_pb2.ServerReflectionResponse:
        """Return the answer of the first pool that has one, or the error of the last pool."""
        for servicer in self._servicers:
            (answer,) = servicer.ServerReflectionInfo(iter((request,)), None)
            if not answer.HasField("error_response"):
                break
        return answer
