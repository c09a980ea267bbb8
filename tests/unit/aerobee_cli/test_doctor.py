"""What the doctor makes of the answers of brokers. No network."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aerobee.broker.v1 import replica_pb2 as pb
from aerobee.broker.v1 import replication_pb2

from aerobee_cli.doctor import checks, cluster
from aerobee_cli.doctor.checks import Answer, Finding, of_replicas
from aerobee_client import AdminClient
from aerobee_client.admin.descriptions import (
    AwayProxy,
    BrokerConflict,
    BrokerStatus,
    ClientDescription,
    GroupDescription,
    ReplicaDescription,
    TopicDescription,
    TopicOnBroker,
)
from aerobee_client.admin.statistics import GroupStatistics, Page, TopicStatistics
from aerobee_wire.status import Code, MqError

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


# ---- test doctor of replicas ----
#
# What the doctor makes of what replicas say. No network.


def replication_status(number: int, role: str, **fields: Any) -> pb.GetReplicationStatusResponse:
    log = replication_pb2.LogReplica(broker_name="a", replica_id=number, end_offset=50)
    return pb.GetReplicationStatusResponse(replica=log, role=role, **fields)


def master(*in_sync: int, required: int = 2, clock_ms: int = 0) -> pb.GetReplicationStatusResponse:
    follower = pb.FollowerStatus(replica_id=1, connected=True, clock_offset_ms=clock_ms)
    reported = pb.MasterStatus(in_sync=in_sync, required_replicas=required, followers=[follower])
    return replication_status(0, "master", master=reported)


def found_at_replicas(
    leads: pb.GetReplicationStatusResponse | None,
    *statuses: pb.GetReplicationStatusResponse,
    silent: tuple[MqError, ...] = (),
) -> list[tuple[str, str]]:
    """(check, subject) of each finding."""
    all_of_them = [*([leads] if leads else []), *statuses]
    replicas = [ReplicaDescription.of(each, leads) for each in all_of_them]
    return [(each.check, each.subject) for each in of_replicas("a", replicas, silent)]


def test_a_group_that_is_well_has_none() -> None:
    assert (
        found_at_replicas(master(0, 1), replication_status(1, "slave", coordinator_reachable=True))
        == []
    )
    learner = replication_status(2, "slave", learner=True)
    assert found_at_replicas(master(0, 1), replication_status(1, "slave"), learner) == []


def test_a_replica_that_does_not_answer_is_reported() -> None:
    away = MqError(Code.BROKER_UNREACHABLE, "replica 1 does not answer")
    assert found_at_replicas(master(0, required=1), silent=(away,)) == [("replica", "a")]


def test_a_replica_that_no_name_server_knows_is_missed() -> None:
    slave = replication_status(1, "slave", total_replicas=3)
    assert found_at_replicas(master(0, 1), slave) == [("replica", "a")]
    assert found_at_replicas(master(0, 1), slave, replication_status(2, "slave", learner=True)) == [
        ("replica", "a")
    ]


def test_a_group_that_takes_no_messages_or_has_no_master_says_so() -> None:
    assert ("replica", "a") in found_at_replicas(master(0), replication_status(1, "slave"))
    assert found_at_replicas(None, replication_status(1, "candidate")) == [("replica", "a")]


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "refused", "reason": "messageDelayLevel differs"},
        {"role": "slave", "reason": "its disk is full"},
        {"role": "slave", "copying": True, "master_end_offset": 100},
        {"role": "slave"},
    ],
)
def test_a_replica_that_is_not_in_sync_is_reported_once(fields: dict[str, Any]) -> None:
    assert found_at_replicas(master(0, required=1), replication_status(1, **fields)) == [
        ("replica", "a, replica 1")
    ]


@pytest.mark.parametrize(("clock_ms", "checks"), [(501, 1), (-501, 1), (500, 0)])
def test_a_clock_that_is_off_is_reported(clock_ms: int, checks: int) -> None:
    assert (
        found_at_replicas(master(0, 1, clock_ms=clock_ms), replication_status(1, "slave"))
        == [("clock", "a, replica 1")][:checks]
    )


def test_a_replica_that_does_not_reach_etcd_is_reported() -> None:
    lonely = replication_status(1, "slave", coordinator_reachable=False)
    assert found_at_replicas(master(0, 1), lonely) == [("replica", "a, replica 1")]


def test_damage_is_reported_of_the_damaged_replica_alone() -> None:
    damaged = replication_status(1, "slave", damaged_bytes=300, damaged_ranges=2)
    replicas = [
        ReplicaDescription.of(each, None) for each in (damaged, replication_status(2, "slave"))
    ]
    findings = [each for each in of_replicas("a", replicas, ()) if "damaged" in each.problem]
    assert [each.subject for each in findings] == ["a, replica 1"]
    assert "replica 2" in findings[0].advice
    alone = list(of_replicas("a", [ReplicaDescription.of(damaged, None)], ()))
    assert "loses what it alone has" in alone[-1].advice


# ---- test unused ----
#
# Which topics and groups the doctor hints at, over answers in memory.


DAY_MS = 86_400_000
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
    found = cluster.look(
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
    assert admin.calls == 2 * cluster.MAX_ASKED
    assert len(found) == 2 * (cluster.MAX_SHOWN + 1)
    assert (
        f"{cluster.MAX_ASKED - cluster.MAX_SHOWN} more topics" in found[cluster.MAX_SHOWN].problem
    )
