"""What a client says of one of its consumer groups; where members of a group contradict each other.

Pure.
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


# Name of a number → the number.
Statistics = Mapping[str, float]


class ConsumeFrom(Enum):
    LAST_OFFSET = 0
    FIRST_OFFSET = 1
    TIMESTAMP = 2


@dataclass(frozen=True, slots=True)
class Subscription:
    topic: str
    filter: Filter
    # When the client made it, milliseconds since the epoch; the newest of a group counts.
    version: int = 0


@dataclass(frozen=True, slots=True)
class Consumer:
    """One consumer group of one client."""

    consume_type: ConsumeType = ConsumeType.PUSH
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)
    # How it divides the queues among the members, by RocketMQ's name; "": it does not say.
    strategy: str = ""
    # What it counts, as it says so: each heartbeat has other numbers, and changes nothing else.
    statistics: Statistics = field(default_factory=dict, compare=False)

    @property
    def divides_queues(self) -> bool:
        clustering = self.message_model is MessageModel.CLUSTERING
        return clustering and self.consume_type is not ConsumeType.POP


@dataclass(frozen=True, slots=True)
class Differences:
    """What the members of a group have differently, and must have the same."""

    # Topic → their filter expressions.
    subscriptions: Mapping[str, list[str]] = field(default_factory=dict)
    # "strategy", "message model", "way to consume" → what they use.
    settings: Mapping[str, list[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.subscriptions or self.settings)


NONE = Differences()


def differences(consumers: Collection[Consumer]) -> Differences:
    """Of the consumers of one group."""
    return Differences(_different_filters(consumers), _different_settings(consumers))


def _different_filters(consumers: Collection[Consumer]) -> dict[str, list[str]]:
    """Topics for which the members have different filters. A message goes to one member; if that
    one's filter drops it, no other member sees it, and the group loses it unnoticed.

    A topic that only some subscribe to counts too, as "" for the others. A member without any
    subscription does not count yet, nor do retry topics, which only classic clients name.
    """
    members = [consumer.subscriptions for consumer in consumers if consumer.subscriptions]
    topics = sorted({topic for member in members for topic in member if not is_retry(topic)})
    filters = {topic: {_text(member.get(topic)) for member in members} for topic in topics}
    return {topic: sorted(texts) for topic, texts in filters.items() if len(texts) > 1}


def _different_settings(consumers: Collection[Consumer]) -> dict[str, list[str]]:
    """By different strategies some queues have two readers, and others none; members that pull and
    members that pop read the same messages, and so do some that broadcast among others. A member
    that names no strategy does not count."""
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
