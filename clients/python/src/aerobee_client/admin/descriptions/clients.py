"""Connected clients, and where the members of a group contradict each other."""

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
    # How it divides the queues, by RocketMQ's name; "": it does not say, or does not divide them.
    strategy: str = ""
    # That it reads now, as "topic/broker/queue id"; of one that pulls.
    queues: tuple[str, ...] = ()
    # Those of them whose lock it has, because it consumes in order.
    locks: tuple[str, ...] = ()
    # What it counts (ConsumerStatistics of the contract), as of its last heartbeat; empty: nothing.
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
    """All of its numbers; none when all are 0."""
    if not statistics.ListFields():
        return {}
    return {name: getattr(statistics, name) for name in statistics.DESCRIPTOR.fields_by_name}


def _consumer_numbers(data: client_pb2.ConsumerData) -> dict[str, float]:
    """Without queues and lag of one that pops: it has no queues, and does not know what is left."""
    numbers = _numbers(data.statistics)
    if data.consume_type == client_pb2.POP:
        return {name: value for name, value in numbers.items() if name not in ("queues", "lag")}
    return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDescription:
    client_id: str
    address: str
    # As it names them; "" where it does not.
    language: str
    version: str
    # Where the proxy is through which it calls; "": it calls by itself.
    proxy: str = ""
    # Its first heartbeat at a broker since that broker started, and its last one at any.
    since_timestamp_ms: int = 0
    last_update_timestamp_ms: int = 0
    producer_groups: tuple[str, ...] = ()
    # Of producers of the official SDKs; others do not say.
    published_topics: tuple[str, ...] = ()
    consumer_groups: tuple[str, ...] = ()
    # Group → how it consumes.
    consumers: Mapping[str, ConsumerDescription] = field(default_factory=dict)
    # What its producer counts (ProducerStatistics of the contract); empty: nothing.
    producer_statistics: Mapping[str, float] = field(default_factory=dict)
    # Topic → expression.
    subscriptions: Mapping[str, str] = field(default_factory=dict)
    # Where it is connected.
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
        """The same client as two brokers know it: the one that heard of it last decides."""
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
    """Members of a group subscribe differently to a topic. A message goes to one member; if its
    filter drops it, the group loses it unnoticed."""

    topic: str
    # Expression → the clients that subscribe so; "": those that do not subscribe to the topic.
    expressions: Mapping[str, tuple[str, ...]]


def subscription_conflicts(
    clients: Iterable[ClientDescription], group: str
) -> list[SubscriptionConflict]:
    """Of the members of `group` among `clients`, by topic. A member that has not said what it
    subscribes to does not count, nor do retry topics, which only classic clients name."""
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
    """Members of a group differ in what must be the same: by different strategies some queues have
    two readers, and others none; members that pull and members that pop read the same messages."""

    # "strategy", "message model" or "way to consume".
    setting: str
    # What they use → the clients that do.
    values: Mapping[str, tuple[str, ...]]


def member_conflicts(clients: Iterable[ClientDescription], group: str) -> list[MemberConflict]:
    """Of the members of `group` among `clients`. One that names no strategy does not count."""
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
    """Equal for tag expressions that differ in order and blanks only; never ""."""
    return SEPARATOR.join(sorted({tag.strip() for tag in expression.split(SEPARATOR)})) or ALL
