"""Calls to one name server over gRPC; failures become MqError. Decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Protocol, cast

import grpc
from aerobee.namesrv.v1 import namesrv_pb2, namesrv_pb2_grpc

from aerobee_wire.status import Code, MqError, error_from

# A name server that comes back is found again within a second (grpc's default: 120 s), and one that
# is frozen or cut off is noticed after 20 s.
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
)


class NamesrvClient(Protocol):
    """What registration needs of a name server. Every call raises MqError."""

    async def register(
        self, request: namesrv_pb2.RegisterBrokerRequest, timeout_s: float
    ) -> namesrv_pb2.RegisterBrokerResponse: ...

    def watch(
        self, request: namesrv_pb2.WatchRegistrationRequest
    ) -> AsyncIterator[namesrv_pb2.BrokerNotice]:
        """Ends or raises when the name server goes."""

    async def unregister(
        self, request: namesrv_pb2.UnregisterBrokerRequest, timeout_s: float
    ) -> None: ...

    async def close(self) -> None: ...


class GrpcNamesrvClient:
    """To be made, used and closed on one event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._stub = namesrv_pb2_grpc.NamesrvServiceStub(self._channel)

    async def register(
        self, request: namesrv_pb2.RegisterBrokerRequest, timeout_s: float
    ) -> namesrv_pb2.RegisterBrokerResponse:
        try:
            return cast(
                namesrv_pb2.RegisterBrokerResponse,
                await self._stub.RegisterBroker(request, timeout=timeout_s),
            )
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None

    async def watch(
        self, request: namesrv_pb2.WatchRegistrationRequest
    ) -> AsyncIterator[namesrv_pb2.BrokerNotice]:
        call = self._stub.WatchRegistration(request)
        try:
            async for notice in call:
                yield notice
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None
        finally:
            call.cancel()

    async def unregister(
        self, request: namesrv_pb2.UnregisterBrokerRequest, timeout_s: float
    ) -> None:
        try:
            await self._stub.UnregisterBroker(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None

    async def close(self) -> None:
        await self._channel.close(None)

    def _translated(self, error: grpc.aio.AioRpcError) -> MqError:
        details = error.details() or error.code().name
        trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
        return error_from(details, trailers) or MqError(
            Code.NAMESRV_UNREACHABLE, f"no answer from name server {self._address}: {details}"
        )
