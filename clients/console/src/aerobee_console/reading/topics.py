"""The topics, and one topic with its queues, groups and clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aerobee_client.admin.descriptions import ClientDescription, QueueStatus, TopicDescription
from aerobee_console.reading.source import Answer, Listing, Source, gathered, page_of
from aerobee_console.reading.waiting import Waiting, waiting
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import group_of

SORTS = ("name", "lag", "unread")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """A topic in the list.

    `lag` counts messages that groups have not consumed. `unread` counts the messages of a topic
    that no group has read. Both are None if no broker reported them.
    """

    topic: str
    message_type: str
    queues: int
    brokers: tuple[str, ...]
    lag: int | None
    unread: int | None
    groups_behind: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicList(Listing):
    """A page of topics."""

    rows: tuple[TopicRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGroup:
    """A group that reads a topic, or has a lag in it. `members` are the clients that subscribe."""

    consumer_group: str
    lag: int | None
    members: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage(Answer):
    """One topic.

    `queues` is None if no broker reported its queues. `producers` are clients of the official SDKs
    that publish to it, because other clients do not report their topics.
    """

    topic: TopicDescription
    queues: tuple[QueueStatus, ...] | None
    groups: tuple[TopicGroup, ...]
    producers: tuple[ClientDescription, ...] | None

    @property
    def messages(self) -> int | None:
        if self.queues is None:
            return None
        return sum(queue.max_offset - queue.min_offset for queue in self.queues)


async def topic_list(
    source: Source,
    *,
    name: str = "",
    message_type: str = "",
    derived: bool = False,
    sort: str = "name",
    page: int = 1,
) -> TopicList:
    """Return a page of topics, with two calls to each broker.

    Args:
        source: The cluster.
        name: Only topics whose name contains this text.
        message_type: Only topics of this type.
        derived: Whether to include retry and dead-letter topics.
        sort: One of SORTS.
        page: The number of the page, from 1 on.
    """
    asking = await source.ask()
    admin = source.admin
    topics, sums = await _both(
        asking.of(lambda silent: admin.list_topics(include_derived=derived, silent=silent)),
        waiting(admin, asking),
    )
    rows = [
        _row(topic, sums)
        for topic in topics or ()
        if name.lower() in topic.topic.lower() and message_type in ("", topic.message_type)
    ]
    if sort != "name":
        rows.sort(key=lambda row: -(getattr(row, sort) or 0))
    shown, page, pages = page_of(rows, page)
    return TopicList(
        rows=tuple(shown),
        page=page,
        pages=pages,
        total=len(rows),
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


async def _both(topics: Any, sums: Any) -> tuple[list[TopicDescription] | None, Waiting | None]:
    found = await gathered(topics, sums)
    return found[0], found[1]


def _row(topic: TopicDescription, sums: Waiting | None) -> TopicRow:
    known = sums is not None
    return TopicRow(
        topic=topic.topic,
        message_type=topic.message_type,
        queues=sum(there.write_queue_count for there in topic.brokers),
        brokers=tuple(there.broker_name for there in topic.brokers),
        lag=sums.lag_by_topic[topic.topic] if sums else None,
        unread=sums.unread_by_topic[topic.topic] if sums else None,
        groups_behind=(
            sum(1 for name, _ in sums.lag_by_topic_and_group if name == topic.topic)
            if sums and known
            else None
        ),
    )


async def topic_page(source: Source, topic: str) -> TopicPage:
    """Return one topic, with four calls to each broker.

    Raises MqError with the code TOPIC_NOT_EXIST if no broker has the topic.
    """
    asking = await source.ask()
    admin = source.admin
    found: list[Any] = await gathered(
        asking.of(lambda silent: admin.get_topic(topic, silent=silent)),
        asking.of(lambda silent: _queues(source, topic, silent)),
        asking.of(lambda silent: admin.list_clients(silent=silent)),
        waiting(admin, asking),
    )
    description: TopicDescription | None = found[0]
    clients: list[ClientDescription] | None = found[2]
    return TopicPage(
        topic=description or TopicDescription(topic, "?", ()),
        queues=None if found[1] is None else tuple(found[1]),
        groups=_groups(topic, clients, found[3]),
        producers=(
            None
            if clients is None
            else tuple(client for client in clients if topic in client.published_topics)
        ),
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


async def _queues(source: Source, topic: str, silent: list[MqError]) -> list[QueueStatus]:
    """Return the queues of a topic; none if its route is not registered yet."""
    try:
        return await source.admin.topic_status(topic, silent=silent)
    except MqError as error:
        if error.code is not Code.TOPIC_NOT_EXIST or error in silent:
            raise
        return []


def _groups(
    topic: str, clients: list[ClientDescription] | None, sums: Waiting | None
) -> tuple[TopicGroup, ...]:
    names = {
        group for name, group in (sums.lag_by_topic_and_group if sums else ()) if name == topic
    }
    members: dict[str, int] = {}
    for client in clients or ():
        if topic in client.subscriptions:
            for group in client.consumer_groups:
                members[group] = members.get(group, 0) + 1
    own = group_of(topic)
    if own is not None:
        names.add(own)
    return tuple(
        TopicGroup(
            consumer_group=group,
            lag=sums.lag_by_topic_and_group[topic, group] if sums else None,
            members=members.get(group, 0) if clients is not None else None,
        )
        for group in sorted(names | members.keys())
    )
