"""The handler of server reflection: grpc's own servicer, on any transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from grpc_reflection.v1alpha import reflection, reflection_pb2

from aerobee_chassis.rpc.call import Call

DESCRIPTOR = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]


class Reflection:
    def __init__(self, services: Iterable[str]) -> None:
        self._servicer: Any = reflection.ReflectionServicer([*services, reflection.SERVICE_NAME])

    async def server_reflection_info(
        self, requests: AsyncIterator[reflection_pb2.ServerReflectionRequest], call: Call
    ) -> None:
        async for request in requests:
            await call.write_all(self._servicer.ServerReflectionInfo(iter((request,)), None))
