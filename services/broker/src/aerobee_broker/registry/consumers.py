"""Describe the consumer groups of a client, and find conflicts between members of a group.

The module has only values and pure functions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from aerobee_broker.filter.filter import Filter
from aerobee_wire.topics import is_retry


class ConsumeType(Enum):
    PULL = 1
    PUSH = 2
    POP = 3


class MessageModel(Enum):
    CLUSTERING = 1
    BROADCASTING = 2


# Name of a statistic → its value.
Statistics = Mapping[str, float]


class ConsumeFrom(Enum):
    LAST_OFFSET = 0
    FIRST_OFFSET = 1
    TIMESTAMP = 2


@dataclass(frozen=True, slots=True)
class Subscription:
    topic: str
    filter: Filter
    # When the client subscribed, in ms since the epoch; the newest subscription of a group counts.
    version: int = 0


@dataclass(frozen=True, slots=True)
class Consumer:
    """The description of one consumer group by one of its members."""

    consume_type: ConsumeType = ConsumeType.PUSH
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)
    # RocketMQ's name of the strategy that assigns queues to members; "" if it is not reported.
    strategy: str = ""
    # Counters that the client reports: they differ in each heartbeat and have no effect here.
    statistics: Statistics = field(default_factory=dict, compare=False)

    @property
    def divides_queues(self) -> bool:
        clustering = self.message_model is MessageModel.CLUSTERING
        return clustering and self.consume_type is not ConsumeType.POP


@dataclass(frozen=True, slots=True)
class Differences:
    """Settings that differ between the members of a group although they must be equal."""

    # Topic → filter expressions of the members.
    subscriptions: Mapping[str, list[str]] = field(default_factory=dict)
    # "strategy", "message model", "way to consume" → values of the members.
    settings: Mapping[str, list[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.subscriptions or self.settings)


NONE = Differences()


def differences(consumers: Collection[Consumer]) -> Differences:
    """Return the differences between the consumers of one group."""
    return Differences(_different_filters(consumers), _different_settings(consumers))


def _different_filters(consumers: Collection[Consumer]) -> dict[str, list[str]]:
    """Return the topics for which the members have different filters.

    A message is delivered to one member. If the filter of that member drops it, no other member
    receives it, and the group loses it unnoticed.

    A topic that only some members subscribe to counts too; the other members have "" as filter.
    Retry topics do not count, because only classic clients name them. A member without other
    subscriptions does not count yet: it has started and will subscribe.
    """
    by_member = [
        {topic: each for topic, each in consumer.subscriptions.items() if not is_retry(topic)}
        for consumer in consumers
    ]
    members = [subscriptions for subscriptions in by_member if subscriptions]
    topics = sorted({topic for member in members for topic in member})
    filters = {topic: {_text(member.get(topic)) for member in members} for topic in topics}
    return {topic: sorted(texts) for topic, texts in filters.items() if len(texts) > 1}


def _different_settings(consumers: Collection[Consumer]) -> dict[str, list[str]]:
    """Return the settings that differ between the members.

    With different strategies, some queues have two readers and other queues have none. A member
    that does not name a strategy does not count. If some members pull and some pop, they read the
    same messages twice. The same is true if only some members broadcast.
    """
    found = {
        "strategy": {each.strategy for each in consumers if each.strategy and each.divides_queues},
        "message model": {each.message_model.name for each in consumers},
        "way to consume": {
            "pop" if each.consume_type is ConsumeType.POP else "pull" for each in consumers
        },
    }
    return {name: sorted(values) for name, values in found.items() if len(values) > 1}


def _text(subscription: Subscription | None) -> str:
    if subscription is None:
        return ""
    tags = subscription.filter.tags
    return "||".join(sorted(tags)) if tags else subscription.filter.expression or "*"
