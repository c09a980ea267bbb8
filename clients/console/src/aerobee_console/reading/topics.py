"""The topics, and one topic with its queues, groups and clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aerobee_client.admin.descriptions import QueueStatus, TopicDescription
from aerobee_client.admin.listing import TOPIC_ORDERS
from aerobee_client.admin.statistics import ReadingGroup, TopicDetails, TopicStatistics
from aerobee_client.admin.stats import Stats
from aerobee_console.reading.rates import DEFAULT_PERIOD, Chart, chart
from aerobee_console.reading.source import (
    PAGE_ROWS,
    Answer,
    Listing,
    Source,
    gathered,
    most_of,
    pages_of,
    sum_of,
)

SORTS = TOPIC_ORDERS


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """A topic in the list. A figure is None if a broker does not know it.

    The rates are messages per second over the last 10 s. `lag` counts messages that groups have not
    consumed.
    """

    topic: str
    message_type: str
    queues: int
    brokers: tuple[str, ...]
    stored_messages: int | None
    messages_in_rate: float | None
    messages_out_rate: float | None
    lag: int | None
    groups: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicList(Listing):
    """A page of topics."""

    rows: tuple[TopicRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage(Answer):
    """One topic.

    `queues` and `groups` are None if no broker answered. `producers` are the ids of the connected
    clients that publish to it.
    """

    topic: TopicDescription
    stored_messages: int | None
    messages_in_rate: float | None
    messages_out_rate: float | None
    lag: int | None
    queues: tuple[QueueStatus, ...] | None
    groups: tuple[ReadingGroup, ...] | None
    producers: tuple[str, ...] | None
    charts: tuple[Chart, ...]


async def topic_list(
    source: Source,
    *,
    name: str = "",
    message_type: str = "",
    derived: bool = False,
    sort: str = "name",
    page: int = 1,
) -> TopicList:
    """Return a page of topics, with one call to each broker.

    Args:
        source: The cluster.
        name: Only topics whose name contains this text.
        message_type: Only topics of this type.
        derived: Whether to include retry and dead-letter topics.
        sort: One of SORTS. Figures are sorted from high to low.
        page: The number of the page, from 1 on.
    """
    asking = await source.ask()
    found = await asking.merged(
        lambda: source.admin.topic_page(
            name_part=name,
            message_types=(message_type,) if message_type else (),
            include_derived=derived,
            sort=sort,
            descending=sort != "name",
            offset=(page - 1) * PAGE_ROWS,
            limit=PAGE_ROWS,
        )
    )
    rows = [
        _row(row.topic, row.settings, list(row.by_broker.values()))
        for row in (found.rows if found else ())
    ]
    total = found.total if found else None
    return TopicList(
        rows=tuple(rows),
        page=page,
        pages=pages_of(total, page, len(rows)),
        total=total,
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


def _row(topic: str, settings: TopicDescription, parts: list[TopicStatistics]) -> TopicRow:
    return TopicRow(
        topic=topic,
        message_type=settings.message_type,
        queues=sum(there.write_queue_count for there in settings.brokers),
        brokers=tuple(there.broker_name for there in settings.brokers),
        stored_messages=sum_of(parts, "stored_messages"),
        messages_in_rate=sum_of(parts, "messages_in_rate"),
        messages_out_rate=sum_of(parts, "messages_out_rate"),
        lag=sum_of(parts, "lag"),
        groups=most_of(parts, "groups"),
    )


async def topic_page(source: Source, topic: str, period: str = DEFAULT_PERIOD) -> TopicPage:
    """Return one topic, with two calls to each broker.

    Raises MqError with the code TOPIC_NOT_EXIST if no broker has the topic.
    """
    asking = await source.ask()
    answers: list[Any] = await gathered(
        asking.merged(lambda: source.admin.describe_topic(topic)),
        asking.merged(lambda: source.admin.get_stats(topics=(topic,), period=period)),
    )
    found: TopicDetails | None = answers[0]
    stats: Stats | None = answers[1]
    parts = list(found.by_broker.values()) if found else []
    return TopicPage(
        topic=found.settings if found else TopicDescription(topic, "?", ()),
        stored_messages=sum_of(parts, "stored_messages"),
        messages_in_rate=sum_of(parts, "messages_in_rate"),
        messages_out_rate=sum_of(parts, "messages_out_rate"),
        lag=sum_of(parts, "lag"),
        queues=found.queues if found else None,
        groups=found.groups if found else None,
        producers=found.producers if found else None,
        charts=(
            chart(
                "Messages per second",
                {"messages_in": "in", "messages_out": "out"},
                stats,
                stats.topics.get(topic) if stats else None,
            ),
        ),
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )
