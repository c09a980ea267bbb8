"""Calls to name servers and brokers over gRPC: one channel per address, failures as MqError.

The only module of the proxy that knows grpc. It neither retries nor chooses an address.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Protocol, TypeVar, cast

import grpc
from google.protobuf.message import Message

from aerobee_proxy.rpcs import Rpc
from aerobee_wire.status import Code, MqError, error_from

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # as much as the servers take

# A peer that comes back is found again within a second (grpc's default: 120 s), and one that is
# frozen or cut off is noticed after 20 s.
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
)

# For failures without a code of ours: grpc itself refused, or the peer is something else.
_CODE_OF_STATUS = {
    grpc.StatusCode.UNIMPLEMENTED: Code.REQUEST_CODE_NOT_SUPPORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Code.MESSAGE_ILLEGAL,  # over 64 MiB on either side
    grpc.StatusCode.INVALID_ARGUMENT: Code.INVALID_PARAMETER,
    grpc.StatusCode.DEADLINE_EXCEEDED: Code.REQUEST_TIMEOUT,
}


class Transport(Protocol):
    """What the proxy needs of a network. Addresses are "host:port"."""

    async def call(self, address: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float) -> R:
        """Raises MqError: BROKER_UNREACHABLE, REQUEST_TIMEOUT, or what the peer answered."""

    def stream(self, address: str, rpc: Rpc[Q, R], request: Q) -> AsyncGenerator[R, None]:
        """What the peer sends until it ends the stream. Raises MqError like `call`."""

    async def close(self) -> None: ...


class GrpcTransport:
    """To be made, used and closed on one event loop."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def call(self, address: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float) -> R:
        method = self._channel(address).unary_unary(
            rpc.path,
            request_serializer=rpc.request.SerializeToString,
            response_deserializer=rpc.response.FromString,
        )
        try:
            return cast(R, await method(request, timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            raise _translated(address, error) from None

    async def stream(self, address: str, rpc: Rpc[Q, R], request: Q) -> AsyncGenerator[R, None]:
        method = self._channel(address).unary_stream(
            rpc.path,
            request_serializer=rpc.request.SerializeToString,
            response_deserializer=rpc.response.FromString,
        )
        answers = method(request)
        try:
            async for answer in answers:
                yield cast(R, answer)
        except grpc.aio.AioRpcError as error:
            raise _translated(address, error) from None
        finally:
            answers.cancel()

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            self._channels[address] = channel
        return channel

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close(None)
        self._channels.clear()


def _translated(address: str, error: grpc.aio.AioRpcError) -> MqError:
    details = error.details() or error.code().name
    trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    known = error_from(details, trailers)
    if known is not None:
        return known
    code = _CODE_OF_STATUS.get(error.code(), Code.BROKER_UNREACHABLE)
    return MqError(code, f"no answer from {address}: {details}")
