"""QueryRoute: the queues of a topic, all of them reached where the client reached this proxy.

Codes: ILLEGAL_ACCESS_POINT, ILLEGAL_TOPIC, TOPIC_NOT_FOUND, PROXY_TIMEOUT. Differs from RocketMQ's
proxy: an unknown topic is made while brokers create topics by themselves.
"""

from __future__ import annotations

from apache.rocketmq.v2.service_pb2 import QueryRouteRequest, QueryRouteResponse

from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.errors import status
from aerobee_proxy.v2.routes import endpoints_for, message_queues
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.validation import topic_name


async def query_route(
    parts: Parts, request: QueryRouteRequest, caller: Caller
) -> QueryRouteResponse:
    topic = topic_name(request.topic)
    endpoints = endpoints_for(request.endpoints, parts.options, parts.listen_port())
    route = await parts.creation.route(topic)
    queues = message_queues(route, request.topic, endpoints)
    return QueryRouteResponse(status=status(), message_queues=queues)
