"""Calls to other services over grpc.aio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import cast

import grpc

from aerobee_chassis.rpc.transport import CHANNEL_CLOSED, CallFailed


class AioChannel:
    def __init__(self, target: str, options: Sequence[tuple[str, int]]) -> None:
        self._channel = grpc.aio.insecure_channel(target, options=options)

    async def unary(self, path: str, request: bytes, timeout_s: float) -> bytes:
        method = self._channel.unary_unary(path, None, None)
        try:
            return cast(bytes, await method(request, timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            raise _failed(error) from None
        except grpc.aio.UsageError:
            raise CallFailed(*CHANNEL_CLOSED) from None

    async def stream(self, path: str, request: bytes) -> AsyncGenerator[bytes, None]:
        try:
            answers = self._channel.unary_stream(path, None, None)(request)
        except grpc.aio.UsageError:
            raise CallFailed(*CHANNEL_CLOSED) from None
        try:
            async for answer in answers:
                yield cast(bytes, answer)
        except grpc.aio.AioRpcError as error:
            raise _failed(error) from None
        finally:
            answers.cancel()

    async def close(self) -> None:
        await self._channel.close(None)


def _failed(error: grpc.aio.AioRpcError) -> CallFailed:
    trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    return CallFailed(error.code().name, error.details() or "", tuple(trailers))
