"""Calls to a name server or another broker over gRPC; failures become MqError. Decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Protocol, TypeVar, cast

import grpc
from aerobee.broker.v1 import admin_pb2, admin_pb2_grpc
from aerobee.namesrv.v1 import namesrv_pb2, namesrv_pb2_grpc

from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.status import Code, MqError, error_from

# A name server that comes back is found again within a second (grpc's default: 120 s), and one that
# is frozen or cut off is noticed after 20 s.
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
)

T = TypeVar("T")


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

    async def route(self, topic: str, timeout_s: float) -> namesrv_pb2.TopicRoute:
        """Raises TOPIC_NOT_EXIST too."""

    async def close(self) -> None: ...


class GrpcNamesrvClient:
    """To be made, used and closed on one event loop."""

    def __init__(self, address: str) -> None:
        self._peer = f"name server {address}"
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = namesrv_pb2_grpc.NamesrvServiceStub(self._channel)

    async def register(
        self, request: namesrv_pb2.RegisterBrokerRequest, timeout_s: float
    ) -> namesrv_pb2.RegisterBrokerResponse:
        call = self._stub.RegisterBroker(request, timeout=timeout_s)
        return cast(namesrv_pb2.RegisterBrokerResponse, await _answer(call, self._peer))

    async def watch(
        self, request: namesrv_pb2.WatchRegistrationRequest
    ) -> AsyncIterator[namesrv_pb2.BrokerNotice]:
        call = self._stub.WatchRegistration(request)
        try:
            async for notice in call:
                yield notice
        except grpc.aio.AioRpcError as error:
            raise _translated(error, self._peer) from None
        finally:
            call.cancel()

    async def unregister(
        self, request: namesrv_pb2.UnregisterBrokerRequest, timeout_s: float
    ) -> None:
        await _answer(self._stub.UnregisterBroker(request, timeout=timeout_s), self._peer)

    async def route(self, topic: str, timeout_s: float) -> namesrv_pb2.TopicRoute:
        request = namesrv_pb2.GetTopicRouteRequest(topic=topic)
        call = self._stub.GetTopicRoute(request, timeout=timeout_s)
        return cast(namesrv_pb2.TopicRoute, (await _answer(call, self._peer)).route)

    async def close(self) -> None:
        await self._channel.close(None)


class GrpcBrokerClient:
    """To be made, used and closed on one event loop."""

    def __init__(self, address: str) -> None:
        self._peer = f"broker {address}"
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = admin_pb2_grpc.AdminServiceStub(self._channel)

    async def create_topic(self, config: TopicConfig, timeout_s: float) -> bool:
        """False, and nothing changed, when the topic is there."""
        get = admin_pb2.GetTopicRequest(topic=config.topic)
        try:
            await _answer(self._stub.GetTopic(get, timeout=timeout_s), self._peer)
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST:
                raise
        else:
            return False
        put = admin_pb2.PutTopicRequest(
            topic=namesrv_pb2.TopicConfig(
                topic=config.topic,
                read_queue_count=config.read_queue_count,
                write_queue_count=config.write_queue_count,
                permission=config.permission,
            ),
            only_new=True,
        )
        answer = await _answer(self._stub.PutTopic(put, timeout=timeout_s), self._peer)
        return bool(answer.created)

    async def close(self) -> None:
        await self._channel.close(None)


async def _answer(call: Awaitable[T], peer: str) -> T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise _translated(error, peer) from None


def _translated(error: grpc.aio.AioRpcError, peer: str) -> MqError:
    details = error.details() or error.code().name
    trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    return error_from(details, trailers) or MqError(
        Code.BROKER_UNREACHABLE if peer.startswith("broker") else Code.NAMESRV_UNREACHABLE,
        f"no answer from {peer}: {details}",
    )
