"""Which topics and groups the doctor hints at, over answers in memory."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee_cli.doctor import unused
from aerobee_cli.doctor.checks import Finding
from aerobee_client import AdminClient
from aerobee_client.admin.statistics import GroupStatistics, Page, TopicStatistics
from aerobee_wire.status import Code, MqError

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
LONG_AGO_MS = NOW_MS - 40 * DAY_MS
YESTERDAY_MS = NOW_MS - DAY_MS


class Admin:
    """Answers with topics and groups, and counts the calls about single ones."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, Any]] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self.times_ms: dict[str, int | None] = {}  # of messages; None: the call fails
        self.calls = 0

    def topic_page(self, *, offset: int, limit: int) -> Any:
        rows = [
            SimpleNamespace(topic=name, statistics=statistics(TopicStatistics, counts))
            for name, counts in self.topics.items()
        ]
        return Page(rows=tuple(rows[offset : offset + limit]), total=None, unanswered={})

    def group_page(self, *, offset: int, limit: int) -> Any:
        rows = [
            SimpleNamespace(consumer_group=name, statistics=statistics(GroupStatistics, counts))
            for name, counts in self.groups.items()
        ]
        return Page(rows=tuple(rows[offset : offset + limit]), total=None, unanswered={})

    def _time_ms(self, name: str) -> int:
        self.calls += 1
        found = self.times_ms[name]
        if found is None:
            raise MqError(Code.TOPIC_NOT_EXIST, f"no {name}")
        return found

    def topic_status(self, topic: str) -> Any:
        return [SimpleNamespace(latest_timestamp_ms=self._time_ms(topic))]

    def describe_group(self, group: str) -> Any:
        return SimpleNamespace(queues=[SimpleNamespace(oldest_timestamp_ms=self._time_ms(group))])


def statistics(kind: type[Any], counts: dict[str, Any]) -> Any:
    return kind(**{each.name: 0 for each in fields(kind)} | counts)


def hints(admin: Admin, *, started_ms: int = LONG_AGO_MS, published: str = "") -> list[Finding]:
    broker = SimpleNamespace(now_timestamp_ms=NOW_MS, start_timestamp_ms=started_ms)
    client = SimpleNamespace(published_topics=(published,) if published else ())
    found = unused.look(
        cast(AdminClient, admin), {"a": cast(Any, broker)}, [cast(Any, client)], 30 * DAY_MS
    )
    assert all(each.hint for each in found)
    return found


UNKNOWN = dict.fromkeys(("messages_in", "members", "stored_messages"))


@pytest.mark.parametrize(
    ("counts", "newest_ms", "started_ms", "is_idle"),
    [
        ({}, 0, LONG_AGO_MS, True),
        ({}, 0, YESTERDAY_MS, False),  # when a message was there, before the start, is not known
        ({"stored_messages": 5}, LONG_AGO_MS, YESTERDAY_MS, True),
        ({"stored_messages": 5}, YESTERDAY_MS, LONG_AGO_MS, False),
        ({"messages_in": 7}, 0, LONG_AGO_MS, False),  # they have expired: since when is not known
        ({"members": 1}, 0, LONG_AGO_MS, False),
        ({"stored_messages": 5, "messages_in": 5}, None, LONG_AGO_MS, False),
        (UNKNOWN, 0, LONG_AGO_MS, False),
    ],
)
def test_a_topic_is_idle_without_clients_and_new_messages(
    counts: dict[str, Any], newest_ms: int | None, started_ms: int, is_idle: bool
) -> None:
    admin = Admin()
    admin.topics["orders"] = counts
    admin.times_ms["orders"] = newest_ms
    found = hints(admin, started_ms=started_ms)
    assert [each.subject for each in found] == ["orders"] * is_idle
    assert all("aerobee topic delete orders" in each.advice for each in found)
    assert hints(admin, started_ms=started_ms, published="orders") == []


@pytest.mark.parametrize(
    ("counts", "oldest_ms", "started_ms", "is_idle"),
    [
        ({}, 0, LONG_AGO_MS, True),
        ({}, 0, YESTERDAY_MS, False),
        ({"lag": 3}, LONG_AGO_MS, YESTERDAY_MS, True),
        ({"lag": 3}, YESTERDAY_MS, LONG_AGO_MS, False),
        ({"lag": 3}, None, LONG_AGO_MS, False),
        ({"messages_out": 3}, 0, LONG_AGO_MS, False),
        ({"members": 1, "lag": 3}, LONG_AGO_MS, LONG_AGO_MS, False),
        (dict.fromkeys(("members", "lag", "messages_out")), 0, LONG_AGO_MS, False),
    ],
)
def test_a_group_is_past_without_members_and_progress(
    counts: dict[str, Any], oldest_ms: int | None, started_ms: int, is_idle: bool
) -> None:
    admin = Admin()
    admin.groups["billing"] = counts
    admin.times_ms["billing"] = oldest_ms
    found = hints(admin, started_ms=started_ms)
    assert [each.subject for each in found] == ["billing"] * is_idle
    assert all("aerobee group delete billing" in each.advice for each in found)


def test_a_large_cluster_costs_a_bounded_number_of_calls_and_lines() -> None:
    admin = Admin()
    for number in range(2_500):
        admin.topics[f"topic-{number}"] = {"stored_messages": 1}
        admin.groups[f"group-{number}"] = {"lag": 1}
        admin.times_ms[f"topic-{number}"] = admin.times_ms[f"group-{number}"] = LONG_AGO_MS
    found = hints(admin, started_ms=YESTERDAY_MS)
    assert admin.calls == 2 * unused.MAX_ASKED
    assert len(found) == 2 * (unused.MAX_SHOWN + 1)
    assert f"{unused.MAX_ASKED - unused.MAX_SHOWN} more topics" in found[unused.MAX_SHOWN].problem
