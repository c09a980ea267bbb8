"""QueryRoute: the queues of a topic, all of them reached through this proxy.

Codes: ILLEGAL_ACCESS_POINT, ILLEGAL_TOPIC, TOPIC_NOT_FOUND, PROXY_TIMEOUT. Difference from
RocketMQ's proxy: an unknown topic is created if brokers create topics automatically.
"""

from __future__ import annotations

from apache.rocketmq.v2.service_pb2 import QueryRouteRequest, QueryRouteResponse

from aerobee_proxy.cluster.topic_creation import TopicCreation
from aerobee_proxy.v2.resources import topic_name
from aerobee_proxy.v2.routes import EndpointsOf, message_queues
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.status import status


async def query_route(
    topic_creation: TopicCreation,
    endpoints: EndpointsOf,
    request: QueryRouteRequest,
    caller: Caller,
) -> QueryRouteResponse:
    topic = topic_name(request.topic)
    reachable_at = endpoints(request.endpoints)
    route = await topic_creation.route(topic)
    queues = message_queues(route, request.topic, reachable_at)
    return QueryRouteResponse(status=status(), message_queues=queues)
