"""Check that a user has the rights that a request needs. This module does no I/O.

Policies refer to stored names, which include the namespace. What a right is, and that a retry or
dead-letter topic belongs to its group, is decided where name servers and brokers decide it
(`aerobee_wire.access`). A request whose type is missing in NEEDS fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code, Resource, Settings

from aerobee_proxy.v2.resources import stored_name
from aerobee_proxy.v2.status import Refused
from aerobee_wire.access.policies import GROUP, PUB, SUB, Need, topic_need
from aerobee_wire.access.users import User


def check(user: User, request: object, source: str = "") -> None:
    """Raise Refused with the code UNAUTHORIZED if the user lacks a right for the request.

    `source` is the "host:port" of the caller.
    """
    for need in NEEDS[type(request)](request):
        if not user.may(need, source):
            raise Refused(Code.UNAUTHORIZED, need.missing_for(user.name))


def may_publish(user: User, topic: str, source: str) -> bool:
    """Return whether this user may publish to a stored topic from the "host:port" `source`."""
    return user.may(topic_need(topic, PUB), source)


def _publishes(*of_topics: Resource) -> list[Need]:
    # Check each topic once, regardless of the number of messages.
    return [topic_need(name, PUB) for name in dict.fromkeys(map(stored_name, of_topics))]


def _sends(request: s.SendMessageRequest) -> list[Need]:
    messages = request.messages
    if len(messages) == 1:  # of most requests
        return [topic_need(stored_name(messages[0].topic), PUB)]
    return _publishes(*[message.topic for message in messages[:]])


def _subscribes(group: Resource, *of_topics: Resource) -> list[Need]:
    needs = [topic_need(stored_name(topic), SUB) for topic in of_topics]
    return [Need(GROUP, stored_name(group), (SUB,)), *needs]


def _of_group_if_any(request: s.HeartbeatRequest | s.NotifyClientTerminationRequest) -> list[Need]:
    return _subscribes(request.group) if request.group.name else []  # else a producer


def _of_group_and_topic(request: Any) -> list[Need]:
    return _subscribes(request.group, request.topic)


def _of_group_and_queue(request: Any) -> list[Need]:
    return _subscribes(request.group, request.message_queue.topic)


def _settings(settings: Settings) -> list[Need]:
    needs = _publishes(*settings.publishing.topics)
    if settings.WhichOneof("pub_sub") == "subscription":
        subscription = settings.subscription
        topics_of = (entry.topic for entry in subscription.subscriptions)
        needs += _subscribes(subscription.group, *topics_of)
    return needs


NEEDS: Mapping[type, Callable[[Any], list[Need]]] = {
    s.QueryRouteRequest: lambda r: [topic_need(stored_name(r.topic), PUB, SUB)],
    s.HeartbeatRequest: _of_group_if_any,
    s.SendMessageRequest: _sends,
    s.QueryAssignmentRequest: _of_group_and_topic,
    s.ReceiveMessageRequest: _of_group_and_queue,
    s.AckMessageRequest: _of_group_and_topic,
    s.ForwardMessageToDeadLetterQueueRequest: _of_group_and_topic,
    s.ChangeInvisibleDurationRequest: lambda r: _subscribes(r.group),
    s.PullMessageRequest: _of_group_and_queue,
    s.UpdateOffsetRequest: _of_group_and_queue,
    s.GetOffsetRequest: _of_group_and_queue,
    s.QueryOffsetRequest: lambda r: [topic_need(stored_name(r.message_queue.topic), SUB)],
    s.EndTransactionRequest: lambda r: _publishes(r.topic),
    s.RecallMessageRequest: lambda r: _publishes(r.topic),
    s.NotifyClientTerminationRequest: _of_group_if_any,
    s.SyncLiteSubscriptionRequest: _of_group_and_topic,
    Settings: _settings,
}
