"""Handle Heartbeat, NotifyClientTermination and SyncLiteSubscription."""

from __future__ import annotations

import asyncio
from typing import Any

from aerobee.broker.v1 import lite_pb2
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import (
    Code,
    LiteSubscriptionAction,
    OffsetOption,
)
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import (
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    SyncLiteSubscriptionRequest,
    SyncLiteSubscriptionResponse,
)

from aerobee_chassis.background import Background
from aerobee_proxy.cluster.leasing.lite_subscriptions import LiteSubscriptions
from aerobee_proxy.config import CurrentOptions
from aerobee_proxy.v2.heartbeats import ClientHeartbeats
from aerobee_proxy.v2.lite_clients import LiteDepartures, notify_lost
from aerobee_proxy.v2.resources import group_name, stored_name, topic_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.sessions import Sessions
from aerobee_proxy.v2.settings import CONSUMERS, PRODUCERS
from aerobee_proxy.v2.status import Refused, status
from aerobee_proxy.v2.validation import check_lite_topic
from aerobee_wire.status import Code as BrokerCode
from aerobee_wire.status import MqError


async def heartbeat(
    heartbeats: ClientHeartbeats,
    background: Background,
    request: HeartbeatRequest,
    caller: Caller,
) -> HeartbeatResponse:
    """Handle Heartbeat: keep the client's session alive, and forward the heartbeat to all brokers.

    The answer to a consumer waits for the brokers, but the answer to a producer does not.

    Codes: ILLEGAL_CONSUMER_GROUP, CONSUMER_GROUP_NOT_FOUND, UNRECOGNIZED_CLIENT_TYPE. Unlike
    RocketMQ's proxy, this proxy accepts a heartbeat that arrives before the client's settings.
    """

    # Some SDKs omit the type in heartbeats that arrive before their settings.
    kind = request.client_type or (caller.session.settings or request).client_type
    if kind in CONSUMERS:
        await heartbeats.of_consumer(caller.session, group_name(request.group), caller.call)
    elif kind in PRODUCERS:
        background.run(heartbeats.of_producer(caller.session, caller.call))
    else:
        raise Refused(
            Code.UNRECOGNIZED_CLIENT_TYPE,
            f"no client of type {int(kind)} sends heartbeats: set client_type",
        )
    return HeartbeatResponse(status=status())


async def notify_client_termination(
    sessions: Sessions,
    heartbeats: ClientHeartbeats,
    departures: LiteDepartures,
    request: NotifyClientTerminationRequest,
    caller: Caller,
) -> NotifyClientTerminationResponse:
    """Handle NotifyClientTermination: remove the session of a client that ends.

    This RPC returns only status codes that every RPC can return. Unlike RocketMQ's proxy, this
    proxy accepts an unknown client, because it does not know its earlier clients after a restart.
    """

    sessions.remove(caller.client_id, caller.session.user)
    departures.left(caller.session, ended=True)
    # Brokers give the client's messages to other members only after the client is unregistered.
    # A background task does that, because a client that ends rarely waits for the answer. A
    # producer does not name a group.
    group = stored_name(request.group) if request.group.name else ""
    unregistered = departures.background.run(heartbeats.unregister(caller.client_id, group))
    if group:
        await asyncio.shield(unregistered)
    return NotifyClientTerminationResponse(status=status())


_ACTIONS = {
    LiteSubscriptionAction.PARTIAL_ADD: lite_pb2.LITE_SYNC_ADD,
    LiteSubscriptionAction.PARTIAL_REMOVE: lite_pb2.LITE_SYNC_REMOVE,
    LiteSubscriptionAction.COMPLETE_ADD: lite_pb2.LITE_SYNC_REPLACE,
    LiteSubscriptionAction.COMPLETE_REMOVE: lite_pb2.LITE_SYNC_LEAVE,
}
_NUMBERS = {"offset": "number", "tail_n": "tail", "timestamp": "stored_since_ms"}
_ABOUT_TOPIC = "topic"


async def sync_lite_subscription(
    subscriptions: LiteSubscriptions,
    current: CurrentOptions,
    request: SyncLiteSubscriptionRequest,
    caller: Caller,
) -> SyncLiteSubscriptionResponse:
    """Handle SyncLiteSubscription: change the lite topics of a parent topic that a client gets.

    Codes:

        ILLEGAL_TOPIC                      the name is invalid, or the group is not bound to it
        ILLEGAL_CONSUMER_GROUP             the name is invalid, or the group does not exist
        ILLEGAL_LITE_TOPIC
        LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        ILLEGAL_OFFSET
        PROXY_TIMEOUT
        BAD_REQUEST                        PARTIAL_ADD in a wildcard group

    Differences from RocketMQ's proxy: COMPLETE_ADD checks the names of lite topics too. TIMESTAMP
    works, and TAIL_N counts from the end. The broker counts a client's lite topics for the quota.
    """
    options = current()
    topic, group = topic_name(request.topic), group_name(request.group)
    action = _ACTIONS.get(request.action)
    if action is None:
        raise Refused(
            Code.BAD_REQUEST,
            f"unknown action {int(request.action)}: use one of LiteSubscriptionAction",
        )
    if action in (lite_pb2.LITE_SYNC_ADD, lite_pb2.LITE_SYNC_REPLACE):
        for name in request.lite_topic_set:
            check_lite_topic(name, options)
    wanted = lite_pb2.SyncLiteTopicsRequest(
        consumer_group=group,
        parent=topic,
        client_id=caller.client_id,
        action=action,
        lite_topics=request.lite_topic_set,
        **(_begin(request.offset_option) if action == lite_pb2.LITE_SYNC_ADD else {}),
    )
    try:
        lost = await subscriptions.sync(wanted, caller.session.lite_topics)
    except MqError as error:
        if error.code is BrokerCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise Refused(Code.ILLEGAL_CONSUMER_GROUP, error.message) from None
        if error.code is BrokerCode.INVALID_PARAMETER and error.about == _ABOUT_TOPIC:
            raise Refused(Code.ILLEGAL_TOPIC, error.message) from None
        raise
    notify_lost(caller.session, lost)
    return SyncLiteSubscriptionResponse(status=status())


def _begin(option: OffsetOption) -> dict[str, Any]:
    """Convert the offset option into a field of the broker's request.

    The field sets the position at which the group begins to consume. Return an empty dict if the
    option is missing, or is the policy LAST.
    """
    given = option.WhichOneof("offset_type")
    if given is None:
        return {}
    if given == "policy":
        if option.policy == OffsetOption.MIN:
            return {"first": True}
        return {"end": True} if option.policy == OffsetOption.MAX else {}
    value = getattr(option, given)
    if value < 0:
        raise Refused(Code.ILLEGAL_OFFSET, f"invalid {given} {value}: use 0 or more")
    return {_NUMBERS[given]: value}
