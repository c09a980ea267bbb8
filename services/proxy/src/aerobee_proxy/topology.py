"""Which broker serves which topic, and where each broker is: what name servers say, kept a while.

A route is asked for again after 20 s and given out up to 300 s old while no name server answers.
Requests for one topic at the same time share one question. Topics that nobody knows are not kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from aerobee.namesrv.v1.namesrv_pb2 import (
    GetClusterInfoRequest,
    GetTopicRouteRequest,
    TopicRoute,
)
from google.protobuf.message import Message

from aerobee_chassis.clock import Clock
from aerobee_proxy.rpcs import GET_CLUSTER_INFO, GET_TOPIC_ROUTE, Rpc
from aerobee_proxy.transport import Transport
from aerobee_wire.status import Code, MqError

REFRESH_MS = 20_000
EXPIRE_MS = 300_000
MAX_TOPICS = 20_000
TIMEOUT_S = 3.0

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class _Known:
    route: TopicRoute
    at_ms: int  # monotonic


class Topology:
    """`namesrvs`: "host:port" each; the first that answers is asked first the next time."""

    def __init__(self, transport: Transport, namesrvs: Sequence[str], clock: Clock) -> None:
        self._transport = transport
        self._namesrvs = list(namesrvs)
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}
        self._addresses: dict[str, str] = {}
        self._asking_brokers: asyncio.Task[dict[str, str]] | None = None

    async def route(self, topic: str) -> TopicRoute:
        """The route of a stored topic name. Raises MqError TOPIC_NOT_EXIST, NAMESRV_UNREACHABLE."""
        known = self._known.get(topic)
        age_ms = self._clock.monotonic_ms() - known.at_ms if known else EXPIRE_MS
        if known and age_ms < REFRESH_MS:
            return known.route
        try:
            return await self._ask_once(topic)
        except MqError as error:
            if known is None or age_ms >= EXPIRE_MS or error.code is Code.TOPIC_NOT_EXIST:
                raise
            return known.route

    def forget(self, topic: str) -> None:
        """The next `route` asks again."""
        self._known.pop(topic, None)

    async def address_of(self, broker_name: str) -> str:
        """Of the master. Raises MqError BROKER_NOT_EXIST."""
        address = self._addresses.get(broker_name)
        if address is None:
            await self._brokers_once()
            address = self._addresses.get(broker_name)
        if address is None:
            raise MqError(Code.BROKER_NOT_EXIST, f"no name server knows a broker {broker_name!r}")
        return address

    def forget_address(self, broker_name: str) -> None:
        """It did not answer: it may be somewhere else by now."""
        self._addresses.pop(broker_name, None)

    async def brokers(self) -> dict[str, str]:
        """Name → address of the master, of every broker."""
        answer = await self._ask(GET_CLUSTER_INFO, GetClusterInfoRequest())
        found = {b.broker_name: b.addresses[0] for b in answer.brokers if 0 in b.addresses}
        self._addresses.update(found)
        return found

    async def _brokers_once(self) -> None:
        """All who miss an address, each consumer of a broker that went away, share one question."""
        task = self._asking_brokers
        if task is None or task.done():
            task = self._asking_brokers = asyncio.create_task(self.brokers())
            task.add_done_callback(_look_at)
        await asyncio.shield(task)

    async def _ask_once(self, topic: str) -> TopicRoute:
        task = self._asking.get(topic)
        if task is None:
            task = asyncio.create_task(self._fetch(topic))
            self._asking[topic] = task
            task.add_done_callback(lambda done: self._asked(topic, done))
        # One caller that leaves must not take the answer from the others.
        return await asyncio.shield(task)

    def _asked(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        del self._asking[topic]
        _look_at(task)

    async def _fetch(self, topic: str) -> TopicRoute:
        try:
            answer = await self._ask(GET_TOPIC_ROUTE, GetTopicRouteRequest(topic=topic))
        except MqError as error:
            if error.code is Code.TOPIC_NOT_EXIST:
                self.forget(topic)
            raise
        if len(self._known) >= MAX_TOPICS:
            del self._known[next(iter(self._known))]
        self._known.pop(topic, None)
        self._known[topic] = _Known(answer.route, self._clock.monotonic_ms())
        for broker in answer.route.brokers:
            if 0 in broker.addresses:
                self._addresses[broker.broker_name] = broker.addresses[0]
        return answer.route

    async def _ask(self, rpc: Rpc[Q, R], request: Q) -> R:
        """The answer of the first name server that has one."""
        last: MqError | None = None
        for namesrv in list(self._namesrvs):
            try:
                return await self._transport.call(namesrv, rpc, request, timeout_s=TIMEOUT_S)
            except MqError as error:
                if error.code is Code.TOPIC_NOT_EXIST:
                    raise
                last = error
                structlog.get_logger().warning(
                    "name server failed", namesrv=namesrv, rpc=rpc.method, reason=error.message
                )
                self._namesrvs.remove(namesrv)
                self._namesrvs.append(namesrv)
        raise MqError(
            Code.NAMESRV_UNREACHABLE,
            f"no name server answers: {last.message if last else 'none is configured'}",
        )


def _look_at(task: asyncio.Task[Any]) -> None:
    """At its failure, also when every caller has left."""
    if not task.cancelled():
        task.exception()
