"""Calls over gRPC: one channel per address, deadlines, failures as MqError.

The only module of the client that knows grpc. It neither retries nor chooses an address.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from operator import methodcaller
from typing import Any, Protocol, TypeVar, cast

import grpc
from google.protobuf.message import Message

from aerobee_client.errors import BrokerUnreachable, RequestTimeout
from aerobee_client.runtime.fork import PROCESS
from aerobee_wire.rpcs import Request, Rpc
from aerobee_wire.status import Code, MqError, error_from

Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Message)

MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # a batch of large messages; the servers take as much

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A broker that restarts on the same port is found again within a second (default: 120 s).
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # How long one attempt to connect may take (default: 20 s).
    ("grpc.min_reconnect_backoff_ms", 3_000),
    # A peer that is frozen or cut off is noticed after 40 s; by TCP alone, never.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # http_proxy in the environment does not apply to brokers.
    ("grpc.enable_http_proxy", 0),
)

CLOSED = "this client was closed during the call"

# For failures without one of our codes: grpc itself failed, or the peer is no server of ours.
_CODE_OF_STATUS = {
    grpc.StatusCode.UNIMPLEMENTED: Code.REQUEST_CODE_NOT_SUPPORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Code.MESSAGE_ILLEGAL,  # over 64 MiB, either way
    grpc.StatusCode.INVALID_ARGUMENT: Code.INVALID_PARAMETER,
}


class Transport(Protocol):
    """The network, as the client needs it. Addresses are "host:port"."""

    async def call(self, address: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float) -> R:
        """Raises MqError: BrokerUnreachable, RequestTimeout, or the refusal of the peer."""

    def stream(self, address: str, rpc: Rpc[Q, R], request: Q) -> AsyncGenerator[R, None]:
        """The responses of a server stream. Raises like `call`, also after some responses."""

    async def close(self) -> None: ...


class GrpcTransport:
    """`Transport` over `grpc.aio`. To be used and closed on one event loop."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._methods: dict[tuple[str, str], Callable[..., Any]] = {}

    async def call(self, address: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float) -> R:
        if PROCESS.is_child:
            PROCESS.check()
        method = self._methods.get((address, rpc.path)) or self._method(address, rpc, "unary_unary")
        try:
            response: R = await method(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise translated(error, address, timeout_s) from None
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise BrokerUnreachable(address, CLOSED) from None
        return response

    async def stream(self, address: str, rpc: Rpc[Q, R], request: Q) -> AsyncGenerator[R, None]:
        PROCESS.check()
        method = self._methods.get((address, rpc.path)) or self._method(
            address, rpc, "unary_stream"
        )
        call = method(request)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise translated(error, address, 0) from None
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise BrokerUnreachable(address, CLOSED) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        self._methods = {}
        for channel in channels.values():
            await channel.close(None)

    def _method(self, address: str, rpc: Rpc[Q, R], kind: str) -> Callable[..., Any]:
        channel = self._channels.get(address)
        if channel is None:
            PROCESS.use()
            channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            self._channels[address] = channel
        method: Callable[..., Any] = getattr(channel, kind)(
            rpc.path,
            request_serializer=methodcaller("SerializeToString"),
            response_deserializer=rpc.response.FromString,
        )
        self._methods[address, rpc.path] = method
        return method


def _is_cancelled() -> bool:
    """Whether this task is cancelled. grpc also raises CancelledError when a channel is closed
    during a call, although the waiting task is not cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def translated(error: grpc.aio.AioRpcError, address: str, timeout_s: float) -> MqError:
    details = error.details() or ""
    trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    sent = error_from(details, trailers)
    if sent is not None:
        return sent
    status = error.code()
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestTimeout(address, timeout_s)
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return BrokerUnreachable(address, details or status.name)
    code = _CODE_OF_STATUS.get(status, Code.SYSTEM_ERROR)
    return MqError(code, f"{address} refused the request: {status.name}: {details}")
