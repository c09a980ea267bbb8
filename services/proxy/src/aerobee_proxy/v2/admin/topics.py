"""Handle DescribeTopicStatus and GetTopicRoute."""

from __future__ import annotations

import json
from typing import Any

from aerobee.namesrv.v1.namesrv_pb2 import TopicRoute
from aerobee_foreign.apache.rocketmq.v2 import admin_pb2 as pb

from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_proxy.cluster.topic_route import MIXED, UNSPECIFIED, message_type
from aerobee_proxy.v2.admin.calls import Operator
from aerobee_proxy.v2.resources import topic_name
from aerobee_proxy.v2.status import status


class TopicRpcs:
    """Codes: ILLEGAL_TOPIC, TOPIC_NOT_FOUND, PROXY_TIMEOUT."""

    def __init__(self, route_cache: RouteCache, cluster: str) -> None:
        self._route_cache = route_cache
        self._cluster = cluster

    async def describe_topic_status(
        self, request: pb.DescribeTopicStatusRequest, operator: Operator
    ) -> pb.DescribeTopicStatusResponse:
        """Return the type of a topic, and its attributes as tags.

        A topic of mixed types has the type MESSAGE_TYPE_UNSPECIFIED. Brokers do not keep a
        description or the time of the creation.
        """
        route = await self._route_cache.route(topic_name(request.topic))
        attributes = {name: text for data in route.queues for name, text in data.attributes.items()}
        kind = message_type(route)
        return pb.DescribeTopicStatusResponse(
            status=status(),
            topic_message_type=None if kind in (MIXED, UNSPECIFIED) else kind,
            tags=attributes,
        )

    async def get_topic_route(
        self, request: pb.GetTopicRouteRequest, operator: Operator
    ) -> pb.GetTopicRouteResponse:
        """Return the route of a topic as the JSON of RocketMQ's TopicRouteData.

        The addresses are those of brokers, which speak Aerobee's protocol. The other fields of the
        request have no effect.
        """
        route = await self._route_cache.route(topic_name(request.topic))
        text = json.dumps(_route_data(route, self._cluster), separators=(",", ":"))
        return pb.GetTopicRouteResponse(status=status(), topic_route_data=text)


def _route_data(route: TopicRoute, cluster: str) -> dict[str, Any]:
    brokers = [
        {
            "brokerAddrs": {str(number): host for number, host in sorted(each.addresses.items())},
            "brokerName": each.broker_name,
            "cluster": each.cluster or cluster,
            "enableActingMaster": False,
        }
        for each in sorted(route.brokers, key=lambda broker: broker.broker_name)
    ]
    queues = [
        {
            "brokerName": each.broker_name,
            "perm": each.permission,
            "readQueueNums": each.read_queue_count,
            "topicSysFlag": 0,
            "topicSynFlag": 0,  # the name that RocketMQ's client for Go reads
            "writeQueueNums": each.write_queue_count,
        }
        for each in sorted(route.queues, key=lambda data: data.broker_name)
    ]
    return {"brokerDatas": brokers, "filterServerTable": {}, "queueDatas": queues}
