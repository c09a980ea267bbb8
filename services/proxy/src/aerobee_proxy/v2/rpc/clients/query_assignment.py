"""QueryAssignment: where the members of a group consume a topic; the same for each of them.

Codes: ILLEGAL_ACCESS_POINT, ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, FORBIDDEN, TOPIC_NOT_FOUND,
PROXY_TIMEOUT.
"""

from __future__ import annotations

from apache.rocketmq.v2.service_pb2 import QueryAssignmentRequest, QueryAssignmentResponse

from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.errors import status
from aerobee_proxy.v2.routes import assignments, endpoints_for
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.validation import group_name, topic_name


async def query_assignment(
    parts: Parts, request: QueryAssignmentRequest, caller: Caller
) -> QueryAssignmentResponse:
    topic, group = topic_name(request.topic), group_name(request.group)
    endpoints = endpoints_for(request.endpoints, parts.options, parts.listen_port())
    route = await parts.topology.route(topic)
    policy = await parts.groups.policy(group)
    found = assignments(route, request.topic, endpoints, fifo=policy.fifo)
    return QueryAssignmentResponse(status=status(), assignments=found)
