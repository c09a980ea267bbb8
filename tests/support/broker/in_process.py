"""The `Transport` of a proxy or a client to the brokers of `harness.py`, in one loop: no sockets.

A name server of a few lines answers where a topic is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from aerobee.audit.v1.audit_pb2 import ListAuditLinesResponse
from aerobee.namesrv.v1.namesrv_pb2 import (
    AwayBroker,
    BrokerData,
    GetClusterInfoResponse,
    GetTopicRouteResponse,
    ListTopicsRequest,
    ListTopicsResponse,
    QueueData,
    TopicRoute,
)
from google.protobuf.message import Message

from aerobee_client.errors import BrokerUnreachable
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import Code, MqError
from support.broker.handlers import FakeCall
from support.broker.harness import BrokerHarness


class InProcess:
    """Brokers by name; a broker's name is its address.

    `defects`: their exceptions other than MqError. `away`: brokers that do not answer. `errors`:
    what all brokers raise, by method. `answers`: what answers in place of all brokers and of the
    name server, by method. `unregistered`: brokers that the name server does not know. `gone`:
    names of brokers that it knew once. `calls`: (broker, method). `methods`: what each broker
    offers.
    """

    def __init__(self, brokers: Mapping[str, BrokerHarness]) -> None:
        self._brokers = brokers
        self.methods = {
            (name, method.name): method
            for name, broker in brokers.items()
            for service in broker.broker.services()
            for method in service.methods
        }
        self.defects: list[Exception] = []
        self.away: set[str] = set()
        self.silence = Code.BROKER_UNREACHABLE  # the error of `away`; one that hangs: a timeout
        self.errors: dict[str, MqError] = {}
        self.answers: dict[str, Callable[[str, Any], Any]] = {}
        self.gone: set[str] = set()
        self.unregistered: set[str] = set()
        self.calls: list[tuple[str, str]] = []

    async def call(
        self, address: str, rpc: Rpc[Any, Any], request: Any, *, timeout_s: float
    ) -> Any:
        if address not in self._brokers:
            if rpc.method in self.answers:
                return await self._answer(rpc.method, address, request)
            return self._namesrv(rpc, request)
        self.calls.append((address, rpc.method))
        if address in self.away:
            raise MqError(self.silence, f"no answer from {address}")
        if rpc.method in self.errors:
            raise self.errors[rpc.method]
        if rpc.method in self.answers:
            return await self._answer(rpc.method, address, request)
        method = self.methods.get((address, rpc.method))
        if rpc.method == "ListAuditLines":
            return ListAuditLinesResponse()  # no broker here has an audit log
        if method is None:  # as of an older version
            raise MqError(Code.REQUEST_CODE_NOT_SUPPORTED, "Method not found!")
        # As over the wire: request and answer are serialised.
        parsed, call = method.request.FromString(request.SerializeToString()), FakeCall()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await method.handler(parsed, call)
        except TimeoutError:
            raise MqError(Code.REQUEST_TIMEOUT, f"{rpc.method} took too long") from None
        except MqError:
            raise
        except Exception as defect:
            self.defects.append(defect)
            raise MqError(Code.SYSTEM_ERROR, "a defect of the broker") from defect
        assert answer is not None and call.written.empty(), "one answer is asked for, not a stream"
        return rpc.response.FromString(answer.SerializeToString())

    async def _answer(self, method: str, address: str, request: Any) -> Any:
        answer = self.answers[method](address, request)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def stream(
        self, address: str, rpc: Rpc[Any, Any], request: Any
    ) -> AsyncGenerator[Any, None]:
        if rpc.method == "WatchBrokers":
            await asyncio.Event().wait()  # no broker here moves
        self.calls.append((address, rpc.method))
        if address in self.away:
            raise BrokerUnreachable(address, f"no answer from {address}")
        method = self.methods[address, rpc.method]
        parsed = method.request.FromString(request.SerializeToString())
        call = FakeCall()
        task = asyncio.ensure_future(method.handler(parsed, call))
        answer = asyncio.ensure_future(call.written.get())
        try:
            while not task.done():
                await asyncio.wait([task, answer], return_when=asyncio.FIRST_COMPLETED)
                if task.done() or not answer.done():
                    break
                yield rpc.response.FromString(answer.result().SerializeToString())
                answer = asyncio.ensure_future(call.written.get())
            last = task.result()
            if answer.done():
                yield rpc.response.FromString(answer.result().SerializeToString())
            while not call.written.empty():
                yield rpc.response.FromString(call.written.get_nowait().SerializeToString())
            if last is not None:
                yield rpc.response.FromString(last.SerializeToString())
        finally:
            task.cancel()
            answer.cancel()
            await asyncio.gather(task, answer, return_exceptions=True)

    def expect(self, address: str, broker_name: str) -> None:
        """No certificates here."""

    async def drop(self, address: str) -> None:
        """No broker here moves."""

    async def close(self) -> None:
        """The brokers outlive who calls them."""

    def _namesrv(self, rpc: Rpc[Any, Any], request: Any) -> Message:
        names = [name for name in self._brokers if name not in self.unregistered]
        brokers = [BrokerData(broker_name=name, addresses={0: name}) for name in names]
        if rpc.method == "GetClusterInfo":
            away = [AwayBroker(broker_name=name) for name in sorted(self.unregistered)]
            return GetClusterInfoResponse(brokers=brokers, away_brokers=away)
        if rpc.method == "ListTopics":
            wanted = request.scope != ListTopicsRequest.SYSTEM
            topics = {
                each.topic
                for broker in self._brokers.values()
                for each in broker.tables.topics.all()
            }
            return ListTopicsResponse(topics=sorted(topics) if wanted else ())
        if rpc.method == "ListAuditLines":
            return ListAuditLinesResponse()  # it has no audit log
        queues = []
        for name in names:
            broker = self._brokers[name]
            config = broker.tables.topics.get(request.topic)
            if config is not None:
                data = QueueData(
                    broker_name=name,
                    read_queue_count=config.read_queue_count,
                    write_queue_count=config.write_queue_count,
                    permission=config.permission,
                    attributes=config.attributes,
                )
                queues.append(data)
        if not queues:
            raise MqError(Code.TOPIC_NOT_EXIST, f"no broker serves the topic {request.topic}")
        return GetTopicRouteResponse(
            route=TopicRoute(queues=queues, brokers=brokers), away_brokers=sorted(self.gone)
        )
