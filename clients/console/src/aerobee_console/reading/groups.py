"""The consumer groups, and one group with its lag, members and blocked message groups."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from aerobee_cli.connected import conflict_texts
from aerobee_client.admin.descriptions import (
    BlockedMessageGroup,
    ClientDescription,
    GroupDescription,
    QueueProgress,
)
from aerobee_console.reading.source import Answer, Listing, Source, gathered, page_of
from aerobee_console.reading.waiting import Waiting, waiting

SORTS = ("name", "lag", "dead_letters", "members")
BLOCKED_ROWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group in the list. A count is None if no broker reported it."""

    consumer_group: str
    members: int | None
    lag: int | None
    retries: int | None
    dead_letters: int | None
    max_attempts: int
    order: str
    consume_enable: bool
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList(Listing):
    """A page of groups."""

    rows: tuple[GroupRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPage(Answer):
    """One group.

    `settings` and `progress` are None if no broker reported them. `blocked_omitted` counts blocked
    message groups that are not in `blocked`.
    """

    consumer_group: str
    settings: GroupDescription | None
    progress: tuple[QueueProgress, ...] | None
    members: tuple[ClientDescription, ...] | None
    conflicts: tuple[str, ...]
    blocked: tuple[BlockedMessageGroup, ...] | None
    blocked_omitted: int
    dead_letters: int | None

    @property
    def lag(self) -> int | None:
        return None if self.progress is None else sum(queue.lag for queue in self.progress)

    @property
    def oldest_lagging_ms(self) -> int | None:
        """Store time of the last consumed message in the queue that is furthest behind."""
        times = [
            queue.last_timestamp_ms
            for queue in self.progress or ()
            if queue.lag and queue.last_timestamp_ms
        ]
        return min(times) if times else None

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({queue.topic for queue in self.progress or ()}))


async def group_list(
    source: Source, *, name: str = "", sort: str = "name", page: int = 1
) -> GroupList:
    """Return a page of groups, with three calls to each broker.

    Args:
        source: The cluster.
        name: Only groups whose name contains this text.
        sort: One of SORTS.
        page: The number of the page, from 1 on.
    """
    asking = await source.ask()
    admin = source.admin
    found: list[Any] = await gathered(
        asking.of(lambda silent: admin.groups_of_brokers(silent=silent)),
        asking.of(lambda silent: admin.list_clients(silent=silent)),
        waiting(admin, asking),
    )
    of_brokers: dict[str, list[GroupDescription]] = found[0] or {}
    members = _members(found[1])
    rows = [
        row
        for row in _rows(of_brokers, members, found[2])
        if name.lower() in row.consumer_group.lower()
    ]
    if sort != "name":
        rows.sort(key=lambda row: -(getattr(row, sort) or 0))
    shown, page, pages = page_of(rows, page)
    return GroupList(
        rows=tuple(shown),
        page=page,
        pages=pages,
        total=len(rows),
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


def _members(clients: list[ClientDescription] | None) -> Counter[str] | None:
    if clients is None:
        return None
    return Counter(group for client in clients for group in client.consumer_groups)


def _rows(
    of_brokers: dict[str, list[GroupDescription]],
    members: Counter[str] | None,
    sums: Waiting | None,
) -> list[GroupRow]:
    settings: dict[str, GroupDescription] = {}
    brokers: dict[str, list[str]] = {}
    for broker, listed in of_brokers.items():
        for group in listed:
            settings.setdefault(group.consumer_group, group)
            brokers.setdefault(group.consumer_group, []).append(broker)
    return [
        GroupRow(
            consumer_group=name,
            members=None if members is None else members[name],
            lag=sums.lag_by_group[name] if sums else None,
            retries=sums.retries_by_group[name] if sums else None,
            dead_letters=sums.dead_letters_by_group[name] if sums else None,
            max_attempts=settings[name].max_attempts,
            order=settings[name].order,
            consume_enable=settings[name].consume_enable,
            brokers=tuple(brokers[name]),
        )
        for name in sorted(settings)
    ]


async def group_page(source: Source, group: str) -> GroupPage:
    """Return one group, with five calls to each broker.

    Raises MqError with the code SUBSCRIPTION_GROUP_NOT_EXIST if no broker has the group.
    """
    asking = await source.ask()
    admin = source.admin
    omitted: dict[str, int] = {}
    found: list[Any] = await gathered(
        asking.of(lambda silent: admin.get_group(group, silent=silent)),
        asking.of(lambda silent: admin.consume_progress(group, silent=silent)),
        asking.of(lambda silent: admin.list_clients(group, silent=silent)),
        asking.of(
            lambda silent: admin.blocked_message_groups(group, omitted=omitted, silent=silent)
        ),
        waiting(admin, asking),
    )
    settings, progress, members, blocked, sums = found
    shown = None if blocked is None else tuple(blocked[:BLOCKED_ROWS])
    return GroupPage(
        consumer_group=group,
        settings=settings,
        progress=None if progress is None else tuple(progress),
        members=None if members is None else tuple(members),
        conflicts=tuple(conflict_texts(members or (), group)),
        blocked=shown,
        blocked_omitted=sum(omitted.values()) + len(blocked or ()) - len(shown or ()),
        dead_letters=sums.dead_letters_by_group[group] if sums else None,
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )
