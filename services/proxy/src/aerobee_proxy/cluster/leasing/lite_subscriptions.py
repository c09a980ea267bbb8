"""Send the lite topics that clients subscribe to, to every broker of the parent topic.

Each broker needs the whole subscription, because any broker may store messages of any lite topic.
The proxy sends the known subscriptions to a new master, and to a broker that was unavailable. A
client sends its complete set of lite topics every 30 s, which corrects any difference.
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
    """The lite topics that one client subscribes to, as far as this proxy knows.

    `is_complete` is true if the client has sent its complete set. Otherwise the client may have
    subscribed to further lite topics through another proxy.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self.names: dict[str, None] = {}


class HeldLiteTopics:
    """The lite topics of one client, as last sent to brokers.

    `turn` is a lock that a change holds until all brokers have answered, so that changes reach the
    brokers one after the other. `is_away` is true while brokers do not have them, because the
    client has disconnected.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.is_away = False
        self._held: dict[tuple[str, str, str], _Held] = {}  # by group, parent, client

    def took(self, request: SyncLiteTopicsRequest) -> None:
        """Register a change that every broker of the parent has accepted."""
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
            for name in request.lite_topics:
                held.names.pop(name, None)

    def lost(self, lite_topics: Iterable[str]) -> None:
        """Remove lite topics that another client has taken over."""
        for held in self._held.values():
            for name in lite_topics:
                held.names.pop(name, None)

    def requests(self) -> list[SyncLiteTopicsRequest]:
        """Return the requests that report all lite topics of the client to a broker."""
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
        """Send a change of a client to every broker of the parent topic.

        Return the lite topics that other clients have taken over. Raises the first MqError of a
        broker. Some brokers may then have the change, until the client sends its next complete set.
        """
        async with held.turn:
            lost = await self._sync(request)
            held.took(request)
            held.lost(lost)
        return lost

    async def repeat(self, broker_name: str, held: HeldLiteTopics) -> list[str]:
        """Send the lite topics of a client to a broker that does not know the client.

        Return the lite topics that other clients have taken over. A failure is only logged, because
        the client will send its complete set again.
        """
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

    async def restore(self, held: HeldLiteTopics) -> list[str]:
        """Send the lite topics of a client that is connected again to every broker.

        Return the lite topics that other clients have taken over. A failure is only logged, because
        the client will send its complete set again.
        """
        lost: list[str] = []
        async with held.turn:
            if held.is_away:
                held.is_away = False
                try:
                    for request in held.requests():
                        lost += await self._sync(request)
                except MqError as error:
                    structlog.get_logger().warning("lite_topics_not_restored", reason=error.message)
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

    async def leave(
        self, consumer_group: str, parent: str, client_id: str, *, may_return: bool
    ) -> None:
        """Remove the lite topics of a disconnected client from every broker.

        If the client `may_return`, possibly to another proxy, brokers then restore its lite topics.
        A failure is only logged, because brokers eventually remove a silent client.
        """
        request = SyncLiteTopicsRequest(
            consumer_group=consumer_group,
            parent=parent,
            client_id=client_id,
            action=LITE_SYNC_LEAVE,
            may_return=may_return,
        )
        try:
            await self._sync(request)
        except MqError as error:
            structlog.get_logger().warning("lite_client_not_removed", reason=error.message)
