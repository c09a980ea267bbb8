"""Call other services: protobuf messages in and out, with one channel per address.

A failed call raises an error of the caller's domain. This module neither retries nor chooses
addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from aerobee_chassis.rpc.http2.channel import Http2Channel
from aerobee_chassis.rpc.transport import (
    CHANNEL_OPTIONS,
    CallFailed,
    Channel,
    ChannelTls,
    Exchange,
)

R = TypeVar("R", bound=Message)
R_co = TypeVar("R_co", bound=Message, covariant=True)

RELOAD_S = 5.0  # between two checks whether certificates have changed


class CallerTls(Protocol):
    """Provide the certificates of channels."""

    def of(self, path: str, broker_name: str = "") -> ChannelTls:
        """Return the certificates for a channel that calls the RPC at `path`.

        If `broker_name` is given, only the certificate of this broker is accepted.
        """

    def reload(self) -> bool:
        """Read the certificates again if they have changed, and return whether they have."""


# Create the domain error for a failed call to a "host:port".
ErrorOf = Callable[[str, CallFailed], Exception]


class Rpc(Protocol[R_co]):
    """An RPC as a value: its path and the type of its response."""

    @property
    def path(self) -> str:
        """Return the path of the RPC in gRPC's form "/package.Service/Method"."""

    @property
    def response(self) -> type[R_co]: ...


class Request(Protocol):
    """A protobuf message, or an object that encodes itself as one."""

    def SerializeToString(self) -> bytes: ...  # protobuf's name


class Caller:
    """Call RPCs at addresses of the form "host:port".

    Create, use and close the object on one event loop.
    """

    def __init__(self, error_of: ErrorOf, tls: CallerTls | None = None) -> None:
        """Create the object without connecting. `tls` is for every channel; None is plaintext."""
        self._error_of = error_of
        self._tls = tls
        self._channels: dict[str, Channel] = {}
        self._retired: set[Channel] = set()  # with former certificates; closed when idle
        self._broker_names: dict[str, str] = {}  # that certificates must have, by address
        self._closing: set[asyncio.Task[None]] = set()
        self._reloading: asyncio.TimerHandle | None = None

    async def call(self, address: str, rpc: Rpc[R], request: Request, *, timeout_s: float) -> R:
        """Call an RPC and return its response.

        Raises the error that `error_of` makes from a failure.
        """
        channel = self._channels.get(address) or self._channel(address, rpc.path)
        try:
            answer = await channel.unary(rpc.path, request.SerializeToString(), timeout_s)
            return rpc.response.FromString(answer)
        except CallFailed as failure:
            raise self._error_of(address, failure) from None
        except DecodeError:
            raise self._error_of(address, _unreadable(rpc)) from None

    async def stream(self, address: str, rpc: Rpc[R], request: Request) -> AsyncGenerator[R, None]:
        """Yield the messages of a server stream until it ends. Raises the same errors as `call`."""
        channel = self._channels.get(address) or self._channel(address, rpc.path)
        answers = channel.stream(rpc.path, request.SerializeToString())
        try:
            async with aclosing(answers):
                async for answer in answers:
                    yield rpc.response.FromString(answer)
        except CallFailed as failure:
            raise self._error_of(address, failure) from None
        except DecodeError:
            raise self._error_of(address, _unreadable(rpc)) from None

    @asynccontextmanager
    async def exchange(self, address: str, rpc: Rpc[R]) -> AsyncIterator[Conversation[R]]:
        """Start an RPC with streams in both directions. The RPC ends with the `async with` block.

        Raises the same errors as `call`. The reads and writes of the conversation raise them too.
        """
        channel = self._channels.get(address) or self._channel(address, rpc.path)

        def failed(failure: CallFailed) -> Exception:
            return self._error_of(address, failure)

        try:
            async with channel.exchange(rpc.path) as exchange:
                yield Conversation(exchange, rpc, failed)
        except CallFailed as failure:
            raise failed(failure) from None

    def expect(self, address: str, broker_name: str) -> None:
        """Accept only the certificate of this broker at an address, from the next call on.

        Running calls continue on their channel. Without TLS, do nothing.
        """
        if self._tls is None or self._broker_names.get(address) == broker_name:
            return
        self._broker_names[address] = broker_name
        channel = self._channels.pop(address, None)
        if channel is not None:
            self._retired.add(channel)

    async def drop(self, address: str) -> None:
        """Close the channel to an address, so that the next call connects again.

        Running calls on that channel fail with CANCELLED.
        """
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        if self._reloading is not None:
            self._reloading.cancel()
        for channel in (*self._channels.values(), *self._retired):
            await channel.close()
        self._channels.clear()
        self._retired.clear()
        await asyncio.gather(*self._closing)

    def _channel(self, address: str, path: str) -> Channel:
        broker_name = self._broker_names.get(address, "")
        tls = None if self._tls is None else self._tls.of(path, broker_name)
        channel = self._channels[address] = Http2Channel(address, CHANNEL_OPTIONS, tls)
        if self._tls is not None and self._reloading is None:
            self._reloading = asyncio.get_running_loop().call_later(RELOAD_S, self._reload)
        return channel

    def _reload(self) -> None:
        """Use new channels after the certificates have changed. Run again after RELOAD_S.

        Running calls continue on their channels, which are closed when these calls have ended.
        """
        loop = asyncio.get_running_loop()
        self._reloading = loop.call_later(RELOAD_S, self._reload)
        if self._tls is not None and self._tls.reload():
            self._retired.update(self._channels.values())
            self._channels.clear()
        for channel in [each for each in self._retired if each.is_idle]:
            self._retired.discard(channel)
            closing = loop.create_task(channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def _unreadable(rpc: Rpc[Message]) -> CallFailed:
    return CallFailed("INTERNAL", f"the answer to {rpc.path} cannot be read")


class Conversation(Generic[R]):
    """A running RPC with streams in both directions.

    All methods raise the error that `failed` makes from a failure.
    """

    def __init__(
        self, exchange: Exchange, rpc: Rpc[R], failed: Callable[[CallFailed], Exception]
    ) -> None:
        self._exchange = exchange
        self._rpc = rpc
        self._failed = failed

    async def write(self, message: Message) -> None:
        try:
            await self._exchange.write(message.SerializeToString())
        except CallFailed as failure:
            raise self._failed(failure) from None

    async def done_writing(self) -> None:
        await self._exchange.done_writing()

    async def read(self) -> R | None:
        """Return the next message, or None if the other side has ended the call."""
        answer = await self.read_encoded()
        try:
            return None if answer is None else self._rpc.response.FromString(answer)
        except DecodeError:
            raise self._failed(_unreadable(self._rpc)) from None

    async def read_encoded(self) -> bytes | None:
        """Return the next message as bytes, or None if the other side has ended the call."""
        try:
            return await self._exchange.read()
        except CallFailed as failure:
            raise self._failed(failure) from None
