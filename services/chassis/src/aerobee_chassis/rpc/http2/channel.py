"""Call other services over sockets of the event loop, with `aerobee_http2`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from time import monotonic

from aerobee_chassis.rpc.in_flight import MAX_MESSAGE_BYTES
from aerobee_chassis.rpc.transport import (
    CHANNEL_CLOSED,
    CHANNEL_OPTIONS,
    CallFailed,
    ChannelOptions,
    ChannelTls,
)
from aerobee_http2 import calls
from aerobee_http2.channel import Channel
from aerobee_http2.tls import client_context
from aerobee_wire.certificates import Pem

assert calls.MAX_MESSAGE_BYTES == MAX_MESSAGE_BYTES  # of the response to a call


class Http2Channel:
    def __init__(
        self,
        target: str,
        options: ChannelOptions = CHANNEL_OPTIONS,
        tls: ChannelTls | None = None,
    ) -> None:
        context, server_name = None, ""
        if tls is not None:
            context = client_context(Pem(tls.authorities, tls.certificate, tls.key, tls.password))
            server_name = tls.server_name
        self._channel = Channel(
            target,
            context,
            server_name,
            options.times,
            monotonic,  # a test may move the loop's time
        )
        self._max_request_bytes = options.max_request_bytes
        self._calls = 0  # that are running

    @property
    def is_idle(self) -> bool:
        return not self._calls

    async def unary(self, path: str, request: bytes, timeout_s: float) -> bytes:
        _check_size(request, self._max_request_bytes)
        self._calls += 1
        try:
            return await self._channel.unary(path, request, timeout_s)
        except calls.CallFailed as failure:
            raise _failed(failure) from None
        finally:
            self._calls -= 1

    async def stream(self, path: str, request: bytes) -> AsyncGenerator[bytes, None]:
        _check_size(request, self._max_request_bytes)
        self._calls += 1
        try:
            async with aclosing(self._channel.stream(path, request)) as answers:
                async for answer in answers:
                    yield answer
        except calls.CallFailed as failure:
            raise _failed(failure) from None
        finally:
            self._calls -= 1

    @asynccontextmanager
    async def exchange(self, path: str) -> AsyncIterator[Http2Exchange]:
        self._calls += 1
        try:
            async with self._channel.exchange(path) as call:
                yield Http2Exchange(call, self._max_request_bytes)
        except calls.CallFailed as failure:
            raise _failed(failure) from None
        finally:
            self._calls -= 1

    async def close(self) -> None:
        await self._channel.close(None, CHANNEL_CLOSED[1])


class Http2Exchange:
    def __init__(self, call: calls.Exchange, max_request_bytes: int) -> None:
        self._call = call
        self._max_request_bytes = max_request_bytes

    async def write(self, message: bytes) -> None:
        _check_size(message, self._max_request_bytes)
        try:
            await self._call.write(message)
        except calls.CallFailed as failure:
            raise _failed(failure) from None

    async def done_writing(self) -> None:
        self._call.done_writing()

    async def read(self) -> bytes | None:
        try:
            return await self._call.read()
        except calls.CallFailed as failure:
            raise _failed(failure) from None


def _check_size(request: bytes, limit: int) -> None:
    if len(request) > limit:
        raise CallFailed(
            "RESOURCE_EXHAUSTED",
            f"the request has {len(request)} bytes: send at most {limit}, for example in parts",
        )


def _failed(failure: calls.CallFailed) -> CallFailed:
    return CallFailed(failure.status, failure.details, failure.trailers)
