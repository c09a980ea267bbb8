"""Handle QueryRoute and QueryAssignment."""

from __future__ import annotations

from aerobee_foreign.apache.rocketmq.v2.service_pb2 import (
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
)

from aerobee_proxy.cluster.group_configs import GroupConfigCache
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_proxy.cluster.topic_creation import TopicCreation
from aerobee_proxy.v2.resources import group_name, topic_name
from aerobee_proxy.v2.routes import EndpointsOf, assignments, message_queues
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.status import status


async def query_route(
    topic_creation: TopicCreation,
    endpoints: EndpointsOf,
    request: QueryRouteRequest,
    caller: Caller,
) -> QueryRouteResponse:
    """Handle QueryRoute: return the queues of a topic, with endpoints of this proxy.

    Codes: ILLEGAL_ACCESS_POINT, ILLEGAL_TOPIC, TOPIC_NOT_FOUND, PROXY_TIMEOUT. Unlike RocketMQ's
    proxy, this proxy creates an unknown topic if brokers create topics automatically.
    """

    topic = topic_name(request.topic)
    reachable_at = endpoints(request.endpoints)
    route = await topic_creation.route(topic, caller.session.user)
    queues = message_queues(route, request.topic, reachable_at)
    return QueryRouteResponse(status=status(), message_queues=queues)


async def query_assignment(
    route_cache: RouteCache,
    group_configs: GroupConfigCache,
    endpoints: EndpointsOf,
    request: QueryAssignmentRequest,
    caller: Caller,
) -> QueryAssignmentResponse:
    """Handle QueryAssignment: return the queues of a topic, the same for each member of a group.

    Codes: ILLEGAL_ACCESS_POINT, ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, FORBIDDEN, TOPIC_NOT_FOUND,
    PROXY_TIMEOUT.
    """

    topic, group = topic_name(request.topic), group_name(request.group)
    reachable_at = endpoints(request.endpoints)
    route = await route_cache.route(topic)
    policy = await group_configs.policy(group)
    # Lite topics are in order regardless of the named queue, so one queue stands for all.
    ordered = policy.lite is None and await group_configs.is_ordered(policy, topic)
    return QueryAssignmentResponse(
        status=status(),
        assignments=assignments(route, request.topic, reachable_at, fifo=ordered),
    )
