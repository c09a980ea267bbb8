"""Lists of topics and groups with their statistics, filtered, sorted and by page.

Statistics are computed only for the page, or for all matching names if they are needed to sort.
Meanwhile, other work runs after each `SLICE` names.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from aerobee_broker.delivery.lite.lag import GroupProgress
from aerobee_broker.delivery.pop.lease_space import LeaseCounts, LeaseSpaces
from aerobee_broker.delivery.pull.offsets import OffsetQueries, Progress, QueueBounds
from aerobee_broker.delivery.statistics.sampler import Kind, Sampler
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.metadata.config_table import Config, ConfigTable
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.metrics import Traffic
from aerobee_broker.registry.clients import Client
from aerobee_broker.registry.consumers import ConsumeType
from aerobee_wire import topics as names
from aerobee_wire.queues import lite

SLICE = 100  # statistics computed before other work runs: about 2 ms with 8 queues each
MAX_PRODUCERS = 1_000  # named in the description of a topic


R = TypeVar("R")
C = TypeVar("C", bound=Config)
S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a sorted list.

    Args:
        order: The field of the statistics to sort by; empty for the name.
        descending: Sort from high to low. Equal rows are always sorted by name.
        offset: The number of rows before the page.
        limit: The highest number of rows; 0 for all.
        with_statistics: Whether the rows have statistics.
        with_values: Whether to return the values of `order` in place of rows.
        only: The names of the rows that match; empty for all.
    """

    order: str = ""
    descending: bool = False
    offset: int = 0
    limit: int = 0
    with_statistics: bool = False
    with_values: bool = False
    only: Collection[str] = ()

    def __post_init__(self) -> None:
        for name, value in (("offset", self.offset), ("limit", self.limit)):
            if value < 0:
                raise InvalidParameter(f"{name} {value} is below 0: use 0 or more", about=name)

    def among(self, table: ConfigTable[C]) -> list[C]:
        """Return the configurations of a table that `only` names; all of them if it is empty."""
        if not self.only:
            return table.all()
        return [found for name in set(self.only) if (found := table.get(name)) is not None]

    def of(self, rows: Sequence[R]) -> Sequence[R]:
        return rows[self.offset : self.offset + self.limit if self.limit else None]


