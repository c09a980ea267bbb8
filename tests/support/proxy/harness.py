"""The proxy's RPCs over a cluster in memory: one broker, its answers, calls without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import pytest
from aerobee.broker.v1.client_pb2 import HeartbeatResponse
from aerobee.broker.v1.message_pb2 import SendResponse, SendResult
from aerobee.namesrv.v1.namesrv_pb2 import (
    BrokerData,
    GetClusterInfoResponse,
    GetTopicRouteResponse,
    TopicRoute,
)
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import ReceiveMessageResponse
from google.protobuf.message import Message

from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.proxy import Proxy
from aerobee_proxy.v2.status import Refused
from aerobee_wire.access.caller import ANYBODY
from aerobee_wire.status import Code, MqError
from support.clock.manual_clock import ManualClock
from support.proxy.fake_transport import FakeTransport
from support.proxy.routes import queue_data

BROKER = BrokerData(broker_name="broker-a", addresses={0: "10.0.0.1:10911"})
CLIENT_ID = "host@1@0@abc"


def route(permission: int = 6, message_type: str = "MIXED") -> GetTopicRouteResponse:
    """The route of a topic with four queues on one broker."""
    queues = queue_data("broker-a", 4, 4, permission, message_type)
    return GetTopicRouteResponse(route=TopicRoute(queues=[queues], brokers=[BROKER]))


class Cluster:
    """`routes`: topic → the name server's answer."""

    def __init__(self) -> None:
        self.routes: dict[str, GetTopicRouteResponse] = {"orders": route()}
        self.clock = ManualClock()
        self.transport = FakeTransport(
            GetTopicRoute=self._route,
            GetClusterInfo=GetClusterInfoResponse(brokers=[BROKER]),
            GetGroup=MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group"),
            Heartbeat=HeartbeatResponse(),
            Send=_send,
        )

    def proxy(self, **options: Any) -> Proxy:
        given = ProxyOptions(namesrv_addr="10.0.0.9:9876", **options)
        return Proxy(given, self.transport, self.clock, listen_port=lambda: 8081)

    def _route(self, address: str, request: Any) -> GetTopicRouteResponse:
        found = self.routes.get(request.topic)
        if found is None:
            raise MqError(Code.TOPIC_NOT_EXIST, f"no broker serves the topic {request.topic}")
        return found


def _send(address: str, request: Any) -> SendResponse:
    return SendResponse(
        results=[SendResult(queue_id=m.queue_id, queue_offset=7) for m in request.messages]
    )


class FakeCall:
    """A `Call` that collects what the handler writes. Bytes are decoded as an `answer`."""

    def __init__(
        self,
        metadata: Mapping[str, str] | None = None,
        time_remaining_s: float | None = None,
        answer: type[Message] = ReceiveMessageResponse,
    ) -> None:
        self.metadata = {"x-mq-client-id": CLIENT_ID} if metadata is None else metadata
        self.peer = "192.0.2.1:5123"
        self.certificate_uris: tuple[str, ...] = ()
        self.is_encrypted = True
        self.caller = ANYBODY
        self.written: list[Any] = []
        self.delays: list[float] = []
        self._time_remaining_s = time_remaining_s
        self._answer = answer

    def time_remaining_s(self) -> float | None:
        return self._time_remaining_s

    def delay_answer(self, seconds: float) -> None:
        self.delays.append(seconds)

    async def write(self, message: Any) -> None:
        if isinstance(message, bytes):
            message = self._answer.FromString(message)
        self.written.append(message)

    async def write_all(self, messages: Iterable[Any]) -> None:
        for message in messages:
            await self.write(message)


async def streamed(handler: Any, request: Any, call: FakeCall) -> list[Any]:
    """All messages of a server stream."""
    last = await handler(request, call)
    if last is not None:
        await call.write(last)
    return call.written


class Requests:
    """A stream of requests that a test feeds."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, request: Any) -> None:
        self._queue.put_nowait(request)

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (request := await self._queue.get()) is not None:
            yield request


def refused(code: d.Code, call: Callable[..., object], *arguments: Any) -> None:
    """Asserts that the call raises Refused with this code and a message of one line.

    The message says what is wrong, and then what to do. Only RocketMQ's words about invisible
    durations stay as they are.
    """
    with pytest.raises(Refused) as caught:
        call(*arguments)
    assert d.Code.Name(caught.value.code) == d.Code.Name(code)
    text = caught.value.message
    assert "\n" not in text
    assert ": " in text or "; " in text or code == d.Code.ILLEGAL_INVISIBLE_TIME, text
