"""Which broker serves which topic, and where each broker is: what name servers say, kept a while.

A route is asked for again after 20 s. While no name server answers, one that is in use is given out
however old, and brokers are where they were last; who can be helped so does not wait for name
servers that hang. Requests for one topic at the same time share one question. Topics that nobody
knows are not kept. One that was known is gone once every name server that answers says so, and
knows its brokers: a broker that starts again takes its topics along, and brings them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog
from aerobee.namesrv.v1.namesrv_pb2 import (
    GetClusterInfoRequest,
    GetTopicRouteRequest,
    TopicRoute,
)
from google.protobuf.message import Message

from aerobee_chassis.clock import Clock
from aerobee_proxy.cluster.log_throttle import Seldom
from aerobee_proxy.cluster.single_flight import AGAIN_MS, Questions
from aerobee_proxy.cluster.transport import Transport
from aerobee_wire.rpcs import GET_CLUSTER_INFO, GET_TOPIC_ROUTE, Rpc
from aerobee_wire.status import Code, MqError

READABLE, WRITABLE = 4, 2  # bits of a topic's permission
MESSAGE_TYPE_ATTRIBUTE = "message.type"
REFRESH_MS = 20_000
CLUSTER_MS = 1_000  # all brokers are asked for again after: each heartbeat of each client asks
EXPIRE_MS = 300_000  # since it was last given out
MAX_TOPICS = 20_000
TIMEOUT_S = 3.0

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


@dataclass(slots=True)
class _Known:
    """Times are monotonic."""

    route: TopicRoute
    said_ms: int
    old_from_ms: int
    used_ms: int


class Topology:
    """`namesrvs`: "host:port" each; the first that answers is asked first the next time."""

    def __init__(self, transport: Transport, namesrvs: Sequence[str], clock: Clock) -> None:
        self._transport = transport
        self._namesrvs = list(namesrvs)
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._asking: Questions[TopicRoute] = Questions(clock)
        self._addresses: dict[str, str] = {}
        self._asking_brokers: Questions[dict[str, str]] = Questions(clock)
        # As name servers said it last, of all brokers and of any one.
        self._cluster: dict[str, str] | None = None
        self._cluster_old_from_ms = 0  # monotonic
        self._last: dict[str, str] = {}
        self._silent_until_ms = 0  # monotonic: not asked before by who can do without
        self._seldom = Seldom(clock)

    async def route(self, topic: str) -> TopicRoute:
        """The route of a stored topic name. Raises MqError TOPIC_NOT_EXIST, NAMESRV_UNREACHABLE."""
        known = self._known.get(topic)
        now_ms = self._clock.monotonic_ms()
        if known is not None:
            if now_ms - known.used_ms >= EXPIRE_MS:
                known = None
            else:
                known.used_ms = now_ms
                if now_ms < max(known.old_from_ms, self._silent_until_ms):
                    return known.route
        question = self._asking.ask(topic, lambda: self._fetch(topic))
        try:
            return await self._asking.answer(question, impatient=known is not None)
        except (MqError, TimeoutError) as error:
            if known is None or getattr(error, "code", None) is Code.TOPIC_NOT_EXIST:
                raise
            if isinstance(error, MqError):
                known.old_from_ms = self._clock.monotonic_ms() + AGAIN_MS
            return known.route

    def forget(self, topic: str) -> None:
        """The next `route` asks again."""
        self._known.pop(topic, None)

    async def address_of(self, broker_name: str) -> str:
        """Of the master. Raises MqError BROKER_NOT_EXIST."""
        address = self._addresses.get(broker_name)
        if address is None:
            try:
                await self._ask_brokers(impatient=broker_name in self._last)
                address = self._addresses.get(broker_name)
            except (MqError, TimeoutError):
                address = self._last.get(broker_name)
                if address is None:
                    raise
                self._addresses[broker_name] = address
        if address is None:
            raise MqError(Code.BROKER_NOT_EXIST, f"no name server knows a broker {broker_name!r}")
        return address

    def forget_address(self, broker_name: str) -> None:
        """It did not answer: it may be somewhere else by now."""
        self._addresses.pop(broker_name, None)

    async def brokers(self) -> dict[str, str]:
        """Name → address of the master, of every broker. Raises MqError NAMESRV_UNREACHABLE."""
        if self._cluster and self._clock.monotonic_ms() < self._cluster_old_from_ms:
            return self._cluster
        try:
            return await self._ask_brokers(impatient=self._cluster is not None)
        except (MqError, TimeoutError):
            if self._cluster is None:
                raise
            return self._cluster

    async def _fetch_brokers(self) -> dict[str, str]:
        answer = await self._ask(GET_CLUSTER_INFO, GetClusterInfoRequest())
        found = {b.broker_name: b.addresses[0] for b in answer.brokers if 0 in b.addresses}
        self._addresses.update(found)
        self._cluster, self._last = found, dict(found)
        self._cluster_old_from_ms = self._clock.monotonic_ms() + CLUSTER_MS
        return found

    async def _ask_brokers(self, *, impatient: bool) -> dict[str, str]:
        """All who miss an address, each consumer of a broker that went away, share one question."""
        question = self._asking_brokers.ask("", self._fetch_brokers)
        return await self._asking_brokers.answer(question, impatient=impatient)

    async def _fetch(self, topic: str) -> TopicRoute:
        try:
            request = GetTopicRouteRequest(topic=topic)
            answer = await self._ask(GET_TOPIC_ROUTE, request, doubting=topic in self._known)
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST:
                raise
            if await self._may_come_back(topic):
                raise MqError(
                    Code.NAMESRV_UNREACHABLE, f"the brokers of topic {topic} are away: try again"
                ) from None
            self.forget(topic)
            raise
        if len(self._known) >= MAX_TOPICS:
            del self._known[next(iter(self._known))]
        self._known.pop(topic, None)
        now_ms = self._clock.monotonic_ms()
        self._known[topic] = _Known(answer.route, now_ms, now_ms + REFRESH_MS, now_ms)
        for broker in answer.route.brokers:
            if 0 in broker.addresses:
                self._addresses[broker.broker_name] = broker.addresses[0]
                self._last[broker.broker_name] = broker.addresses[0]
        return answer.route

    async def _may_come_back(self, topic: str) -> bool:
        known = self._known.get(topic)
        if known is None or self._clock.monotonic_ms() - known.said_ms >= EXPIRE_MS:
            return False
        try:
            found = await self._fetch_brokers()
        except MqError:
            return True
        return any(broker.broker_name not in found for broker in known.route.brokers)

    async def _ask(self, rpc: Rpc[Q, R], request: Q, *, doubting: bool = False) -> R:
        """The answer of the first name server that has one. `doubting`: that a topic is not there,
        for one that has just started knows none."""
        last: MqError | None = None
        absent: MqError | None = None
        for namesrv in list(self._namesrvs):
            try:
                return await self._transport.call(namesrv, rpc, request, timeout_s=TIMEOUT_S)
            except MqError as error:
                if error.code is Code.TOPIC_NOT_EXIST:
                    if not doubting:
                        raise
                    absent = error
                    continue
                last = error
                untold = self._seldom.due(namesrv)
                if untold is not None:
                    structlog.get_logger().warning(
                        "name server failed",
                        namesrv=namesrv,
                        rpc=rpc.method,
                        reason=error.message,
                        untold=untold,
                    )
                self._namesrvs.remove(namesrv)
                self._namesrvs.append(namesrv)
        if absent is not None:
            raise absent
        self._silent_until_ms = self._clock.monotonic_ms() + AGAIN_MS
        raise MqError(
            Code.NAMESRV_UNREACHABLE,
            f"no name server answers: {last.message if last else 'none is configured'}",
        )
