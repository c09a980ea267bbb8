"""Define topics and groups with their statistics, merged over the brokers of a cluster.

A value that is not known is None, never 0. If a broker did not answer, no value of the whole
cluster is known; `by_broker` has the values of the others. Times are milliseconds since the epoch,
sizes are bytes, and rates are per second over the last 10 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Self, TypeVar

from aerobee.broker.v1 import admin_pb2, client_pb2
from google.protobuf.message import Message

from aerobee_client.admin.descriptions import (
    ClientDescription,
    GroupDescription,
    QueueProgress,
    QueueStatus,
    TopicDescription,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatistics:
    """Figures of a topic, on one broker or in the whole cluster.

    Attributes:
        messages_in: Messages that producers sent, since the brokers started.
        bytes_in: The size of their bodies.
        messages_out: Messages that consumers got, since the brokers started.
        bytes_out: The size of their records.
        messages_in_rate: Messages in per second.
        bytes_in_rate: Bytes in per second.
        messages_out_rate: Messages out per second.
        bytes_out_rate: Bytes out per second.
        stored_messages: Messages between the lowest and the highest offset of each queue.
        lag: Messages that groups have not consumed, the sum over all groups with an offset. None
            for a parent of lite topics.
        groups: Groups with an offset or a subscription, at the broker that has the most.
        members: Live consumers that subscribe, at the broker that has the most.
    """

    messages_in: int | None
    bytes_in: int | None
    messages_out: int | None
    bytes_out: int | None
    messages_in_rate: float | None
    bytes_in_rate: float | None
    messages_out_rate: float | None
    bytes_out_rate: float | None
    stored_messages: int | None
    lag: int | None
    groups: int | None
    members: int | None

    @classmethod
    def of(cls, statistics: admin_pb2.TopicStatistics) -> Self:
        return cls(**{each.name: _value(statistics, each.name) for each in fields(cls)})

    @classmethod
    def merged(cls, parts: Sequence[TopicStatistics], *, complete: bool) -> Self:
        """Add up the statistics of brokers. If `complete` is false, all fields are None."""
        return cls(
            **{
                each.name: _merged(
                    parts, each.name, max if each.name in ("groups", "members") else sum, complete
                )
                for each in fields(cls)
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Figures of a consumer group, on one broker or in the whole cluster.

    Attributes:
        messages_out: Messages that the group got, since the brokers started.
        bytes_out: The size of their records.
        dead_lettered: Messages that were dead-lettered, since the brokers started.
        messages_out_rate: Messages out per second.
        bytes_out_rate: Bytes out per second.
        dead_lettered_rate: Dead-lettered messages per second.
        lag: Messages that the group has not consumed, without its retry topic. None if it
            broadcasts, or in a list if it consumes lite topics.
        retries: Messages in its retry topic that it has not consumed.
        dead_letters: Messages in its dead-letter topic.
        members: Live members, at the broker that has the most.
        consume_types: How its members consume: "pop", "pull" or "push".
        broadcasting: Whether each member gets all messages.
        topics: Topics with an offset or a subscription of the group, at the broker that has the
            most.
        in_flight: Messages that members popped and did not settle yet.
    """

    messages_out: int | None
    bytes_out: int | None
    dead_lettered: int | None
    messages_out_rate: float | None
    bytes_out_rate: float | None
    dead_lettered_rate: float | None
    lag: int | None
    retries: int | None
    dead_letters: int | None
    members: int | None
    consume_types: tuple[str, ...] | None
    broadcasting: bool | None
    topics: int | None
    in_flight: int | None

    @classmethod
    def of(cls, statistics: admin_pb2.GroupStatistics) -> Self:
        values = {each.name: _value(statistics, each.name) for each in fields(cls)}
        types = sorted(
            client_pb2.ConsumeType.Name(each).lower() for each in statistics.consume_types
        )
        return cls(**values | {"consume_types": tuple(types)})

    @classmethod
    def merged(cls, parts: Sequence[GroupStatistics], *, complete: bool) -> Self:
        """Add up the statistics of brokers. If `complete` is false, all fields are None."""
        unions: dict[str, Callable[[Iterable[Any]], Any]] = {
            "members": max,
            "topics": max,
            "broadcasting": any,
            "consume_types": lambda types: tuple(sorted({each for part in types for each in part})),
        }
        return cls(
            **{
                each.name: _merged(parts, each.name, unions.get(each.name, sum), complete)
                for each in fields(cls)
            }
        )


