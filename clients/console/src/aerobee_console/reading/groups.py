"""The consumer groups, and one group with its lag, members and blocked message groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aerobee_cli.connected import conflict_texts
from aerobee_client import AsyncAdminClient
from aerobee_client.admin.descriptions import (
    BlockedMessageGroup,
    ClientDescription,
    GroupDescription,
)
from aerobee_client.admin.listing import GROUP_ORDERS
from aerobee_client.admin.statistics import GroupDetails, GroupQueue
from aerobee_client.admin.statistics import GroupRow as GroupOfPage
from aerobee_client.admin.stats import Stats
from aerobee_client.admin.waiting import DelayedMessage, HeldLease, Waiting
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
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import retry_topic

SORTS = GROUP_ORDERS
BLOCKED_ROWS = 100
SHOWN = 10  # leases and retries


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group in the list. A figure is None if a broker does not know it.

    `lag` is without retries. The rate is messages per second over the last 10 s.
    """

    consumer_group: str
    members: int | None
    consume_types: tuple[str, ...]
    lag: int | None
    retries: int | None
    in_flight: int | None
    dead_letters: int | None
    messages_out_rate: float | None
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

    `settings`, `queues` and `members` are None if no broker answered. `oldest_ms` is the store time
    of the oldest message that the group has not consumed. `blocked_omitted` counts blocked message
    groups that are not in `blocked`. `leases` are the oldest ones of `in_flight`, and
    `due_retries` the next retries that wait for their time; both None if no broker answered.
    """

    consumer_group: str
    settings: GroupDescription | None
    lag: int | None
    retries: int | None
    dead_letters: int | None
    in_flight: int | None
    messages_out_rate: float | None
    oldest_ms: int | None
    queues: tuple[GroupQueue, ...] | None
    members: tuple[ClientDescription, ...] | None
    conflicts: tuple[str, ...]
    blocked: tuple[BlockedMessageGroup, ...] | None
    blocked_omitted: int
    leases: tuple[HeldLease, ...] | None
    due_retries: tuple[DelayedMessage, ...] | None
    charts: tuple[Chart, ...]

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({queue.progress.topic for queue in self.queues or ()}))


async def group_list(
    source: Source, *, name: str = "", sort: str = "name", page: int = 1
) -> GroupList:
    """Return a page of groups, with one call to each broker.

    Args:
        source: The cluster.
        name: Only groups whose name contains this text.
        sort: One of SORTS. Figures are sorted from high to low.
        page: The number of the page, from 1 on.
    """
    asking = await source.ask()
    found = await asking.merged(
        lambda: source.admin.group_page(
            name_part=name,
            sort=sort,
            descending=sort != "name",
            offset=(page - 1) * PAGE_ROWS,
            limit=PAGE_ROWS,
        )
    )
    rows = [_row(row) for row in (found.rows if found else ())]
    total = found.total if found else None
    return GroupList(
        rows=tuple(rows),
        page=page,
        pages=pages_of(total, page, len(rows)),
        total=total,
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


def _row(row: GroupOfPage) -> GroupRow:
    parts = list(row.by_broker.values())
    settings = row.settings
    return GroupRow(
        consumer_group=row.consumer_group,
        members=most_of(parts, "members"),
        consume_types=tuple(sorted({each for part in parts for each in part.consume_types or ()})),
        lag=sum_of(parts, "lag"),
        retries=sum_of(parts, "retries"),
        in_flight=sum_of(parts, "in_flight"),
        dead_letters=sum_of(parts, "dead_letters"),
        messages_out_rate=sum_of(parts, "messages_out_rate"),
        max_attempts=settings.max_attempts,
        order=settings.order,
        consume_enable=settings.consume_enable,
        brokers=settings.brokers,
    )


async def group_page(source: Source, group: str, period: str = DEFAULT_PERIOD) -> GroupPage:
    """Return one group, with five calls to each broker.

    Raises MqError with the code SUBSCRIPTION_GROUP_NOT_EXIST if no broker has the group.
    """
    asking = await source.ask()
    admin = source.admin
    omitted: dict[str, int] = {}
    answers: list[Any] = await gathered(
        asking.merged(lambda: admin.describe_group(group)),
        asking.of(
            lambda silent: admin.blocked_message_groups(group, omitted=omitted, silent=silent)
        ),
        asking.merged(lambda: admin.get_stats(groups=(group,), period=period)),
        asking.merged(lambda: _leases(admin, group)),
        asking.merged(lambda: admin.list_delayed(topic=retry_topic(group), limit=SHOWN)),
    )
    found: GroupDetails | None = answers[0]
    blocked: list[BlockedMessageGroup] | None = answers[1]
    stats: Stats | None = answers[2]
    history = stats.groups.get(group) if stats else None
    shown = None if blocked is None else tuple(blocked[:BLOCKED_ROWS])
    parts = list(found.by_broker.values()) if found else []
    oldest = [queue.oldest_timestamp_ms for queue in (found.queues if found else ())]
    return GroupPage(
        consumer_group=group,
        settings=found.settings if found else None,
        lag=sum_of(parts, "lag"),
        retries=sum_of(parts, "retries"),
        dead_letters=sum_of(parts, "dead_letters"),
        in_flight=sum_of(parts, "in_flight"),
        messages_out_rate=sum_of(parts, "messages_out_rate"),
        oldest_ms=min((each for each in oldest if each is not None), default=None),
        queues=found.queues if found else None,
        members=found.members if found else None,
        conflicts=tuple(conflict_texts(found.members if found else (), group)),
        blocked=shown,
        blocked_omitted=sum(omitted.values()) + len(blocked or ()) - len(shown or ()),
        leases=None if answers[3] is None else answers[3].rows,
        due_retries=None if answers[4] is None else answers[4].rows,
        charts=(
            chart("Lag in messages", {"lag": "lag"}, stats, history),
            chart("Messages per second", {"messages_out": "out"}, stats, history),
        ),
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


async def _leases(admin: AsyncAdminClient, group: str) -> Waiting[HeldLease]:
    """Return the oldest leases of a group; none if no broker that answered has the group."""
    try:
        return await admin.list_leases(group, limit=SHOWN)
    except MqError as error:
        if error.code is not Code.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise
        return Waiting(rows=(), total=None, unanswered={})
