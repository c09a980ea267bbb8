"""What the doctor makes of the answers of brokers. No network."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from aerobee_cli.doctor import checks
from aerobee_cli.doctor.checks import Answer, Finding
from aerobee_client.admin.descriptions import (
    AwayProxy,
    BrokerConflict,
    BrokerStatus,
    ClientDescription,
    GroupDescription,
    TopicDescription,
    TopicOnBroker,
)

NOW_MS = 1_700_000_000_000
GIB = 1 << 30


def status(**values: Any) -> BrokerStatus:
    well: dict[str, Any] = {each.name: 0 for each in fields(BrokerStatus)} | {
        "broker_name": "a",
        "version": "1.0",
        "read_only_reason": "",
        "delayed_messages": {},
        "disk_free_bytes": 50 * GIB,
        "disk_total_bytes": 100 * GIB,
        "disk_max_used_percent": 75,
        "disk_full_percent": 90,
        "resident_memory_bytes": GIB,
        "memory_limit_bytes": 2 * GIB,
        "now_timestamp_ms": NOW_MS,
    }
    return BrokerStatus(**(well | values))


def found(asked_ms: int = NOW_MS, answered_ms: int = NOW_MS, **values: Any) -> list[str]:
    answer = Answer(status(**values), asked_ms, answered_ms)
    return [finding.check for finding in checks.of_broker("a", answer)]


@pytest.mark.parametrize(
    ("values", "checks"),
    [
        ({}, []),
        ({"broker_name": "b"}, ["broker"]),
        ({"read_only_reason": "a flush failed"}, ["broker"]),
        ({"corrupted_records_total": 1}, ["broker"]),
        ({"now_timestamp_ms": NOW_MS + 1_001}, ["clock"]),
        ({"now_timestamp_ms": NOW_MS - 1_001}, ["clock"]),
        ({"now_timestamp_ms": NOW_MS + 900}, []),
        ({"now_timestamp_ms": 0}, []),  # of version 0.1
        ({"asked_ms": NOW_MS - 5_000}, []),  # it may have answered at once, or late
        ({"disk_free_bytes": 20 * GIB}, ["disk"]),
        ({"disk_free_bytes": 5 * GIB}, ["disk"]),
        ({"disk_min_free_bytes": 51 * GIB}, ["disk"]),
        ({"resident_memory_bytes": 2 * GIB}, ["memory"]),
        ({"resident_memory_bytes": 2 * GIB, "memory_limit_bytes": 0}, []),
    ],
)
def test_a_broker_s_status_is_judged(values: dict[str, Any], checks: list[str]) -> None:
    assert found(**values) == checks


def test_a_broker_that_drains_is_a_hint() -> None:
    answer = Answer(status(draining_since_ms=NOW_MS), NOW_MS, NOW_MS)
    (finding,) = checks.of_broker("a", answer)
    assert finding.hint and "aerobee broker drain a --undo" in finding.advice


def test_a_proxy_that_no_name_server_has_is_missing() -> None:
    away = [AwayProxy("p:1", NOW_MS), AwayProxy("p:2", NOW_MS), AwayProxy("p:2", NOW_MS)]
    (finding,) = checks.away_proxies(away, {"p:1"})
    assert (finding.check, finding.subject, finding.hint) == ("proxy", "p:2", False)
    assert "2023-11-14T22:13:20Z" in finding.problem


def test_a_broker_of_another_version_is_named() -> None:
    statuses = {"a": status(), "b": status(version="0.9")}
    assert [each.subject for each in checks.versions(statuses, "1.0")] == ["b"]
    assert [each.subject for each in checks.versions(statuses, "0.9")] == ["a"]


def test_two_processes_with_one_number_are_named_once_with_addresses_and_stores() -> None:
    conflict = BrokerConflict("a", 2, "h:1", "0123456789abcdef", "h:2", "")
    (finding,) = checks.conflicts([conflict, conflict])
    assert (finding.check, finding.subject) == ("broker", "a")
    for reported in ("brokerId 2", "h:1", "0123456789abcdef", "h:2"):
        assert reported in finding.problem


def test_name_servers_that_have_a_broker_at_different_addresses_are_named() -> None:
    known = {"n1": {"a": "h:1", "b": "h:3"}, "n2": {"a": "h:2", "b": "h:3"}, "n3": {"a": "h:1"}}
    (finding,) = checks.whereabouts(known)
    assert finding.subject == "a"
    for reported in ("h:1", "h:2", "n1", "n2"):
        assert reported in finding.problem


def topic(**queues: tuple[int, int]) -> list[TopicDescription]:
    """Broker name → its queues to read and to write."""
    there = [TopicOnBroker(name, "", *counts, 6, False) for name, counts in queues.items()]
    return [TopicDescription("t", "NORMAL", tuple(there))]


def problems(findings: Any) -> list[str]:
    listed: list[Finding] = list(findings)
    assert all(each.advice and each.text.startswith(each.check) for each in listed)
    return [each.problem for each in listed]


def test_topics_that_brokers_have_differently_or_lack() -> None:
    assert problems(checks.topics(topic(a=(4, 4), b=(4, 4)), ["a", "b"])) == []
    (lacking,) = problems(checks.topics(topic(a=(4, 4)), ["a", "b"]))
    assert "b" in lacking
    assert problems(checks.topics(topic(a=(4, 4)), ["a"])) == []  # b drains
    (different,) = problems(checks.topics(topic(a=(8, 4), b=(4, 4)), ["a", "b"]))
    assert "b (read_queues 4, elsewhere 8)" in different
    (unread,) = problems(checks.topics(topic(a=(4, 6)), ["a"]))
    assert "4 to 5" in unread


def group(broker: str, max_attempts: int = 17) -> GroupDescription:
    return GroupDescription("g", max_attempts, (), True, True, "auto", (broker,))


def test_groups_that_brokers_have_differently_or_lack() -> None:
    assert problems(checks.groups({"a": [group("a")], "b": [group("b")]})) == []
    (lacking,) = problems(checks.groups({"a": [group("a")], "b": []}))
    assert lacking == "missing on b"
    (different,) = problems(checks.groups({"a": [group("a")], "b": [group("b", 3)]}))
    assert "b (max_attempts 3, elsewhere 17)" in different


def test_members_that_subscribe_differently() -> None:
    clients = [
        ClientDescription(
            client_id=expression, address="", language="", version="",
            consumer_groups=("g",), subscriptions={"t": expression},
        )
        for expression in ("x", "y", "x ")
    ]  # fmt: skip
    (conflict,) = problems(checks.subscriptions(clients))
    assert "differently to t" in conflict
    assert problems(checks.subscriptions(clients[:1])) == []


def test_servers_off_loopback_that_need_no_certificate_are_reported() -> None:
    near = ["127.0.0.1:10911", "[::1]:10911", "localhost:10911"]
    assert not list(checks.open_ports("broker", near))
    far = ["10.0.0.5:10911", "queue.example.org:10911"]
    (finding,) = checks.open_ports("broker", [*near, *far])
    assert (finding.check, finding.subject) == ("broker", ", ".join(far))
