"""What clients subscribe to of lite topics, told to every broker of the parent.

Each broker has the whole subscription, because each may have, or get, messages of any lite topic. A
new master, and a broker that was away, are told by the proxy, as far as it knows; the client's
complete sets, one each 30 s, tell the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog
from aerobee.broker.v1.lite_pb2 import (
    LITE_SYNC_ADD,
    LITE_SYNC_KEEP,
    LITE_SYNC_LEAVE,
    LITE_SYNC_REMOVE,
    LITE_SYNC_REPLACE,
    SyncLiteTopicsRequest,
)

from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_proxy.cluster.topic_route import readable_brokers
from aerobee_wire.rpcs import SYNC_LITE_TOPICS
from aerobee_wire.status import MqError

ANSWER_S = 2.0


class _Held:
    """`is_complete`: the client has told all that it holds; else it may hold more, by another
    proxy."""

    def __init__(self) -> None:
        self.is_complete = False
        self.names: dict[str, None] = {}


class HeldLiteTopics:
    """The lite topics of one client as brokers were told last: its complete set, if it has sent
    one, and what it added and removed. `turn`: its changes reach brokers one after the other."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._held: dict[tuple[str, str, str], _Held] = {}  # by group, parent, client

    def took(self, request: SyncLiteTopicsRequest) -> None:
        """Every broker of the parent has taken this."""
        key = request.consumer_group, request.parent, request.client_id
        if request.action == LITE_SYNC_LEAVE:
            self._held.pop(key, None)
            return
        held = self._held.setdefault(key, _Held())
        if request.action == LITE_SYNC_REPLACE:
            held.is_complete, held.names = True, dict.fromkeys(request.lite_topics)
        elif request.action == LITE_SYNC_ADD:
            held.names |= dict.fromkeys(request.lite_topics)
        elif request.action == LITE_SYNC_REMOVE:
            self.lost(request.lite_topics)

    def lost(self, lite_topics: Iterable[str]) -> None:
        """The client holds these no more."""
        for held in self._held.values():
            for name in lite_topics:
                held.names.pop(name, None)

    def requests(self) -> list[SyncLiteTopicsRequest]:
        """What tells a broker of them that does not know the client."""
        return [
            SyncLiteTopicsRequest(
                consumer_group=group,
                parent=parent,
                client_id=client_id,
                action=LITE_SYNC_REPLACE if held.is_complete else LITE_SYNC_KEEP,
                lite_topics=held.names,
            )
            for (group, parent, client_id), held in self._held.items()
            if held.is_complete or held.names
        ]


class LiteSubscriptions:
    def __init__(self, calls: BrokerCalls, route_cache: RouteCache) -> None:
        self._calls = calls
        self._route_cache = route_cache

    async def sync(self, request: SyncLiteTopicsRequest, held: HeldLiteTopics) -> list[str]:
        """Returns the lite topics that the client has lost to others. Raises the first MqError of a
        broker: then some brokers have the change, and the client's next complete set tells all."""
        async with held.turn:
            lost = await self._sync(request)
            held.took(request)
            held.lost(lost)
        return lost

    async def repeat(self, broker_name: str, held: HeldLiteTopics) -> list[str]:
        """Tells a broker that does not know the client what it holds. Returns the lite topics that
        the client has lost to others. A failure is logged: the client's next complete set
        tells the broker."""
        lost: list[str] = []
        async with held.turn:
            for request in held.requests():
                try:
                    lost += await self._repeat(broker_name, request)
                except MqError as error:
                    structlog.get_logger().warning(
                        "lite_topics_not_repeated", broker=broker_name, reason=error.message
                    )
            held.lost(lost)
        return lost

    async def _repeat(self, broker_name: str, request: SyncLiteTopicsRequest) -> Iterable[str]:
        route = await self._route_cache.route(request.parent)
        if all(data.broker_name != broker_name for data in readable_brokers(route)):
            return ()
        answer = await self._calls.call_patiently(
            broker_name, SYNC_LITE_TOPICS, request, timeout_s=ANSWER_S
        )
        return answer.lost

    async def _sync(self, request: SyncLiteTopicsRequest) -> list[str]:
        route = await self._route_cache.route(request.parent)
        answers = await asyncio.gather(
            *(
                self._calls.call(data.broker_name, SYNC_LITE_TOPICS, request, timeout_s=ANSWER_S)
                for data in readable_brokers(route)
            ),
            return_exceptions=True,
        )
        lost: dict[str, None] = {}
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            lost |= dict.fromkeys(answer.lost)
        return list(lost)

    async def leave(self, consumer_group: str, parent: str, client_id: str) -> None:
        """The client is gone. A failure is logged: a broker forgets a silent client anyway."""
        request = SyncLiteTopicsRequest(
            consumer_group=consumer_group,
            parent=parent,
            client_id=client_id,
            action=LITE_SYNC_LEAVE,
        )
        try:
            await self._sync(request)
        except MqError as error:
            structlog.get_logger().warning("lite_client_not_removed", reason=error.message)
