"""Decide which rights a user needs for each RPC of the administration port. This module has no I/O.

The rights are those that the same action needs at a broker (`aerobee_wire.permissions`). A request
whose type is missing in NEEDS fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aerobee_foreign.apache.rocketmq.v2 import admin_pb2 as pb
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code, Resource

from aerobee_proxy.v2.resources import stored_name
from aerobee_proxy.v2.status import Refused
from aerobee_wire.access.policies import CLUSTER, GET, GROUP, PUB, SUB, UPDATE, Need, topic_need
from aerobee_wire.access.users import User


def check(user: User, request: object, source: str, cluster: str) -> None:
    """Raise Refused with the code UNAUTHORIZED if the user lacks a right for the request.

    `source` is the "host:port" of the caller, and `cluster` the name of the cluster.
    """
    for need in NEEDS[type(request)](request, cluster):
        if not user.may(need, source):
            raise Refused(Code.UNAUTHORIZED, need.missing_for(user.name))


def resources(request: object, cluster: str) -> list[str]:
    """Return the resources that a request is about, for the audit log, such as "Topic:orders"."""
    subject = _SUBJECTS.get(type(request))
    found = [] if subject is None else [subject(request)]
    for need in NEEDS[type(request)](request, cluster):
        if need.kind != CLUSTER or not found:
            found.append(f"{need.kind}:{need.name}")
    return found


def _group(group: Resource, action: str) -> Need:
    return Need(GROUP, stored_name(group), (action,))


def _topic(topic: Resource, *actions: str) -> Need:
    return topic_need(stored_name(topic), *actions)


def _cluster(action: str) -> Callable[[Any, str], list[Need]]:
    return lambda _request, cluster: [Need(CLUSTER, cluster, (action,))]


def _subscriptions(request: Any, cluster: str) -> list[Need]:
    """Return the rights to read what the request names. A request without names is refused."""
    needs = [_group(request.group, GET)] if request.group.name else []
    return needs + ([_topic(request.topic, GET)] if request.topic.name else [])


def _reads_group(request: Any, cluster: str) -> list[Need]:
    return [_group(request.group, GET)]


def _changes_group(request: Any, cluster: str) -> list[Need]:
    return [_group(request.group, UPDATE)]


NEEDS: Mapping[type, Callable[[Any, str], list[Need]]] = {
    pb.ChangeLogLevelRequest: _cluster(UPDATE),
    pb.DescribeTopicStatusRequest: lambda r, _: [_topic(r.topic, GET)],
    pb.ListSubscriptionRequest: _subscriptions,
    pb.DescribeSubscriptionRequest: _subscriptions,
    pb.DeleteSubscriptionRequest: _changes_group,
    pb.DescribeGroupAccumulationRequest: _reads_group,
    pb.ListConsumerConnectionRequest: _reads_group,
    pb.ResetGroupOffsetRequest: _changes_group,
    pb.ListMessageRequest: lambda r, _: [_topic(r.topic, SUB, GET)],
    # The answer shows code of the client.
    pb.PrintThreadStackTraceRequest: _changes_group,
    # The client runs its listener, and the listener gets a message of the topic.
    pb.VerifyMessageRequest: lambda r, _: [_group(r.group, UPDATE), _topic(r.topic, SUB)],
    pb.AdminSendMessageRequest: lambda r, _: [_topic(r.topic, PUB)],
    pb.GetConsumerRunningInfoRequest: _reads_group,
    pb.GetTopicRouteRequest: lambda r, _: [_topic(r.topic, PUB, SUB, GET)],
    pb.QueryTimeSpanRequest: _reads_group,
    pb.GetProxyRuntimeStatsRequest: _cluster(GET),
}

# The requests that change something, let a client do something, or send a message.
CHANGES = frozenset(
    {
        pb.ChangeLogLevelRequest,
        pb.DeleteSubscriptionRequest,
        pb.ResetGroupOffsetRequest,
        pb.PrintThreadStackTraceRequest,
        pb.VerifyMessageRequest,
        pb.AdminSendMessageRequest,
    }
)
READS = frozenset({pb.ListMessageRequest})  # their answers have bodies of messages

# The subject of a request that its rights do not name.
_SUBJECTS: Mapping[type, Callable[[Any], str]] = {
    pb.ChangeLogLevelRequest: lambda r: "Option:logLevel",
    pb.PrintThreadStackTraceRequest: lambda r: f"Client:{r.client_id}",
    pb.VerifyMessageRequest: lambda r: f"Client:{r.client_id}",
}
