"""Name servers and other brokers over gRPC; failures become MqError. Decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from aerobee.broker.v1 import admin_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_broker.metadata.topics import TopicConfig
from aerobee_chassis.rpc.caller import Caller
from aerobee_chassis.rpc.transport import CallFailed
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError, error_from


class NamesrvClient(Protocol):
    """A name server, as registration needs it. Every call raises MqError."""

    async def register(
        self, request: namesrv_pb2.RegisterBrokerRequest, timeout_s: float
    ) -> namesrv_pb2.RegisterBrokerResponse: ...

    def watch(
        self, request: namesrv_pb2.WatchRegistrationRequest
    ) -> AsyncIterator[namesrv_pb2.BrokerNotice]:
        """Ends or raises when the name server stops."""

    async def unregister(
        self, request: namesrv_pb2.UnregisterBrokerRequest, timeout_s: float
    ) -> None: ...

    async def route(self, topic: str, timeout_s: float) -> namesrv_pb2.TopicRoute:
        """Raises also TOPIC_NOT_EXIST."""

    async def close(self) -> None: ...


class GrpcNamesrvClient:
    """To be made, used and closed on one event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._caller = Caller(_namesrv_error)

    async def register(
        self, request: namesrv_pb2.RegisterBrokerRequest, timeout_s: float
    ) -> namesrv_pb2.RegisterBrokerResponse:
        return await self._caller.call(
            self._address, rpcs.REGISTER_BROKER, request, timeout_s=timeout_s
        )

    def watch(
        self, request: namesrv_pb2.WatchRegistrationRequest
    ) -> AsyncIterator[namesrv_pb2.BrokerNotice]:
        return self._caller.stream(self._address, rpcs.WATCH_REGISTRATION, request)

    async def unregister(
        self, request: namesrv_pb2.UnregisterBrokerRequest, timeout_s: float
    ) -> None:
        await self._caller.call(self._address, rpcs.UNREGISTER_BROKER, request, timeout_s=timeout_s)

    async def route(self, topic: str, timeout_s: float) -> namesrv_pb2.TopicRoute:
        request = namesrv_pb2.GetTopicRouteRequest(topic=topic)
        response = await self._caller.call(
            self._address, rpcs.GET_TOPIC_ROUTE, request, timeout_s=timeout_s
        )
        return response.route

    async def close(self) -> None:
        await self._caller.close()


class GrpcBrokerClient:
    """To be made, used and closed on one event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._caller = Caller(_broker_error)

    async def create_topic(self, config: TopicConfig, timeout_s: float) -> bool:
        """False, and nothing changed, when the topic is there."""
        get = admin_pb2.GetTopicRequest(topic=config.topic)
        try:
            await self._caller.call(self._address, rpcs.GET_TOPIC, get, timeout_s=timeout_s)
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
        response = await self._caller.call(self._address, rpcs.PUT_TOPIC, put, timeout_s=timeout_s)
        return response.created

    async def close(self) -> None:
        await self._caller.close()


def _namesrv_error(address: str, failure: CallFailed) -> MqError:
    return _error(Code.NAMESRV_UNREACHABLE, f"name server {address}", failure)


def _broker_error(address: str, failure: CallFailed) -> MqError:
    return _error(Code.BROKER_UNREACHABLE, f"broker {address}", failure)


def _error(code: Code, peer: str, failure: CallFailed) -> MqError:
    """The error that the peer answered with, else `code`."""
    details = failure.message or failure.status
    return error_from(details, failure.trailers) or MqError(
        code, f"no answer from {peer}: {details}"
    )
