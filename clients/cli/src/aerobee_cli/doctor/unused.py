"""Find topics and groups that no client has used for a long time.

These are hints, not problems: a topic may be for a job that runs once a year. The number of calls
has a limit, whatever the number of topics and groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from aerobee_cli.doctor.checks import Finding
from aerobee_cli.output import counted, iso_time
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import BrokerStatus, ClientDescription
    from aerobee_client.admin.statistics import GroupRow, Page, TopicRow

PAGE = 1_000  # rows of one call to each broker
MAX_ROWS = 20_000  # topics, and groups, that are looked at
# Topics, and groups, whose newest or oldest message is asked for, with one call to each broker.
MAX_ASKED = 100
MAX_SHOWN = 20  # hints of one kind: one more says how many there are

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Idle:
    """A topic or group without clients, and since when. `reason` is a part of a sentence."""

    name: str
    reason: str


def look(
    admin: AdminClient,
    statuses: Mapping[str, BrokerStatus],
    clients: Collection[ClientDescription],
    idle_ms: int,
) -> list[Finding]:
    """Return hints at topics and groups that were not used for `idle_ms`.

    `statuses` are the brokers, all of which answered. `clients` are all connected clients.
    """
    if not statuses:
        return []
    now_ms = max(status.now_timestamp_ms for status in statuses.values())
    before_ms = now_ms - idle_ms
    started_ms = max(status.start_timestamp_ms for status in statuses.values())
    topics = list(_topics(admin, clients, before_ms, started_ms))
    groups = list(_groups(admin, before_ms, started_ms))
    return [
        *_hints("topic", topics, "if it is not needed, aerobee topic delete {}"),
        *_hints("group", groups, "start its consumers, or aerobee group delete {}"),
    ]


def _hints(check: str, found: Sequence[Idle], advice: str) -> Iterator[Finding]:
    for each in found[:MAX_SHOWN]:
        yield Finding(check, each.name, each.reason, advice.format(each.name), hint=True)
    if more := found[MAX_SHOWN:]:
        names = ", ".join(each.name for each in more[:3])
        yield Finding(
            check,
            f"{names}, …",
            f"{counted(len(more), f'more {check}')} not used for this time",
            f"the first {MAX_SHOWN} are listed: see to them, and look again",
            hint=True,
        )


def _rows(page_at: Callable[[int], Page[R]]) -> Iterator[R]:
    """Yield the rows of all pages, up to MAX_ROWS."""
    for offset in range(0, MAX_ROWS, PAGE):
        page = page_at(offset)
        yield from page.rows
        if len(page.rows) < PAGE:
            return


def _topics(
    admin: AdminClient,
    clients: Collection[ClientDescription],
    before_ms: int,
    started_ms: int,
) -> Iterator[Idle]:
    published = {topic for client in clients for topic in client.published_topics}
    asked = 0
    for row in _rows(lambda offset: admin.topic_page(offset=offset, limit=PAGE)):
        counts = row.statistics
        if row.topic in published or counts.members != 0 or counts.messages_in is None:
            continue
        newest_ms = None
        if counts.stored_messages and asked < MAX_ASKED:
            asked += 1
            newest_ms = _newest_ms(admin, row)
        if newest_ms is not None:
            if newest_ms < before_ms:
                yield Idle(row.topic, f"no clients, and no message since {_time(newest_ms)}")
        elif not counts.messages_in and started_ms < before_ms:
            reason = f"no clients, and no message since its brokers started ({_time(started_ms)})"
            yield Idle(row.topic, reason)


def _newest_ms(admin: AdminClient, row: TopicRow) -> int | None:
    """Return the store time of the newest message of a topic, or None if it is unknown."""
    try:
        queues = admin.topic_status(row.topic)
    except MqError:  # it was deleted, or a broker no longer answers
        return None
    return max((queue.latest_timestamp_ms for queue in queues), default=0) or None


def _groups(admin: AdminClient, before_ms: int, started_ms: int) -> Iterator[Idle]:
    asked = 0
    for row in _rows(lambda offset: admin.group_page(offset=offset, limit=PAGE)):
        counts = row.statistics
        if counts.members != 0 or counts.messages_out is None:
            continue
        if counts.lag and asked < MAX_ASKED:
            asked += 1
            oldest_ms = _oldest_ms(admin, row)
            if oldest_ms is not None and oldest_ms < before_ms:
                waiting = counted(counts.lag, "message")
                reason = f"no members, and {waiting} wait, the oldest since {_time(oldest_ms)}"
                yield Idle(row.consumer_group, reason)
        elif not counts.messages_out and started_ms < before_ms:
            reason = f"no members, and it got no message since {_time(started_ms)}"
            yield Idle(row.consumer_group, reason)


def _oldest_ms(admin: AdminClient, row: GroupRow) -> int | None:
    """Return the store time of the oldest message that a group has not consumed.

    Returns None if it is unknown.
    """
    try:
        queues = admin.describe_group(row.consumer_group).queues
    except MqError:  # it was deleted, or a broker no longer answers
        return None
    times = [each.oldest_timestamp_ms for each in queues if each.oldest_timestamp_ms is not None]
    return min(times, default=None)


def _time(timestamp_ms: int) -> str:
    return iso_time(timestamp_ms, milliseconds=False)
