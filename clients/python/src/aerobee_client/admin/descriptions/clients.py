"""Connected clients, and where the members of a group contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from aerobee.broker.v1 import client_pb2

from aerobee_client.admin.descriptions.like import like
from aerobee_wire.tags import ALL, SEPARATOR
from aerobee_wire.topics import is_retry


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
            brokers=(broker_name,),
        )

    def merged(self, other: ClientDescription) -> ClientDescription:
        """The same client as two brokers know it: the one that heard of it last decides."""
        newer, older = self, other
        if other.last_update_timestamp_ms > self.last_update_timestamp_ms:
            newer, older = other, self
        since = min(newer.since_timestamp_ms, older.since_timestamp_ms) or newer.since_timestamp_ms
        brokers = tuple(sorted({*newer.brokers, *older.brokers}))
        return replace(newer, since_timestamp_ms=since, brokers=brokers)


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


def _normal(expression: str) -> str:
    """Equal for tag expressions that differ in order and blanks only; never ""."""
    return SEPARATOR.join(sorted({tag.strip() for tag in expression.split(SEPARATOR)})) or ALL
