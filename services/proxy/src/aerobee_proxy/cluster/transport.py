"""Calls to name servers and brokers over gRPC: one channel per address, failures as MqError.

It neither retries nor chooses an address.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from aerobee_chassis.rpc.loops import open_channel
from aerobee_chassis.rpc.transport import CallFailed, Channel
from aerobee_proxy.cluster.rpcs import Rpc
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
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
)

# For failures without a code of ours: grpc itself refused, or the peer is something else.
_CODE_OF_STATUS = {
    "UNIMPLEMENTED": Code.REQUEST_CODE_NOT_SUPPORTED,
    "RESOURCE_EXHAUSTED": Code.MESSAGE_ILLEGAL,  # over 64 MiB on either side
    "INVALID_ARGUMENT": Code.INVALID_PARAMETER,
    "DEADLINE_EXCEEDED": Code.REQUEST_TIMEOUT,
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
        self._channels: dict[str, Channel] = {}

    async def call(self, address: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float) -> R:
        channel = self._channel(address)
        try:
            answer = await channel.unary(rpc.path, request.SerializeToString(), timeout_s)
            return rpc.response.FromString(answer)
        except CallFailed as error:
            raise _translated(address, error) from None
        except DecodeError:
            raise _unreadable(address, rpc) from None

    async def stream(self, address: str, rpc: Rpc[Q, R], request: Q) -> AsyncGenerator[R, None]:
        answers = self._channel(address).stream(rpc.path, request.SerializeToString())
        try:
            async with aclosing(answers):
                async for answer in answers:
                    yield rpc.response.FromString(answer)
        except CallFailed as error:
            raise _translated(address, error) from None
        except DecodeError:
            raise _unreadable(address, rpc) from None

    def _channel(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address, CHANNEL_OPTIONS)
        return channel

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()


def _translated(address: str, error: CallFailed) -> MqError:
    known = error_from(error.message, error.trailers)
    if known is not None:
        return known
    code = _CODE_OF_STATUS.get(error.status, Code.BROKER_UNREACHABLE)
    return MqError(code, f"no answer from {address}: {error.message or error.status}")


def _unreadable(address: str, rpc: Rpc[Q, R]) -> MqError:
    return MqError(
        Code.BROKER_UNREACHABLE, f"the answer from {address} to {rpc.path} cannot be read"
    )
