"""Authorization: the rights that each request needs. Pure.

Names are the stored ones, with their namespace. A retry topic belongs to its group: to send to it
or to read it, a user needs Sub on that group, and rights on topics do not matter. A request that is
not listed here is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from apache.rocketmq.v2 import service_pb2 as s
from apache.rocketmq.v2.definition_pb2 import Code, Resource, Settings

from aerobee_proxy.access.policies import GROUP, PUB, SUB, TOPIC, Need, allowed
from aerobee_proxy.access.users import User
from aerobee_proxy.v2.resources import stored_name
from aerobee_proxy.v2.status import Refused
from aerobee_wire import topics


def check(user: User, request: object) -> None:
    """Raises Refused UNAUTHORIZED."""
    if user.super:
        return
    for need in NEEDS[type(request)](request):
        if not allowed(user.policies, need):
            raise Refused(Code.UNAUTHORIZED, f"user {user.name!r} lacks {need}")


def may_publish(user: User, topic: str) -> bool:
    """Whether this user may publish to a stored topic."""
    return user.super or allowed(user.policies, _topic(topic, PUB))


def _topic(stored: str, *actions: str) -> Need:
    group = topics.group_of(stored)
    if group is not None and topics.is_retry(stored):
        return Need(GROUP, group, (SUB,))
    return Need(TOPIC, stored, actions)


def _publishes(topic: Resource) -> Need:
    return _topic(stored_name(topic), PUB)


def _subscribes(group: Resource, *of_topics: Resource) -> Iterator[Need]:
    yield Need(GROUP, stored_name(group), (SUB,))
    for topic in of_topics:
        yield _topic(stored_name(topic), SUB)


def _route(request: s.QueryRouteRequest) -> Iterator[Need]:
    yield _topic(stored_name(request.topic), PUB, SUB)


def _send(request: s.SendMessageRequest) -> Iterator[Need]:
    for topic in {
        stored_name(message.topic): message.topic for message in request.messages
    }.values():
        yield _publishes(topic)


def _to_topic(request: s.EndTransactionRequest | s.RecallMessageRequest) -> Iterator[Need]:
    yield _publishes(request.topic)


def _of_group(request: Any) -> Iterator[Need]:
    yield from _subscribes(request.group)


def _of_group_if_any(
    request: s.HeartbeatRequest | s.NotifyClientTerminationRequest,
) -> Iterator[Need]:
    if request.group.name:  # a consumer
        yield from _subscribes(request.group)


def _of_group_and_topic(request: Any) -> Iterator[Need]:
    yield from _subscribes(request.group, request.topic)


def _of_group_and_queue(request: Any) -> Iterator[Need]:
    yield from _subscribes(request.group, request.message_queue.topic)


def _of_queue(request: s.QueryOffsetRequest) -> Iterator[Need]:
    yield _topic(stored_name(request.message_queue.topic), SUB)


def _settings(settings: Settings) -> Iterator[Need]:
    for topic in settings.publishing.topics:
        yield _publishes(topic)
    if settings.WhichOneof("pub_sub") == "subscription":
        subscription = settings.subscription
        yield from _subscribes(
            subscription.group, *(entry.topic for entry in subscription.subscriptions)
        )


NEEDS: Mapping[type, Callable[[Any], Iterator[Need]]] = {
    s.QueryRouteRequest: _route,
    s.HeartbeatRequest: _of_group_if_any,
    s.SendMessageRequest: _send,
    s.QueryAssignmentRequest: _of_group_and_topic,
    s.ReceiveMessageRequest: _of_group_and_queue,
    s.AckMessageRequest: _of_group_and_topic,
    s.ForwardMessageToDeadLetterQueueRequest: _of_group_and_topic,
    s.ChangeInvisibleDurationRequest: _of_group,
    s.PullMessageRequest: _of_group_and_queue,
    s.UpdateOffsetRequest: _of_group_and_queue,
    s.GetOffsetRequest: _of_group_and_queue,
    s.QueryOffsetRequest: _of_queue,
    s.EndTransactionRequest: _to_topic,
    s.RecallMessageRequest: _to_topic,
    s.NotifyClientTerminationRequest: _of_group_if_any,
    s.SyncLiteSubscriptionRequest: _of_group_and_topic,
    Settings: _settings,
}
