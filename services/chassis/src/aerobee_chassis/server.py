"""A gRPC server over plain handlers, on the `grpc.aio` transport. The only place where errors cross
the wire.

With grpc.health.v1 and server reflection. What the handlers are and know: see `call.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import urllib.parse
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import grpc
import structlog
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from aerobee_chassis.call import Failure, Handler
from aerobee_chassis.errors import PortInUse

MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # a batch of large messages; one body is at most 4 MiB

GRPC_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    # Two servers on one port would share its calls in silence: refuse the second.
    ("grpc.so_reuseport", 0),
    # Clients ping on idle connections; that is no reason to close one.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    # Thousands of long polls wait at once: by default grpc cancels them beyond about 3,000.
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 200_000),
)

FailureOf = Callable[[Exception], Failure | None]


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    handler: Handler
    request: type[Any]
    server_streams: bool
    client_streams: bool


@dataclass(frozen=True, slots=True)
class Service:
    """A gRPC service and the handlers of its methods."""

    name: str
    methods: tuple[Method, ...]


def bind(descriptor: ServiceDescriptor, handlers: object) -> Service:
    """The service of `descriptor` with one handler per RPC: the coroutine of its name in
    snake_case.

    Raises TypeError when a handler is missing.
    """
    methods = []
    for method in descriptor.methods:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
        handler = getattr(handlers, name, None)
        if not inspect.iscoroutinefunction(handler):
            owner = type(handlers).__name__
            raise TypeError(f"{owner} has no coroutine {name} for {method.full_name}")
        methods.append(_method(method, cast(Handler, handler)))
    return Service(descriptor.full_name, tuple(methods))


def _method(descriptor: MethodDescriptor, handler: Handler) -> Method:
    return Method(
        descriptor.name,
        handler,
        message_factory.GetMessageClass(descriptor.input_type),
        bool(descriptor.server_streaming),
        bool(descriptor.client_streaming),
    )


# By (client streams, server streams).
_KINDS: Mapping[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler[Any, Any]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class Server:
    """Serves `services` on one port once `start` is called.

    `failure_of` turns an exception of the domain into what the caller is told; for anything that it
    returns None for, the caller gets INTERNAL without details and the log a traceback.
    """

    def __init__(
        self, services: Sequence[Service], *, host: str, port: int, failure_of: FailureOf
    ) -> None:
        self._services = services
        self._host = host
        self._port = port
        self._failure_of = failure_of
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # not in the stubs
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Binds and serves; returns the port. Raises PortInUse."""
        server = grpc.aio.server(options=GRPC_OPTIONS)
        for service in self._services:
            server.add_generic_rpc_handlers((self._generic(service),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = [service.name for service in self._services]
        reflection.enable_server_reflection(
            [*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server
        )
        target = join_address(self._host, self._port)
        try:
            port = server.add_insecure_port(target)
        except RuntimeError:
            raise PortInUse(
                f"cannot listen on {target}: the port is in use or not ours; choose another"
            ) from None
        await server.start()
        self._server = server
        await self.set_serving(True)
        return port

    async def set_serving(self, serving: bool) -> None:
        """What grpc.health.v1 answers, for the whole process and for each service."""
        state = (
            health_pb2.HealthCheckResponse.SERVING
            if serving
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", *(service.name for service in self._services)):
            await self._health.set(name, state)

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls, waits up to `grace_s` for those in progress, then cancels them."""
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(grace_s)
            self._server = None

    def _generic(self, service: Service) -> grpc.GenericRpcHandler[Any, Any]:
        handlers = {method.name: self._adapt(service, method) for method in service.methods}
        return grpc.method_handlers_generic_handler(service.name, handlers)

    def _adapt(self, service: Service, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        path = f"{service.name}/{method.name}"
        handler = method.handler

        async def run(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                if method.client_streams:
                    # Some callers send nothing before they have seen the headers of the answer.
                    await context.send_initial_metadata(())
                    request = _readable(request)
                return await handler(request, AioCall(context, method.server_streams))
            except Exception as error:  # one crossing: every failure of every handler
                failure = self._tell(path, error)
            status = getattr(grpc.StatusCode, failure.status)
            return await context.abort(status, failure.message, failure.trailers)

        kind = _KINDS[method.client_streams, method.server_streams]
        return kind(
            run, request_deserializer=method.request.FromString, response_serializer=_serialize
        )

    def _tell(self, path: str, error: Exception) -> Failure:
        if isinstance(error, UnreadableRequest):
            return Failure("INVALID_ARGUMENT", "a message of the stream cannot be read")
        failure = self._failure_of(error)
        if failure is None:
            structlog.get_logger().error("handler failed", rpc=path, exc_info=error)
            return Failure("INTERNAL", "internal error: see the log of the server")
        return failure


class UnreadableRequest(Exception):
    """A stream of requests holds bytes that are no message. (grpc itself sees to single ones.)"""


async def _readable(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    try:
        async for request in requests:
            yield request
    except DecodeError as error:
        raise UnreadableRequest from error


def _serialize(message: Any) -> bytes:
    return cast(bytes, message.SerializeToString())


class AioCall:
    """`Call` over a `grpc.aio` context."""

    __slots__ = ("_context", "_writing")

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], streams: bool = False) -> None:
        self._context = context
        # Two writes at once on one stream lose messages.
        self._writing = asyncio.Lock() if streams else None

    @property
    def metadata(self) -> Mapping[str, str]:
        pairs = self._context.invocation_metadata() or ()
        return {key: value for key, value in pairs if isinstance(value, str)}

    @property
    def peer(self) -> str:
        return peer_address(self._context.peer())

    def time_remaining_s(self) -> float | None:
        remaining = self._context.time_remaining()
        return None if remaining is None else float(remaining)

    def cancelled(self) -> bool:
        return bool(self._context.cancelled())

    async def write(self, message: Any) -> None:
        if self._writing is None:
            raise TypeError("this RPC has one response: return it")
        async with self._writing:
            await self._context.write(message)


def peer_address(peer: str) -> str:
    """The "host:port" of grpc's "ipv4:127.0.0.1:5123" or "ipv6:%5B::1%5D:5123".

    Of a local socket the file's name if that is an address, as a relay gives it; else "unix".
    """
    kind, _, address = urllib.parse.unquote(peer).partition(":")
    if kind in ("ipv4", "ipv6"):
        return address
    name = address.rpartition("/")[2]
    return name if ":" in name else "unix"


def join_address(host: str, port: int) -> str:
    """ "host:port", an IPv6 host in brackets. "unix:PATH" has no port and stays as it is."""
    if host.startswith("unix:"):
        return host
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
