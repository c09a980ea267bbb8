"""The messages that wait in brokers: on lease, in transactions, for their time, in lite topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from aerobee_client.admin.descriptions import LiteClientDescription, LiteTopicDescription
from aerobee_client.admin.waiting import DelayedMessage, HeldLease, OpenTransaction, Waiting
from aerobee_console.reading.groups import GroupRow, group_list
from aerobee_console.reading.source import PAGE_ROWS, Answer, Asking, Source
from aerobee_console.reading.topics import topic_list

R = TypeVar("R")
MOST = 1_000  # rows in which an action looks for those that were chosen
LATE_MS = 10_000  # a delayed message that is due for longer is stuck
MANY_CHECKS = 10  # a broker gives a transaction up after 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(Answer):
    """Base class of lists of what waits.

    `total` counts all rows; None if a broker did not answer, or has not counted them. `known` is
    False if no broker answered.
    """

    total: int | None
    known: bool

    def why_missing(self, key: str, rows: int) -> str:
        """Return why none of `rows` listed rows has the key of an action that was chosen.

        The row has ended only if its broker answered and the list is whole.
        """
        broker_name = key.partition("/")[0]
        if any(each.broker_name == broker_name for each in self.silent):
            return f"unknown, because {broker_name} did not answer: retry when it runs"
        whole = bool(self.silent) if self.total is None else self.total == rows
        if rows >= MOST or not whole:
            return (
                f"unknown, because it is not among the {rows:,} oldest: filter the list by its "
                "topic, and choose it there"
            )
        return "it had ended before"


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedList(Held):
    """The next delayed messages. `stuck` counts those among them that are due for over 10 s."""

    rows: tuple[DelayedMessage, ...]
    stuck: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionList(Held):
    """The oldest open transactions. `stuck` counts those with many checks."""

    rows: tuple[OpenTransaction, ...]
    stuck: int

    @property
    def oldest_ms(self) -> int | None:
        """The store time of the oldest half message."""
        return min((row.stored_timestamp_ms for row in self.rows), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseList(Held):
    """The oldest leases of a group, or without a group the groups that have leases.

    `lite_leases` counts the leases of lite topics, which are not listed. `groups` are the 100 with
    the most leases, and `every_group` says whether no other group has leases.
    """

    consumer_group: str
    rows: tuple[HeldLease, ...]
    lite_leases: int | None
    groups: tuple[GroupRow, ...]
    every_group: bool

    @property
    def oldest_ms(self) -> int | None:
        """The begin of the oldest lease."""
        return min((row.since_timestamp_ms for row in self.rows), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteList(Held):
    """The lite topics of a parent topic, or without one the names of the parents.

    `clients` are the subscribers; None if no broker answered.
    """

    parent: str
    consumer_group: str
    parents: tuple[str, ...]
    rows: tuple[LiteTopicDescription, ...]
    clients: tuple[LiteClientDescription, ...] | None


def lease_key(lease: HeldLease) -> str:
    """Return the text that names a lease in an action."""
    place = (lease.topic, lease.queue_id, lease.queue_offset, lease.lease_id)
    return "/".join(map(str, (lease.broker_name, *place)))


def transaction_key(transaction: OpenTransaction) -> str:
    """Return the text that names a transaction in an action."""
    return f"{transaction.broker_name}/{transaction.queue_offset}/{transaction.transaction_id}"


async def delayed_list(source: Source, topic: str = "") -> DelayedList:
    """Return the delayed messages that are due next, with one call to each broker.

    Args:
        source: The cluster.
        topic: Only messages for this topic, among the next 10,000 of each broker.
    """
    asking = await source.ask()
    found = await asking.merged(lambda: source.admin.list_delayed(topic=topic, limit=PAGE_ROWS))
    rows = found.rows if found else ()
    late_ms = asking.at_ms - LATE_MS
    return DelayedList(
        rows=rows, stuck=sum(row.due_timestamp_ms < late_ms for row in rows), **_held(asking, found)
    )


async def transaction_list(
    source: Source, *, topic: str = "", producer_group: str = "", limit: int = PAGE_ROWS
) -> TransactionList:
    """Return the oldest open transactions, with one call to each broker."""
    asking = await source.ask()
    found = await asking.merged(
        lambda: source.admin.list_transactions(
            topic=topic, producer_group=producer_group, limit=limit
        )
    )
    rows = found.rows if found else ()
    stuck = sum(row.checks >= MANY_CHECKS for row in rows)
    return TransactionList(rows=rows, stuck=stuck, **_held(asking, found))


async def lease_list(
    source: Source,
    group: str = "",
    *,
    topic: str = "",
    client_id: str = "",
    limit: int = PAGE_ROWS,
) -> LeaseList:
    """Return the oldest leases of a group, with one call to each broker.

    Raises MqError with the code SUBSCRIPTION_GROUP_NOT_EXIST.

    Args:
        source: The cluster.
        group: The consumer group. Default: the groups that have leases are returned.
        topic: Only messages of this topic.
        client_id: Only messages that this client received.
        limit: The highest number of leases.
    """
    if not group:
        return await _groups_with_leases(source)
    asking = await source.ask()
    found = await asking.merged(
        lambda: source.admin.list_leases(group, topic=topic, client_id=client_id, limit=limit)
    )
    return LeaseList(
        consumer_group=group,
        rows=found.rows if found else (),
        lite_leases=found.lite_leases if found else None,
        groups=(),
        every_group=True,
        **_held(asking, found),
    )


async def _groups_with_leases(source: Source) -> LeaseList:
    found = await group_list(source, sort="in_flight")
    rows = tuple(row for row in found.rows if row.in_flight != 0)
    known = found.total is not None or bool(found.rows)
    return LeaseList(
        consumer_group="", rows=(), lite_leases=0, groups=rows, total=None, known=known,
        every_group=len(rows) < len(found.rows) or found.pages == 1,
        asked_at_ms=found.asked_at_ms, silent=found.silent,
    )  # fmt: skip


async def lite_list(source: Source, parent: str = "", group: str = "") -> LiteList:
    """Return lite topics and their subscribers, with two calls to each broker.

    Raises MqError with the code TOPIC_NOT_EXIST, or INVALID_PARAMETER for a topic of another type.

    Args:
        source: The cluster.
        parent: A topic of the type LITE. Default: only the names of these topics are returned.
        group: The consumer group whose lag is returned.
    """
    if not parent:
        topics = await topic_list(source, message_type="LITE")
        return LiteList(
            parent="", consumer_group="", parents=tuple(row.topic for row in topics.rows), rows=(),
            clients=(), total=topics.total, known=topics.total is not None,
            asked_at_ms=topics.asked_at_ms, silent=topics.silent,
        )  # fmt: skip
    asking, admin = await source.ask(), source.admin
    found = await asking.of(
        lambda silent: admin.list_lite_topics(parent, group=group, limit=PAGE_ROWS, silent=silent)
    )
    clients = await asking.of(lambda silent: admin.list_lite_clients(parent, silent=silent))
    return LiteList(
        parent=parent,
        consumer_group=group,
        parents=(),
        rows=found.topics if found else (),
        clients=None if clients is None else tuple(clients),
        total=found.total if found else None,
        known=found is not None,
        asked_at_ms=asking.at_ms,
        silent=asking.silent,
    )


def _held(asking: Asking, found: Waiting[Any] | None) -> Mapping[str, Any]:
    return {
        "total": found.total if found else None,
        "known": found is not None,
        "asked_at_ms": asking.at_ms,
        "silent": asking.silent,
    }


def chosen(rows: Sequence[R], key: Any, keys: Sequence[str]) -> tuple[list[R], list[str]]:
    """Return the rows with these keys, and the keys that no row has."""
    by_key = {key(row): row for row in rows}
    return [by_key[each] for each in keys if each in by_key], [
        each for each in keys if each not in by_key
    ]
