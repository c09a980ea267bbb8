"""Calls to a name server or another broker over gRPC; failures become MqError. Decides nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Protocol, TypeVar

from aerobee.broker.v1 import admin_pb2
from aerobee.namesrv.v1 import namesrv_pb2
from google.protobuf.message import DecodeError, Message

from aerobee_broker.metadata.topics import TopicConfig
from aerobee_chassis.rpc.loops import open_channel
from aerobee_chassis.rpc.transport import CallFailed
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

_NAMESRV = "/aerobee.namesrv.v1.NamesrvService/"
_ADMIN = "/aerobee.broker.v1.AdminService/"

T = TypeVar("T", bound=Message)


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
        self._peer = _Peer(address, f"name server {address}", Code.NAMESRV_UNREACHABLE)

    async def register(
        self, request: namesrv_pb2.RegisterBrokerRequest, timeout_s: float
    ) -> namesrv_pb2.RegisterBrokerResponse:
        path, response = _NAMESRV + "RegisterBroker", namesrv_pb2.RegisterBrokerResponse
        return await self._peer.ask(path, request, response, timeout_s)

    async def watch(
        self, request: namesrv_pb2.WatchRegistrationRequest
    ) -> AsyncIterator[namesrv_pb2.BrokerNotice]:
        notices = self._peer.follow(
            _NAMESRV + "WatchRegistration", request, namesrv_pb2.BrokerNotice
        )
        async with aclosing(notices):
            async for notice in notices:
                yield notice

    async def unregister(
        self, request: namesrv_pb2.UnregisterBrokerRequest, timeout_s: float
    ) -> None:
        path, response = _NAMESRV + "UnregisterBroker", namesrv_pb2.UnregisterBrokerResponse
        await self._peer.ask(path, request, response, timeout_s)

    async def route(self, topic: str, timeout_s: float) -> namesrv_pb2.TopicRoute:
        path, response = _NAMESRV + "GetTopicRoute", namesrv_pb2.GetTopicRouteResponse
        request = namesrv_pb2.GetTopicRouteRequest(topic=topic)
        return (await self._peer.ask(path, request, response, timeout_s)).route

    async def close(self) -> None:
        await self._peer.close()


class GrpcBrokerClient:
    """To be made, used and closed on one event loop."""

    def __init__(self, address: str) -> None:
        self._peer = _Peer(address, f"broker {address}", Code.BROKER_UNREACHABLE)

    async def create_topic(self, config: TopicConfig, timeout_s: float) -> bool:
        """False, and nothing changed, when the topic is there."""
        get = admin_pb2.GetTopicRequest(topic=config.topic)
        try:
            await self._peer.ask(_ADMIN + "GetTopic", get, admin_pb2.GetTopicResponse, timeout_s)
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
        path, response = _ADMIN + "PutTopic", admin_pb2.PutTopicResponse
        return (await self._peer.ask(path, put, response, timeout_s)).created

    async def close(self) -> None:
        await self._peer.close()


class _Peer:
    """`name` and `unreachable` are for what is told when there is no answer."""

    def __init__(self, address: str, name: str, unreachable: Code) -> None:
        self._channel = open_channel(address, CHANNEL_OPTIONS)
        self._name = name
        self._unreachable = unreachable

    async def ask(self, path: str, request: Message, response: type[T], timeout_s: float) -> T:
        try:
            answer = await self._channel.unary(path, request.SerializeToString(), timeout_s)
            return response.FromString(answer)
        except (CallFailed, DecodeError) as error:
            raise self._translated(error) from None

    async def follow(
        self, path: str, request: Message, response: type[T]
    ) -> AsyncGenerator[T, None]:
        answers = self._channel.stream(path, request.SerializeToString())
        try:
            async with aclosing(answers):
                async for answer in answers:
                    yield response.FromString(answer)
        except (CallFailed, DecodeError) as error:
            raise self._translated(error) from None

    async def close(self) -> None:
        await self._channel.close()

    def _translated(self, error: CallFailed | DecodeError) -> MqError:
        if isinstance(error, DecodeError):
            return MqError(self._unreachable, f"the answer of {self._name} cannot be read")
        details = error.message or error.status
        return error_from(details, error.trailers) or MqError(
            self._unreachable, f"no answer from {self._name}: {details}"
        )
