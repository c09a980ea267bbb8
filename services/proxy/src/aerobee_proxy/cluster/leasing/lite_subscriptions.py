"""What clients subscribe to of lite topics, told to every broker of the parent.

Each broker has the whole subscription, because each may have, or get, messages of any lite topic. A
broker that was away learns it with the client's next complete set, 30 s later at most.
"""

from __future__ import annotations

import asyncio

import structlog
from aerobee.broker.v1.lite_pb2 import LITE_SYNC_LEAVE, SyncLiteTopicsRequest

from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_proxy.cluster.topic_route import readable_brokers
from aerobee_wire.rpcs import SYNC_LITE_TOPICS
from aerobee_wire.status import MqError

ANSWER_S = 2.0


class LiteSubscriptions:
    def __init__(self, calls: BrokerCalls, route_cache: RouteCache) -> None:
        self._calls = calls
        self._route_cache = route_cache

    async def sync(self, request: SyncLiteTopicsRequest) -> list[str]:
        """Returns the lite topics that the client has lost to others. Raises the first MqError of a
        broker: then some brokers have the change, and the client's next complete set tells all."""
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
            await self.sync(request)
        except MqError as error:
            structlog.get_logger().warning("lite_client_not_removed", reason=error.message)
