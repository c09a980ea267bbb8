"""Describe connected clients, and find members of a group that contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from aerobee.broker.v1 import client_pb2

from aerobee_client.admin.descriptions.like import like
from aerobee_wire.tags import ALL, SEPARATOR
from aerobee_wire.topics import is_retry


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDescription:
    """One consumer group of a client."""

    # "push", "pull" or "pop"; "clustering" or "broadcasting".
    consume_type: str = "push"
    message_model: str = "clustering"
    # The name of its strategy in RocketMQ; "" if it does not report one or does not divide queues.
    strategy: str = ""
    # The queues that it reads now, as "topic/broker/queue id"; only for clients that pull.
    queues: tuple[str, ...] = ()
    # The queues whose lock it holds, because it consumes in order.
    locks: tuple[str, ...] = ()
    # Its counts as of its last heartbeat (ConsumerStatistics of the contract); empty if it has
    # none.
    statistics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, broker_name: str, data: client_pb2.ConsumerData, info: client_pb2.ClientInfo
    ) -> Self:
        model = client_pb2.MessageModel.Name(data.message_model).lower()
        queues = [each for each in info.queues if each.consumer_group == data.consumer_group]
        divides = model == "clustering" and data.consume_type != client_pb2.POP
        return cls(
            consume_type=client_pb2.ConsumeType.Name(data.consume_type).lower(),
            message_model=model,
            strategy=data.strategy if divides else "",
            queues=tuple(_name(broker_name, queue) for queue in queues),
            locks=tuple(_name(broker_name, queue) for queue in queues if queue.locked),
            statistics=_consumer_numbers(data),
        )

    def with_queues_of(self, other: ConsumerDescription | None) -> ConsumerDescription:
        if other is None:
            return self
        return replace(self, queues=self.queues + other.queues, locks=self.locks + other.locks)


def _name(broker_name: str, queue: client_pb2.PulledQueue) -> str:
    return f"{queue.topic}/{broker_name}/{queue.queue_id}"


def _numbers(
    statistics: client_pb2.ConsumerStatistics | client_pb2.ProducerStatistics,
) -> dict[str, float]:
    """Return all numbers of the statistics; empty if all are 0."""
    if not statistics.ListFields():
        return {}
    return {name: getattr(statistics, name) for name in statistics.DESCRIPTOR.fields_by_name}


def _consumer_numbers(data: client_pb2.ConsumerData) -> dict[str, float]:
    """Return the numbers of a consumer.

    A client that pops owns no queues and does not know its lag, so these two are left out.
    """
    numbers = _numbers(data.statistics)
    if data.consume_type == client_pb2.POP:
        return {name: value for name, value in numbers.items() if name not in ("queues", "lag")}
    return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDescription:
    client_id: str
    address: str
    # As the client reports them; "" if it does not.
    language: str
    version: str
    # The address of the proxy that it uses; "" if it connects directly.
    proxy: str = ""
    # The first heartbeat at a broker since that broker started, and the last one at any broker.
    since_timestamp_ms: int = 0
    last_update_timestamp_ms: int = 0
    producer_groups: tuple[str, ...] = ()
    # Only producers of the official SDKs report them.
    published_topics: tuple[str, ...] = ()
    consumer_groups: tuple[str, ...] = ()
    # Group → how the client consumes.
    consumers: Mapping[str, ConsumerDescription] = field(default_factory=dict)
    # Counts of its producer (ProducerStatistics of the contract); empty if it has none.
    producer_statistics: Mapping[str, float] = field(default_factory=dict)
    # Topic → expression.
    subscriptions: Mapping[str, str] = field(default_factory=dict)
    # The brokers that it is connected to.
    brokers: tuple[str, ...] = ()

    @classmethod
    def of(cls, broker_name: str, info: client_pb2.ClientInfo) -> Self:
        return like(
            cls,
            info,
            consumer_groups=tuple(consumer.consumer_group for consumer in info.consumers),
            subscriptions={
                subscription.topic: subscription.expression
                for consumer in info.consumers
                for subscription in consumer.subscriptions
            },
            consumers={
                consumer.consumer_group: ConsumerDescription.of(broker_name, consumer, info)
                for consumer in info.consumers
            },
            producer_statistics=_numbers(info.producer_statistics),
            brokers=(broker_name,),
        )

    def merged(self, other: ClientDescription) -> ClientDescription:
        """Merge what two brokers know about the same client. The newer heartbeat decides."""
        newer, older = self, other
        if other.last_update_timestamp_ms > self.last_update_timestamp_ms:
            newer, older = other, self
        since = min(newer.since_timestamp_ms, older.since_timestamp_ms) or newer.since_timestamp_ms
        brokers = tuple(sorted({*newer.brokers, *older.brokers}))
        consumers = {
            group: consumer.with_queues_of(older.consumers.get(group))
            for group, consumer in newer.consumers.items()
        }
        return replace(newer, since_timestamp_ms=since, brokers=brokers, consumers=consumers)


@dataclass(frozen=True, slots=True)
class SubscriptionConflict:
    """Members of a group subscribe differently to a topic.

    A message goes to one member. If the filter of that member drops it, the group loses the message
    unnoticed.
    """

    topic: str
    # Expression → the clients that use it; "" for clients that do not subscribe to the topic.
    expressions: Mapping[str, tuple[str, ...]]


def subscription_conflicts(
    clients: Iterable[ClientDescription], group: str
) -> list[SubscriptionConflict]:
    """Return the conflicts between the members of `group` among `clients`, by topic.

    Members without reported subscriptions do not count. Neither do retry topics, which only classic
    clients report.
    """
    members = [each for each in clients if group in each.consumer_groups and each.subscriptions]
    topics = sorted(
        {topic for each in members for topic in each.subscriptions if not is_retry(topic)}
    )
    found = []
    for topic in topics:
        by_expression: dict[str, list[str]] = {}
        for each in members:
            expression = each.subscriptions.get(topic)
            text = "" if expression is None else _normal(expression)
            by_expression.setdefault(text, []).append(each.client_id)
        if len(by_expression) > 1:
            listed = {text: tuple(sorted(ids)) for text, ids in sorted(by_expression.items())}
            found.append(SubscriptionConflict(topic, listed))
    return found


@dataclass(frozen=True, slots=True)
class MemberConflict:
    """Members of a group differ in a setting that must be the same.

    With different strategies, some queues have two readers and others none. Members that pull and
    members that pop read the same messages.
    """

    # "strategy", "message model" or "way to consume".
    setting: str
    # Value → the clients that use it.
    values: Mapping[str, tuple[str, ...]]


def member_conflicts(clients: Iterable[ClientDescription], group: str) -> list[MemberConflict]:
    """Return the conflicts of `group` among `clients`. Members without a strategy do not count."""
    found = []
    members = [(each, each.consumers[group]) for each in clients if group in each.consumers]
    settings: dict[str, Callable[[ConsumerDescription], str]] = {
        "strategy": lambda consumer: consumer.strategy,
        "message model": lambda consumer: consumer.message_model,
        "way to consume": lambda consumer: "pop" if consumer.consume_type == "pop" else "pull",
    }
    for setting, value_of in settings.items():
        by_value: dict[str, list[str]] = {}
        for each, consumer in members:
            if value_of(consumer):
                by_value.setdefault(value_of(consumer), []).append(each.client_id)
        if len(by_value) > 1:
            listed = {value: tuple(sorted(ids)) for value, ids in sorted(by_value.items())}
            found.append(MemberConflict(setting, listed))
    return found


def _normal(expression: str) -> str:
    """Normalize a tag expression: its order and blanks do not matter. Never returns ""."""
    return SEPARATOR.join(sorted({tag.strip() for tag in expression.split(SEPARATOR)})) or ALL
