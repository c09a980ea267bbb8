"""Call other services with grpc.aio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import grpc

from aerobee_chassis.rpc.transport import CALL_ENDED, CHANNEL_CLOSED, CallFailed, ChannelTls


class AioChannel:
    def __init__(
        self, target: str, options: Sequence[tuple[str, int]], tls: ChannelTls | None = None
    ) -> None:
        self._calls = 0  # that are running
        self._channel = (
            grpc.aio.insecure_channel(target, options=options)
            if tls is None
            else grpc.aio.secure_channel(target, tls.credentials, options=(*options, *tls.options))
        )

    @property
    def is_idle(self) -> bool:
        return not self._calls

    async def unary(self, path: str, request: bytes, timeout_s: float) -> bytes:
        method = self._channel.unary_unary(path, None, None)
        try:
            call = method(request, timeout=timeout_s)
        except grpc.aio.UsageError:
            raise CallFailed(*CHANNEL_CLOSED) from None
        self._calls += 1
        try:
            return cast(bytes, await call)
        except grpc.aio.AioRpcError as error:
            raise _failed(error) from None
        except asyncio.CancelledError:
            _check_task(call)
            raise
        finally:
            self._calls -= 1

    async def stream(self, path: str, request: bytes) -> AsyncGenerator[bytes, None]:
        try:
            answers = self._channel.unary_stream(path, None, None)(request)
        except grpc.aio.UsageError:
            raise CallFailed(*CHANNEL_CLOSED) from None
        self._calls += 1
        try:
            async for answer in answers:
                yield cast(bytes, answer)
        except grpc.aio.AioRpcError as error:
            raise _failed(error) from None
        except asyncio.CancelledError:
            _check_task(answers)
            raise
        finally:
            self._calls -= 1
            answers.cancel()

    @asynccontextmanager
    async def exchange(self, path: str) -> AsyncIterator[AioExchange]:
        try:
            call = self._channel.stream_stream(path, None, None)(None)
        except grpc.aio.UsageError:
            raise CallFailed(*CHANNEL_CLOSED) from None
        self._calls += 1
        try:
            yield AioExchange(call)
        finally:
            self._calls -= 1
            call.cancel()

    async def close(self) -> None:
        await self._channel.close(None)


class AioExchange:
    def __init__(self, call: grpc.aio.StreamStreamCall[Any, Any]) -> None:
        self._call = call

    async def write(self, message: bytes) -> None:
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise _failed(error) from None
        except asyncio.InvalidStateError:  # it has ended, and its status was reported before
            code = await self._call.code()
            if code is grpc.StatusCode.OK:
                raise CallFailed(*CALL_ENDED) from None
            raise CallFailed(code.name, await self._call.details() or "") from None
        except asyncio.CancelledError:
            _check_task(self._call)
            raise

    async def done_writing(self) -> None:
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await self._call.done_writing()

    async def read(self) -> bytes | None:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _failed(error) from None
        except asyncio.CancelledError:
            _check_task(self._call)
            raise
        return message if isinstance(message, bytes) else None  # otherwise, it is grpc.aio's EOF


def _check_task(call: grpc.aio.Call) -> None:
    """Raise CallFailed if the call was cancelled, but not the current task.

    grpc.aio raises CancelledError in both cases.
    """
    task = asyncio.current_task()
    if call.cancelled() and task is not None and not task.cancelling():
        raise CallFailed(*CHANNEL_CLOSED) from None


def _failed(error: grpc.aio.AioRpcError) -> CallFailed:
    trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    return CallFailed(error.code().name, error.details() or "", tuple(trailers))
