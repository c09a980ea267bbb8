"""Implement the services that every server has: grpc.health.v1 and server reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from aerobee_foreign.grpc.health.v1 import health_pb2 as pb
from aerobee_foreign.grpc.reflection.v1 import reflection_pb2 as v1
from aerobee_foreign.grpc.reflection.v1alpha import reflection_pb2 as v1alpha
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default, DescriptorPool

from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.services import Service

HEALTH = pb.DESCRIPTOR.services_by_name["Health"]
_Status = pb.HealthCheckResponse
# v1alpha is v1 under its former name, which most clients try.
REFLECTION = tuple(each.DESCRIPTOR.services_by_name["ServerReflection"] for each in (v1, v1alpha))
_Request: TypeAlias = v1.ServerReflectionRequest | v1alpha.ServerReflectionRequest
_Response: TypeAlias = v1.ServerReflectionResponse | v1alpha.ServerReflectionResponse
_RESPONSES: Mapping[type[_Request], Any] = {
    each.ServerReflectionRequest: each.ServerReflectionResponse for each in (v1, v1alpha)
}
_INVALID_ARGUMENT, _NOT_FOUND = 3, 5  # statuses of gRPC


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


class Reflection:
    """Answer clients that ask for the descriptors of the services."""

    def __init__(self, services: Sequence[Service]) -> None:
        standard = [each.full_name for each in (HEALTH, *REFLECTION)]
        self._names = sorted({*(service.name for service in services), *standard})
        # What is in a service's own pool hides what has the same name in the default one.
        pools = [service.pool or Default() for service in services]
        self._pools = tuple(dict.fromkeys([*pools, HEALTH.file.pool, Default()]))

    async def server_reflection_info(self, requests: AsyncIterator[_Request], call: Call) -> None:
        async for request in requests:
            await call.write(self._answer(request))

    def _answer(self, request: _Request) -> _Response:
        answer: _Response = _RESPONSES[type(request)](original_request=request)
        if request.HasField("list_services"):
            for name in self._names:
                answer.list_services_response.service.add(name=name)
            return answer
        if request.WhichOneof("message_request") is None:
            answer.error_response.error_code = _INVALID_ARGUMENT
            answer.error_response.error_message = "ask for services, a file or extensions"
            return answer
        for pool in self._pools:
            with suppress(KeyError):
                _find(pool, request, answer)
                return answer
        answer.error_response.error_code = _NOT_FOUND
        answer.error_response.error_message = "no service of this server has it"
        return answer


def _find(pool: DescriptorPool, request: _Request, answer: _Response) -> None:
    """Add to an answer what a pool has of the request. Raises KeyError if it has nothing."""
    match request.WhichOneof("message_request"):
        case "file_by_filename":
            file = pool.FindFileByName(request.file_by_filename)
        case "file_containing_symbol":
            file = pool.FindFileContainingSymbol(request.file_containing_symbol)
        case "file_containing_extension":
            wanted = request.file_containing_extension
            extended = pool.FindMessageTypeByName(wanted.containing_type)
            extension = pool.FindExtensionByNumber(extended, wanted.extension_number)
            file = pool.FindFileContainingSymbol(extension.full_name)
        case _:
            extended = pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
            numbers = sorted(each.number for each in pool.FindAllExtensions(extended))
            found = answer.all_extension_numbers_response
            found.base_type_name = extended.full_name
            found.extension_number.extend(numbers)
            return
    files: dict[str, FileDescriptor] = {}
    _add_with_imports(file, files)
    for each in files.values():
        described = FileDescriptorProto()
        each.CopyToProto(described)
        data = described.SerializeToString()
        answer.file_descriptor_response.file_descriptor_proto.append(data)


def _add_with_imports(file: FileDescriptor, files: dict[str, FileDescriptor]) -> None:
    files[file.name] = file
    for imported in file.dependencies:
        if imported.name not in files:
            _add_with_imports(imported, files)
