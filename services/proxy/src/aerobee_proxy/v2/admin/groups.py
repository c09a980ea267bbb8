"""Handle the RPCs about consumer groups: subscriptions, members, lag and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aerobee.broker.v1.admin_pb2 import (
    DescribeGroupResponse,
    DescribeTopicRequest,
    ListLeasesRequest,
)
from aerobee.broker.v1.client_pb2 import ClientInfo, ConsumerData
from aerobee.broker.v1.lite_pb2 import ListLiteClientsRequest, ListLiteTopicsRequest
from aerobee.broker.v1.message_pb2 import Subscription
from aerobee.broker.v1.offset_pb2 import (
    ForgetConsumerOffsetsRequest,
    GetQueueOffsetsRequest,
    ResetConsumerOffsetsRequest,
)
from aerobee_foreign.apache.rocketmq.v2 import admin_pb2 as pb
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Broker, Code, MessageQueue, Resource

from aerobee_chassis.clock import Clock
from aerobee_proxy.cluster.administration import Administration, lag_of, latest
from aerobee_proxy.v2.admin.calls import Operator
from aerobee_proxy.v2.admin.clients import described, expression_of, resource
from aerobee_proxy.v2.resources import group_name, topic_name
from aerobee_proxy.v2.status import Refused, status
from aerobee_proxy.v2.validation import milliseconds
from aerobee_wire import topics
from aerobee_wire.queues.lite import group_of as lite_group_of
from aerobee_wire.rpcs import (
    DESCRIBE_TOPIC,
    FORGET_CONSUMER_OFFSETS,
    GET_QUEUE_OFFSETS,
    LIST_LEASES,
    LIST_LITE_CLIENTS,
    LIST_LITE_TOPICS,
    RESET_CONSUMER_OFFSETS,
)
from aerobee_wire.status import Code as BrokerCode

_NO_GROUP = BrokerCode.SUBSCRIPTION_GROUP_NOT_EXIST


class _Subscriber(NamedTuple):
    client: ClientInfo
    consumer: ConsumerData
    subscription: Subscription


@dataclass(slots=True)
class _Accumulation:
    """The messages that a group has not consumed.

    Times are milliseconds since the epoch, 0 if unknown.
    """

    lag: int = 0
    leased: int = 0
    oldest_ms: int = 0
    consumed_ms: int = 0

    def add(self, lag: int, oldest_ms: int, consumed_ms: int) -> None:
        self.lag += lag
        self.oldest_ms = min(filter(None, (self.oldest_ms, oldest_ms)), default=0)
        self.consumed_ms = max(self.consumed_ms, consumed_ms)

    def answer(self, now_ms: int) -> pb.DescribeGroupAccumulationResponse.GroupAccumulation:
        found = pb.DescribeGroupAccumulationResponse.GroupAccumulation(
            inflight_messages=self.leased,
            ready_messages=max(0, self.lag - self.leased),
            accumulation=self.lag,
            last_consume_timestamp=self.consumed_ms,
        )
        if self.oldest_ms:
            found.deliver_delay_time.FromMilliseconds(max(0, now_ms - self.oldest_ms))
        return found


class GroupRpcs:
    """Codes of all: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, CONSUMER_GROUP_NOT_FOUND, PROXY_TIMEOUT.

    TOPIC_NOT_FOUND if the request names a topic.
    """

    def __init__(self, administration: Administration, clock: Clock) -> None:
        self._administration = administration
        self._clock = clock

    # ---- subscriptions ----

    async def list_subscription(
        self, request: pb.ListSubscriptionRequest, operator: Operator
    ) -> pb.ListSubscriptionResponse:
        """Return the topics of a group, or the groups of a topic, or one such pair.

        A group without a member that subscribes is offline; its expression is not known.
        BAD_REQUEST: the request names neither.
        """
        if request.group.name:
            found = await self._of_group(request.group, request.topic)
        elif request.topic.name:
            found = await self._of_topic(request.topic)
        else:
            raise _nothing_named()
        return pb.ListSubscriptionResponse(status=status(), subscription_info=found)

    async def _of_group(self, group: Resource, topic: Resource) -> list[pb.SubscriptionInfo]:
        name = group_name(group)
        answers = await self._administration.group(name)
        only = topic_name(topic) if topic.name else ""
        members = latest(each for answer in answers.values() for each in answer.members)
        read = {each.progress.topic for answer in answers.values() for each in answer.queues}
        read |= {each.subscription.topic for each in _subscribers(members, name)}
        return [
            _info(name, each, members, group.resource_namespace, lite=_is_lite(answers.values()))
            for each in sorted(read)
            if not topics.is_retry(each) and (not only or each == only)
        ]

    async def _of_topic(self, topic: Resource) -> list[pb.SubscriptionInfo]:
        name = topic_name(topic)
        answers = await self._administration.ask(
            await self._administration.brokers_of(name),
            DESCRIBE_TOPIC,
            DescribeTopicRequest(topic=name),
            BrokerCode.TOPIC_NOT_EXIST,
        )
        members: dict[str, int] = {}
        for answer in answers.values():
            for each in answer.groups:
                members[each.consumer_group] = max(
                    each.members, members.get(each.consumer_group, 0)
                )
        found = []
        for group, count in sorted(members.items()):
            clients = await self._administration.clients(group) if count else []
            found.append(_info(group, name, clients, topic.resource_namespace))
        return found

    async def describe_subscription(
        self, request: pb.DescribeSubscriptionRequest, operator: Operator
    ) -> pb.DescribeSubscriptionResponse:
        """Return the subscriptions of each client. BAD_REQUEST: no group and no topic is named."""
        if not request.group.name and not request.topic.name:
            raise _nothing_named()
        group = group_name(request.group) if request.group.name else ""
        topic = topic_name(request.topic) if request.topic.name else ""
        space = request.group.resource_namespace or request.topic.resource_namespace
        clients = await self._administration.clients(group, topic)
        return pb.DescribeSubscriptionResponse(
            status=status(),
            client_subscription_info=[
                pb.DescribeSubscriptionResponse.ClientSubscriptionInfo(
                    client_info=described(each.client, each.consumer.consumer_group),
                    subscription_info=_info(
                        each.consumer.consumer_group,
                        each.subscription.topic,
                        [each.client],
                        space,
                    ),
                )
                for each in _subscribers(clients, group, topic)
            ],
        )

    async def delete_subscription(
        self, request: pb.DeleteSubscriptionRequest, operator: Operator
    ) -> pb.DeleteSubscriptionResponse:
        """Delete the offsets and leases of a group in a topic that it has left.

        It begins there like a new group if it returns. The expression has no effect, because a
        group has one subscription to a topic. NOT_FOUND: the group has no offset in the topic.
        BAD_REQUEST: a member consumes the topic.
        """
        group, topic = group_name(request.group), topic_name(request.topic)
        asked = ForgetConsumerOffsetsRequest(consumer_group=group, topic=topic, dry_run=True)
        checked = await self._administration.ask_all(FORGET_CONSUMER_OFFSETS, asked, _NO_GROUP)
        held = [broker for broker, answer in checked.items() if answer.offsets]
        if not held:
            raise Refused(Code.NOT_FOUND, f"group {group!r} has no offset in topic {topic!r}")
        asked = ForgetConsumerOffsetsRequest(consumer_group=group, topic=topic)
        await self._administration.ask(held, FORGET_CONSUMER_OFFSETS, asked)
        operator.did("subscription_deleted", group=group, topic=topic)
        return pb.DeleteSubscriptionResponse(status=status())

    async def list_consumer_connection(
        self, request: pb.ListConsumerConnectionRequest, operator: Operator
    ) -> pb.ListConsumerConnectionResponse:
        """Return the members of a group, optionally those that subscribe to a topic or lite topic.

        BAD_REQUEST: a lite topic without its parent topic.
        """
        group = group_name(request.group)
        topic = topic_name(request.topic) if request.topic.name else ""
        clients = await self._administration.clients(group, topic)
        clients = [each for each in clients if _consumes(each, group)]
        if request.liteTopic:
            if not topic:
                raise Refused(Code.BAD_REQUEST, "liteTopic needs its parent in topic")
            lite = ListLiteClientsRequest(parent=topic, lite_topic=request.liteTopic)
            answers = await self._administration.ask(
                await self._administration.brokers_of(topic), LIST_LITE_CLIENTS, lite
            )
            subscribed = {
                each.client_id
                for answer in answers.values()
                for each in answer.clients
                if each.consumer_group == group
            }
            clients = [each for each in clients if each.client_id in subscribed]
        return pb.ListConsumerConnectionResponse(
            status=status(),
            client_info=[described(each, group, lite=bool(request.liteTopic)) for each in clients],
        )

    # ---- lag and offsets ----

    async def describe_group_accumulation(
        self, request: pb.DescribeGroupAccumulationRequest, operator: Operator
    ) -> pb.DescribeGroupAccumulationResponse:
        """Return how many messages a group has not consumed, in all and in each topic.

        Of a lite topic, only the accumulation and the delay are known. UNSUPPORTED: the group
        broadcasts.
        """
        group, space = group_name(request.group), request.group.resource_namespace
        only = [topic_name(topic) for topic in request.topics]
        answers = await self._administration.group(group)
        _check_clustering(group, answers.values())
        found: dict[str, _Accumulation] = {topic: _Accumulation() for topic in only}
        for answer in answers.values():
            for queue in answer.queues:
                if only and queue.progress.topic not in only:
                    continue
                accumulation = found.setdefault(queue.progress.topic, _Accumulation())
                accumulation.add(
                    lag_of(queue.progress),
                    queue.oldest_timestamp_ms,
                    queue.progress.last_timestamp_ms,
                )
        total = _Accumulation()
        for topic, accumulation in found.items():
            leases = await self._administration.ask(
                answers, LIST_LEASES, ListLeasesRequest(consumer_group=group, topic=topic, limit=1)
            )
            accumulation.leased = sum(each.total for each in leases.values())
            total.add(accumulation.lag, accumulation.oldest_ms, accumulation.consumed_ms)
            total.leased += accumulation.leased
        now_ms = self._clock.now_ms()
        lite = {}
        if request.lite_topic:
            one = await self._of_lite_topic(group, request.lite_topic, found)
            lite = {request.lite_topic: one.answer(now_ms)}
        return pb.DescribeGroupAccumulationResponse(
            status=status(),
            accumulation=total.answer(now_ms),
            topic_accumulation={
                resource(topic, space).name: each.answer(now_ms)
                for topic, each in sorted(found.items())
            },
            lite_topic_accumulation=lite,
        )

    async def _of_lite_topic(
        self, group: str, lite_topic: str, parents: Iterable[str]
    ) -> _Accumulation:
        found = _Accumulation()
        for parent in parents:
            if topics.is_retry(parent):
                continue
            asked = ListLiteTopicsRequest(
                parent=parent, consumer_group=group, lite_topic=lite_topic
            )
            answers = await self._administration.ask(
                await self._administration.brokers_of(parent),
                LIST_LITE_TOPICS,
                asked,
                BrokerCode.INVALID_PARAMETER,
            )
            for answer in answers.values():
                for each in answer.lite_topics:
                    found.add(each.lag, each.oldest_timestamp_ms if each.lag else 0, 0)
        return found

    async def query_time_span(
        self, request: pb.QueryTimeSpanRequest, operator: Operator
    ) -> pb.QueryTimeSpanResponse:
        """Return the store times of each queue of a group, in milliseconds since the epoch.

        They are those of its first and last message, and of the last message that was consumed. The
        delay is the age of the oldest message that was not. A time is 0 if it is not known.
        UNSUPPORTED: the group broadcasts.
        """
        group, space = group_name(request.group), request.group.resource_namespace
        only = {topic_name(topic) for topic in request.topics}
        answers = await self._administration.group(group)
        _check_clustering(group, answers.values())
        now_ms, spans = self._clock.now_ms(), []
        for broker, answer in answers.items():
            queues = [each for each in answer.queues if not only or each.progress.topic in only]
            for topic in sorted({each.progress.topic for each in queues}):
                bounds = await self._administration.ask(
                    [broker], GET_QUEUE_OFFSETS, GetQueueOffsetsRequest(topic=topic)
                )
                times = {each.queue_id: each for each in bounds[broker].queues}
                for queue in queues:
                    progress = queue.progress
                    if progress.topic != topic or progress.queue_id not in times:
                        continue
                    bound = times[progress.queue_id]
                    oldest_ms = queue.oldest_timestamp_ms
                    spans.append(
                        pb.QueryTimeSpanResponse.QueueTimeSpan(
                            message_queue=MessageQueue(
                                topic=resource(topic, space),
                                id=progress.queue_id,
                                broker=Broker(name=broker),
                            ),
                            min_timestamp=bound.earliest_timestamp_ms,
                            max_timestamp=bound.latest_timestamp_ms,
                            consume_timestamp=progress.last_timestamp_ms,
                            delay_time_ms=max(0, now_ms - oldest_ms) if oldest_ms else 0,
                        )
                    )
        return pb.QueryTimeSpanResponse(status=status(), queue_time_span_list=spans)

    async def reset_group_offset(
        self, request: pb.ResetGroupOffsetRequest, operator: Operator
    ) -> pb.ResetGroupOffsetResponse:
        """Move a group to a store time in each queue of a topic.

        BAD_REQUEST: the time is missing. No broker is changed if a broker does not answer before.
        """
        group, topic = group_name(request.group), topic_name(request.topic)
        if not request.HasField("reset_timestamp"):
            raise Refused(Code.BAD_REQUEST, "reset_timestamp is missing: give a store time")
        brokers = await self._administration.brokers_of(topic)
        await self._administration.group(group)
        asked = ResetConsumerOffsetsRequest(
            consumer_group=group,
            topic=topic,
            timestamp_ms=max(0, milliseconds(request.reset_timestamp)),
            requested_by=operator.name,
        )
        await self._administration.ask(brokers, RESET_CONSUMER_OFFSETS, asked, _NO_GROUP)
        operator.did("offsets_reset", group=group, topic=topic, to_ms=asked.timestamp_ms)
        return pb.ResetGroupOffsetResponse(status=status())


def _nothing_named() -> Refused:
    return Refused(Code.BAD_REQUEST, "the request names neither a group nor a topic: name one")


def _check_clustering(group: str, answers: Iterable[DescribeGroupResponse]) -> None:
    if any(answer.statistics.broadcasting for answer in answers):
        raise Refused(
            Code.UNSUPPORTED,
            f"group {group!r} broadcasts: each member keeps its own offsets, which brokers do not "
            "know",
        )


def _is_lite(answers: Iterable[DescribeGroupResponse]) -> bool:
    return any(lite_group_of(answer.group.attributes) is not None for answer in answers)


def _consumes(client: ClientInfo, group: str) -> bool:
    return any(consumer.consumer_group == group for consumer in client.consumers)


def _subscribers(
    clients: Iterable[ClientInfo], group: str = "", topic: str = ""
) -> Iterator[_Subscriber]:
    """Yield the subscriptions of clients, optionally only those of a group or to a topic."""
    for client in clients:
        for consumer in client.consumers:
            if group and consumer.consumer_group != group:
                continue
            for subscription in consumer.subscriptions:
                if not topic or subscription.topic == topic:
                    yield _Subscriber(client, consumer, subscription)


def _info(
    group: str, topic: str, members: Sequence[ClientInfo], namespace: str, *, lite: bool = False
) -> pb.SubscriptionInfo:
    """Describe the subscription of a group to a topic. `members` may be of several groups."""
    consuming = [client for client in members if _consumes(client, group)]
    found = list(_subscribers(consuming, group, topic))
    info = pb.SubscriptionInfo(
        group=resource(group, namespace), topic=resource(topic, namespace), online=bool(found)
    )
    if not found:
        return info
    newest = max(found, key=lambda each: each.client.last_update_timestamp_ms)
    filters = {(each.subscription.expression_type, each.subscription.expression) for each in found}
    info.expression.CopyFrom(expression_of(newest.subscription))
    info.last_update_timestamp.FromMilliseconds(newest.client.last_update_timestamp_ms)
    info.message_model = described(newest.client, group, lite=lite).message_model
    info.subscription_consistency = len(filters) == 1 and len(found) == len(consuming)
    return info