def _value(statistics: Message, name: str) -> Any:
    """Return a field of a message, or None if it is optional and absent."""
    field = statistics.DESCRIPTOR.fields_by_name[name]
    if field.has_presence and not statistics.HasField(name):
        return None
    return getattr(statistics, name)


def _merged(
    parts: Iterable[Any], name: str, merge: Callable[[Iterable[Any]], Any], complete: bool
) -> Any:
    values = [getattr(part, name) for part in parts]
    return merge(values) if values and complete and None not in values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """A topic of a page, with its statistics.

    Attributes:
        topic: The name of the topic.
        settings: Its settings on the brokers that answered.
        statistics: The statistics of the cluster. All are None if a broker did not answer.
        by_broker: The statistics of each broker that answered and has the topic.
    """

    topic: str
    settings: TopicDescription
    statistics: TopicStatistics
    by_broker: Mapping[str, TopicStatistics]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A consumer group of a page, with its statistics.

    Attributes:
        consumer_group: The name of the group.
        settings: Its settings on the first broker that answered.
        statistics: The statistics of the cluster. All are None if a broker did not answer.
        by_broker: The statistics of each broker that answered and has the group.
    """

    consumer_group: str
    settings: GroupDescription
    statistics: GroupStatistics
    by_broker: Mapping[str, GroupStatistics]


R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[R]):
    """A page of topics or groups.

    Attributes:
        rows: The topics or groups of the page.
        total: The number of topics or groups that match, on every page. None if a broker did not
            answer.
        unanswered: The reason why each broker did not answer, by broker name. Names that only
            these brokers know are missing.
    """

    rows: tuple[R, ...]
    total: int | None
    unanswered: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingGroup:
    """A group that reads a topic.

    Attributes:
        consumer_group: The name of the group.
        lag: Messages of the topic that it has not consumed. None if it is unknown, if the group
            broadcasts, or if the topic is a parent of lite topics.
        oldest_timestamp_ms: The store time of the oldest message that it has not consumed. None
            if the lag is 0, or if it is unknown.
        members: Its live members that subscribe to the topic, at the broker that has the most.
        messages_out: Messages of the topic that it got, since the brokers started.
    """

    consumer_group: str
    lag: int | None
    oldest_timestamp_ms: int | None
    members: int | None
    messages_out: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    """A topic with its statistics, its queues and the groups that read it.

    Attributes:
        topic: The name of the topic.
        settings: Its settings on the brokers that answered.
        statistics: See TopicRow.
        by_broker: See TopicRow.
        queues: The bounds of each queue.
        groups: The groups with an offset or a subscription.
        producers: The ids of the live clients that publish to the topic. Only clients of the
            official SDKs report it.
        unanswered: The reason why each broker did not answer, by broker name.
    """

    topic: str
    settings: TopicDescription
    statistics: TopicStatistics
    by_broker: Mapping[str, TopicStatistics]
    queues: tuple[QueueStatus, ...]
    groups: tuple[ReadingGroup, ...]
    producers: tuple[str, ...]
    unanswered: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueue:
    """The progress of a group in one queue.

    Attributes:
        progress: The offsets and the lag.
        oldest_timestamp_ms: The store time of the oldest message that it has not consumed. None
            if the lag is 0, or if it is unknown.
    """

    progress: QueueProgress
    oldest_timestamp_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetails:
    """A consumer group with its statistics, its progress and its members.

    Attributes:
        consumer_group: The name of the group.
        settings: Its settings on the first broker that answered.
        statistics: See GroupRow. The lag includes lite topics.
        by_broker: See GroupRow.
        queues: The progress in each queue; empty if the group broadcasts.
        members: Its live members.
        leased: Messages on lease. None if a broker did not answer.
        waiting: Popped messages that wait for their next delivery or their turn. None if a broker
            did not answer.
        blocked_message_groups: Message groups that wait for a message that failed. None if a
            broker did not answer.
        unanswered: The reason why each broker did not answer, by broker name.
    """

    consumer_group: str
    settings: GroupDescription
    statistics: GroupStatistics
    by_broker: Mapping[str, GroupStatistics]
    queues: tuple[GroupQueue, ...]
    members: tuple[ClientDescription, ...]
    leased: int | None
    waiting: int | None
    blocked_message_groups: int | None
    unanswered: Mapping[str, str]
