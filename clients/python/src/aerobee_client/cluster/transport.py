"""Call servers over gRPC: deadlines, and failures as MqError.

It neither retries nor chooses an address. Only this module and `channels.py` use grpc.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Protocol, TypeVar, cast

import grpc
from google.protobuf.message import Message

from aerobee_client.cluster.channels import Channels
from aerobee_client.errors import BrokerUnreachable, RequestTimeout
from aerobee_client.runtime.fork import PROCESS
from aerobee_wire.rpcs import Request, Rpc
from aerobee_wire.status import Code, MqError, error_from

Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Message)

CLOSED = "the connection was closed during the call: by this client, or for a new master"

# For failures without one of our codes: grpc itself failed, or the peer is another server.
_CODE_OF_STATUS = {
    grpc.StatusCode.UNIMPLEMENTED: Code.REQUEST_CODE_NOT_SUPPORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Code.MESSAGE_ILLEGAL,  # over 64 MiB, in either direction
    grpc.StatusCode.INVALID_ARGUMENT: Code.INVALID_PARAMETER,
}


class Transport(Protocol):
    """The network that the client needs. Addresses are "host:port"."""

    async def call(self, address: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float) -> R:
        """Call an RPC. Raises MqError: BrokerUnreachable, RequestTimeout, or the peer's refusal."""

    def stream(self, address: str, rpc: Rpc[Q, R], request: Q) -> AsyncGenerator[R, None]:
        """Yield the responses of a server stream. Raises like `call`, also after some responses."""

    async def drop(self, address: str) -> None:
        """Fail calls in flight at an address with BrokerUnreachable. Later calls reconnect."""

    async def close(self) -> None: ...


class GrpcTransport:
    """`Transport` over `grpc.aio`. Use and close it on one event loop."""

    def __init__(self, channels: Channels | None = None) -> None:
        self._channels = channels or Channels()

    async def call(self, address: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float) -> R:
        if PROCESS.is_child:
            PROCESS.check()
        method = self._channels.method(address, rpc, "unary_unary")
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
        call = self._channels.method(address, rpc, "unary_stream")(request)
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

    async def drop(self, address: str) -> None:
        await self._channels.drop(address)

    async def close(self) -> None:
        await self._channels.close()


def _is_cancelled() -> bool:
    """Return whether this task is cancelled.

    grpc also raises CancelledError when a channel is closed during a call, although the waiting
    task is not cancelled.
    """
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