@dataclass(frozen=True, slots=True)
class Listed(Generic[C, S]):
    """A page, and the names of all topics or groups that match.

    `statistics` has an entry for each of `configs`, or is empty. `values` has an entry for each of
    `names`, or is empty. An entry is None if the value is not known.
    """

    configs: Sequence[C]
    statistics: Sequence[S]
    names: Sequence[str]
    values: Sequence[float | None] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatistics:
    """Figures of a topic (see TopicStatistics in admin.proto)."""

    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int
    messages_in_rate: float | None
    bytes_in_rate: float | None
    messages_out_rate: float | None
    bytes_out_rate: float | None
    stored_messages: int
    lag: int | None
    groups: int
    members: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Figures of a group (see GroupStatistics in admin.proto)."""

    messages_out: int
    bytes_out: int
    dead_lettered: int
    messages_out_rate: float | None
    bytes_out_rate: float | None
    dead_lettered_rate: float | None
    lag: int | None
    retries: int
    dead_letters: int
    members: int
    consume_types: Sequence[ConsumeType]
    broadcasting: bool
    topics: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class ReadingGroup:
    """A group that reads a topic (see DescribeTopicResponse.Group in admin.proto)."""

    consumer_group: str
    lag: int | None
    oldest_timestamp_ms: int | None
    members: int
    messages_out: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    config: TopicConfig
    statistics: TopicStatistics
    queues: Sequence[QueueBounds]
    groups: Sequence[ReadingGroup]
    producers: Sequence[str]


@dataclass(frozen=True, slots=True)
class QueueProgress:
    progress: Progress
    oldest_timestamp_ms: int | None  # store time of the oldest message that is not consumed


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group: SubscriptionGroup
    statistics: GroupStatistics
    queues: Sequence[QueueProgress]
    members: Sequence[Client]
    leases: LeaseCounts


@dataclass(slots=True)
class _Readers:
    """The groups that read a topic, and the live clients that subscribe to it."""

    groups: set[str] = field(default_factory=set)
    members: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    queries: OffsetQueries
    progress: GroupProgress
    leases: LeaseSpaces
    sampler: Sampler

    # ---- topics ----

    async def topics(
        self,
        page: Page,
        *,
        name_part: str = "",
        message_types: Collection[str] = (),
        include_system: bool = False,
        exclude_derived: bool = False,
        visible: Callable[[str], bool] = lambda name: True,
    ) -> Listed[TopicConfig, TopicStatistics]:
        """Return a page of the topics that match.

        Args:
            page: The order and the page.
            name_part: A part of the name, in upper or lower case.
            message_types: The message types; empty for all.
            include_system: Whether topics of the system match.
            exclude_derived: Whether retry and dead-letter topics do not match.
            visible: Returns whether the caller may see a topic.
        """
        topics, part = self.queries.topics, name_part.lower()
        found = [
            config
            for config in page.among(topics.table)
            if part in config.topic.lower()
            and (include_system or not topics.is_system(config.topic))
            and not (exclude_derived and names.group_of(config.topic) is not None)
            and (not message_types or config.message_type in message_types)
            and visible(config.topic)
        ]
        only_values = page.with_values and page.order != "lag"
        readers = {} if only_values else self._readers(set(page.only))

        def readers_of(config: TopicConfig) -> _Readers:
            return readers.get(config.topic, _Readers())

        return await _listed(
            found,
            page,
            lambda config: self._topic_value(config, readers_of(config), page.order),
            lambda config: self._topic(config, readers_of(config)),
        )

    def describe_topic(self, topic: str) -> TopicDescription:
        """Return a topic with its queues and the groups that read it. Raises TopicNotExist."""
        config = self.queries.topics.get(topic)
        readers = self._readers({topic}).get(topic, _Readers())
        producers = [
            client.client_id
            for client in self.queries.clients.all()
            if topic in client.published_topics
        ]
        return TopicDescription(
            config,
            self._topic(config, readers),
            self.queries.bounds(topic, ()).queues,
            [self._reading_group(config, group) for group in sorted(readers.groups)],
            producers[:MAX_PRODUCERS],
        )

    def _readers(self, only: Collection[str] = ()) -> dict[str, _Readers]:
        """Return the readers of each topic. `only` are the topics; empty for all."""
        found: defaultdict[str, _Readers] = defaultdict(_Readers)
        for topic, group in self.queries.offsets.rows():
            if (not only or topic in only) and not names.is_system_group(group):
                found[topic].groups.add(group)
        for client in self.queries.clients.all():
            subscribed = set()
            for group, consumer in client.consumers.items():
                for topic in consumer.subscriptions:
                    if only and topic not in only:
                        continue
                    found[topic].groups.add(group)
                    subscribed.add(topic)
            for topic in subscribed:
                found[topic].members += 1
        return found

    def _topic_value(self, config: TopicConfig, readers: _Readers, figure: str) -> float | None:
        """Return one of the statistics of a topic, to sort by."""
        if figure == "stored_messages":
            return self._stored(config.topic)
        if figure == "lag":
            return self._lag_of_topic(config, readers.groups)
        return self.sampler.rate(Kind.TOPIC, config.topic, figure.removesuffix("_rate"))

    def _topic(self, config: TopicConfig, readers: _Readers) -> TopicStatistics:
        topic, metrics = config.topic, self.sampler.metrics
        messages_in, bytes_in = _sum(metrics.stored_by.get(topic, {}).values())
        messages_out, bytes_out = _sum(metrics.delivered_by.get(topic, {}).values())
        return TopicStatistics(
            messages_in=messages_in,
            bytes_in=bytes_in,
            messages_out=messages_out,
            bytes_out=bytes_out,
            messages_in_rate=self.sampler.rate(Kind.TOPIC, topic, "messages_in"),
            bytes_in_rate=self.sampler.rate(Kind.TOPIC, topic, "bytes_in"),
            messages_out_rate=self.sampler.rate(Kind.TOPIC, topic, "messages_out"),
            bytes_out_rate=self.sampler.rate(Kind.TOPIC, topic, "bytes_out"),
            stored_messages=self._stored(topic),
            lag=self._lag_of_topic(config, readers.groups),
            groups=len(readers.groups),
            members=readers.members,
        )

    def _stored(self, topic: str) -> int:
        """Return the number of messages between the bounds of a topic's queues."""
        config, store = self.queries.topics.table.get(topic), self.queries.store
        return sum(
            store.max_offset(topic, queue_id) - store.min_offset(topic, queue_id)
            for queue_id in range(config.queue_count if config else 0)
        )

    def _lag_of_topic(self, config: TopicConfig, groups: Iterable[str]) -> int | None:
        if config.message_type == lite.LITE:
            return None
        lags = [
            self.queries.lag(group, config.topic) for group in groups if self.queries.has_lag(group)
        ]
        return sum(lags)

    def _reading_group(self, config: TopicConfig, group: str) -> ReadingGroup:
        lag = oldest_ms = None
        if config.message_type != lite.LITE and self.queries.has_lag(group):
            lag = self.queries.lag(group, config.topic)
            times = [
                self._oldest_ms(config.topic, queue_id, offset)
                for queue_id, offset in self._positions(group, config).items()
            ]
            oldest_ms = min((each for each in times if each is not None), default=None)
        members = sum(
            config.topic in consumer.subscriptions
            for consumer in self.queries.clients.consumers(group)
        )
        traffic = self.sampler.metrics.delivered_by.get(config.topic, {}).get(group)
        return ReadingGroup(group, lag, oldest_ms, members, traffic.messages if traffic else 0)

    def _positions(self, group: str, config: TopicConfig) -> dict[int, int]:
        """Return the offset of the next message of a group in each queue."""
        offsets = self.queries.offsets.of(group, config.topic)
        return {
            queue_id: max(
                self.queries.store.min_offset(config.topic, queue_id), offsets.get(queue_id, 0)
            )
            for queue_id in range(config.read_queue_count)
        }

    def _oldest_ms(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the store time of a message, or None if the queue ends before it."""
        if queue_offset >= self.queries.store.max_offset(topic, queue_id):
            return None
        return self.queries.store.store_timestamp(topic, queue_id, queue_offset) or None

    # ---- groups ----

    async def groups(
        self,
        page: Page,
        *,
        name_part: str = "",
        consume_types: Collection[ConsumeType] = (),
        include_system: bool = False,
        visible: Callable[[str], bool] = lambda name: True,
    ) -> Listed[SubscriptionGroup, GroupStatistics]:
        """Return a page of the groups that match.

        Args:
            page: The order and the page.
            name_part: A part of the name, in upper or lower case.
            consume_types: The ways in which members consume; empty for all groups.
            include_system: Whether groups of the system match.
            visible: Returns whether the caller may see a group.
        """
        groups, part = self.queries.groups, name_part.lower()
        found = [
            group
            for group in page.among(groups.table)
            if part in group.consumer_group.lower()
            and (include_system or not groups.is_system(group.consumer_group))
            and visible(group.consumer_group)
            and (
                not consume_types
                or not self._consume_types(group.consumer_group).isdisjoint(consume_types)
            )
        ]
        only_values = page.with_values and page.order != "lag"
        read = {} if only_values else self._read_topics(set(page.only))
        in_flight = self.leases.in_flight_by_group()

        def read_by(group: SubscriptionGroup) -> Collection[str]:
            return read.get(group.consumer_group, ())

        return await _listed(
            found,
            page,
            lambda group: self._group_value(group, read_by(group), in_flight, page.order),
            lambda group: self._group(group, read_by(group), in_flight),
        )

    async def describe_group(self, consumer_group: str) -> GroupDescription:
        """Return a group with its progress and members.

        Raises GroupNotExist, StoreReadError, OSError.
        """
        group = self.queries.groups.get(consumer_group)
        progress = await self.progress.of(consumer_group)
        queues = [QueueProgress(each, self._oldest_unread_ms(each)) for each in progress]
        members = [
            client for client in self.queries.clients.all() if consumer_group in client.consumers
        ]
        topics = {
            topic for topic in self.queries.topics_of(consumer_group) if not names.is_retry(topic)
        }
        statistics = self._group(group, topics, self.leases.in_flight_by_group())
        if statistics.lag is None and not statistics.broadcasting:
            retry = names.retry_topic(consumer_group)
            lag = sum(_lag(each) for each in progress if each.topic != retry)
            statistics = replace(statistics, lag=lag)
        return GroupDescription(
            group, statistics, queues, members, self.leases.counts(consumer_group)
        )

    def _read_topics(self, only: Collection[str] = ()) -> dict[str, set[str]]:
        """Return the topics that each group reads, without retry topics.

        `only` are the groups; empty for all.
        """
        found: dict[str, set[str]] = {}
        for topic, group in self.queries.offsets.rows():
            if (not only or group in only) and not names.is_retry(topic):
                found.setdefault(group, set()).add(topic)
        for client in self.queries.clients.all():
            for group, consumer in client.consumers.items():
                if only and group not in only:
                    continue
                subscribed = {
                    topic for topic in consumer.subscriptions if not names.is_retry(topic)
                }
                found.setdefault(group, set()).update(subscribed)
        return found

    def _consume_types(self, group: str) -> set[ConsumeType]:
        return {consumer.consume_type for consumer in self.queries.clients.consumers(group)}

    def _group_value(
        self,
        config: SubscriptionGroup,
        topics: Iterable[str],
        in_flight: Mapping[str, int],
        figure: str,
    ) -> float | None:
        """Return one of the statistics of a group, to sort by."""
        group = config.consumer_group
        match figure:
            case "lag":
                return self._lag_of_group(group, topics)
            case "members":
                return len(self.queries.clients.members(group))
            case "retries":
                return self.queries.lag(group, names.retry_topic(group))
            case "dead_letters":
                return self._stored(names.dead_letter_topic(group))
            case "in_flight":
                return in_flight.get(group, 0)
        return self.sampler.rate(Kind.GROUP, group, figure.removesuffix("_rate"))

    def _group(
        self, config: SubscriptionGroup, topics: Collection[str], in_flight: Mapping[str, int]
    ) -> GroupStatistics:
        group, metrics = config.consumer_group, self.sampler.metrics
        retry = names.retry_topic(group)
        delivered = (metrics.delivered_by.get(topic, {}).get(group) for topic in (*topics, retry))
        messages_out, bytes_out = _sum(each for each in delivered if each is not None)
        return GroupStatistics(
            messages_out=messages_out,
            bytes_out=bytes_out,
            dead_lettered=metrics.dead_lettered_by.get(group, 0),
            messages_out_rate=self.sampler.rate(Kind.GROUP, group, "messages_out"),
            bytes_out_rate=self.sampler.rate(Kind.GROUP, group, "bytes_out"),
            dead_lettered_rate=self.sampler.rate(Kind.GROUP, group, "dead_lettered"),
            lag=self._lag_of_group(group, topics),
            retries=self.queries.lag(group, retry),
            dead_letters=self._stored(names.dead_letter_topic(group)),
            members=len(self.queries.clients.members(group)),
            consume_types=sorted(self._consume_types(group), key=lambda each: each.value),
            broadcasting=self.queries.clients.broadcasts(group),
            topics=len(topics),
            in_flight=in_flight.get(group, 0),
        )

    def _lag_of_group(self, group: str, topics: Iterable[str]) -> int | None:
        bound = self.progress.lite_lag.parent_of(group) is not None
        if bound or self.queries.clients.broadcasts(group):
            return None
        return sum(self.queries.lag(group, topic) for topic in topics)

    def _oldest_unread_ms(self, progress: Progress) -> int | None:
        if progress.lag is not None:  # lite topics
            return None
        offset = max(progress.min_offset, progress.consumer_offset or 0)
        return self._oldest_ms(progress.topic, progress.queue_id, offset)


def _lag(progress: Progress) -> int:
    if progress.lag is not None:
        return progress.lag
    start = max(progress.min_offset, progress.consumer_offset or 0)
    return max(0, progress.max_offset - start)


def _sum(traffic: Iterable[Traffic]) -> tuple[int, int]:
    messages = size = 0
    for each in traffic:
        messages += each.messages
        size += each.size
    return messages, size


async def _listed(
    found: Sequence[C],
    page: Page,
    value_of: Callable[[C], float | None],
    statistics_of: Callable[[C], S],
) -> Listed[C, S]:
    """Sort the configurations that match, and return a page of them.

    `value_of` returns the value to sort by, unless the order is by name.
    """
    rows = sorted(found, key=lambda config: config.name)
    all_names = [config.name for config in rows]
    if page.with_values:
        values = await _computed(rows, value_of) if page.order else []
        return Listed([], [], all_names, values)
    if page.order:
        values = await _computed(rows, value_of)
        keys = {
            config.name: _sort_key(value, descending=page.descending)
            for config, value in zip(rows, values, strict=True)
        }
        rows.sort(key=lambda config: keys[config.name])
    elif page.descending:
        rows.reverse()
    configs = page.of(rows)
    statistics = await _computed(configs, statistics_of) if page.with_statistics else []
    return Listed(configs, statistics, all_names)


async def _computed(configs: Iterable[C], statistics_of: Callable[[C], S]) -> list[S]:
    computed = []
    for number, config in enumerate(configs, 1):
        computed.append(statistics_of(config))
        if number % SLICE == 0:
            await asyncio.sleep(0)
    return computed


def _sort_key(value: float | None, *, descending: bool) -> tuple[bool, float]:
    """Return a key that sorts unknown values last, in both directions."""
    return value is None, 0 if value is None else -value if descending else value
