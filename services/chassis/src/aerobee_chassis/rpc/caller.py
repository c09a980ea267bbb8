"""Calls to other services: one channel for each address, messages in and out, failures as errors of
the domain.

It neither retries nor chooses an address.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from aerobee_chassis.rpc.loops import open_channel
from aerobee_chassis.rpc.transport import CHANNEL_OPTIONS, CallFailed, Channel

R = TypeVar("R", bound=Message)
R_co = TypeVar("R_co", bound=Message, covariant=True)

# The error of the domain for a call to that "host:port" that failed.
ErrorOf = Callable[[str, CallFailed], Exception]


class Rpc(Protocol[R_co]):
    """An RPC as a value."""

    @property
    def path(self) -> str:
        """ "/package.Service/Method"."""

    @property
    def response(self) -> type[R_co]: ...


class Caller:
    """To be made, used and closed on one event loop. Addresses are "host:port"."""

    def __init__(self, error_of: ErrorOf) -> None:
        self._error_of = error_of
        self._channels: dict[str, Channel] = {}

    async def call(self, address: str, rpc: Rpc[R], request: Message, *, timeout_s: float) -> R:
        """Raises what `error_of` makes of a failure."""
        channel = self._channels.get(address) or self._channel(address)
        try:
            answer = await channel.unary(rpc.path, request.SerializeToString(), timeout_s)
            return rpc.response.FromString(answer)
        except CallFailed as failure:
            raise self._error_of(address, failure) from None
        except DecodeError:
            raise self._error_of(address, _unreadable(rpc)) from None

    async def stream(self, address: str, rpc: Rpc[R], request: Message) -> AsyncGenerator[R, None]:
        """What the other side sends until it ends the stream. Raises like `call`."""
        channel = self._channels.get(address) or self._channel(address)
        answers = channel.stream(rpc.path, request.SerializeToString())
        try:
            async with aclosing(answers):
                async for answer in answers:
                    yield rpc.response.FromString(answer)
        except CallFailed as failure:
            raise self._error_of(address, failure) from None
        except DecodeError:
            raise self._error_of(address, _unreadable(rpc)) from None

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    def _channel(self, address: str) -> Channel:
        channel = self._channels[address] = open_channel(address, CHANNEL_OPTIONS)
        return channel


def _unreadable(rpc: Rpc[Message]) -> CallFailed:
    return CallFailed("INTERNAL", f"the answer to {rpc.path} cannot be read")
