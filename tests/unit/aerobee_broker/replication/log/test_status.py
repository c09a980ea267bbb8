"""What a master tells of its replicas, and how it travels."""

from __future__ import annotations

from aerobee_broker.replication.election.metrics import ReplicaMetrics
from aerobee_broker.replication.in_sync.counts import Reason, ReplicaCounts
from aerobee_broker.replication.in_sync.in_sync_set import InSyncRules, InSyncSet
from aerobee_broker.replication.in_sync.quorum import Quorum
from aerobee_broker.replication.log.epochs import EpochEntry, EpochHistory
from aerobee_broker.replication.log.handshake import LogDescription
from aerobee_broker.replication.log.status import ReplicaStatus, Role, master_status
from aerobee_broker.replication.rpc.replica import status_message, status_of
from aerobee_chassis.metrics.series import Distribution, Registry
from support.etcd.coordinator_contract import replica_of
from support.observing.series import series_value


def in_sync_set() -> InSyncSet:
    """Of replica 0, whose log ends at 100. Replica 1 has all of it and has joined; 2 has 40 and had
    all at 1,000 ms, when the log ended there; 3 has reported nothing."""
    found = InSyncSet(replica_of(0), 0, InSyncRules(synchronous=True, in_sync_replicas=2))
    found.stored(0, 40, 40, 1_000)
    for number in (1, 2, 3):
        found.began(replica_of(number), 0, 0, learner=number == 3)
    for number in (1, 2):
        found.reported(replica_of(number), 40, 1_000)
    found.stored(0, 100, 100, 1_500)
    found.reported(replica_of(1), 100, 1_600)
    found.ended(replica_of(2))
    found.next_change(1_600)
    found.change_ended({replica_of(0), replica_of(1)})
    return found


def test_a_master_reports_what_each_replica_lacks() -> None:
    reported = master_status(in_sync_set(), 100, 3_000, {replica_of(1): -7})
    assert (reported.synchronous, reported.required) == (True, 2)
    assert reported.in_sync == {replica_of(0), replica_of(1)}
    one, *others = reported.followers
    assert (one.replica, one.in_sync, one.lag_bytes, one.behind_ms) == (replica_of(1), True, 0, 0)
    assert [each.clock_offset_ms for each in reported.followers] == [-7, None]
    never = next(each for each in others if each.replica == replica_of(3))
    assert (never.learner, never.lag_bytes, never.behind_ms) == (True, 100, -1)


HISTORY = EpochHistory((EpochEntry(0, "s", 0), EpochEntry(3, "t", 64, Quorum(3, 2))), 4, 3)
LOG = LogDescription("c", "b", replica_of(0), HISTORY, 4, 0, 100, 90, 1 << 20, {"key": "value"})


def master() -> ReplicaStatus:
    return ReplicaStatus(
        LOG,
        "host:1",
        Role.MASTER,
        100,
        3,
        elected=True,
        reason="its disk is full",
        master_address="host:1",
        master=master_status(in_sync_set(), 100, 3_000, {replica_of(1): -7}),
        coordinator_reachable=False,
    )


def slave() -> ReplicaStatus:
    return ReplicaStatus(
        LOG,
        "host:2",
        Role.REFUSED,
        90,
        1,
        elected=False,
        following=True,
        copying=True,
        master_end=100,
        learner=True,
        set_at_coordinator=frozenset({1, 2}),
    )


def test_a_status_travels_as_it_is() -> None:
    for status in (master(), slave()):
        assert status_of(status_message(status)) == status


def test_metrics_show_a_role_and_what_slaves_lack_until_there_is_another() -> None:
    registry = Registry()
    metrics = ReplicaMetrics(registry, 0)

    def value(name: str, **labels: str) -> object:
        return series_value(registry, f"aerobee_replica_{name}", {"replica_id": "0", **labels})

    metrics.measure(master())
    assert (value("role", role="master"), value("role", role="slave")) == (1, 0)
    assert (value("epoch"), value("in_sync"), value("required")) == (4, 2, 2)
    assert value("unconfirmed_bytes") == 10
    assert (value("lag_bytes", slave="1"), value("lag_bytes", slave="3")) == (0, 100)
    assert value("behind_seconds", slave="3") is None  # it never was up to date
    assert (value("clock_offset_seconds", slave="1"), value("coordinator_reachable")) == (-0.007, 0)
    metrics.measure(slave())
    assert value("coordinator_reachable") == 1
    assert value("clock_offset_seconds", slave="1") is None
    assert (value("role", role="master"), value("role", role="refused")) == (0, 1)
    assert (value("in_sync"), value("following"), value("copying")) == (None, 1, 1)
    assert value("lag_bytes", slave="1") is None


def test_metrics_count_what_a_replica_counts() -> None:
    registry = Registry()
    metrics, counts = ReplicaMetrics(registry, 0), ReplicaCounts()

    def value(name: str, **labels: str) -> object:
        return series_value(registry, f"aerobee_replica_{name}", {"replica_id": "0", **labels})

    assert value("elections_total", reason="promotion") == 0
    counts.received(70)
    counts.cut(40, 3)
    counts.gave_up(9)
    counts.elected(Reason.PROMOTION)
    metrics.count(counts, [1, 700])
    counts.received(30)
    metrics.count(counts, [])
    assert (value("received_bytes_total"), value("cuts_total")) == (100, 1)
    assert (value("diverged_bytes_total"), value("diverged_messages_total")) == (40, 3)
    assert value("given_up_bytes_total") == 9
    assert value("elections_total", reason="promotion") == 1
    waits = value("wait_seconds")
    assert isinstance(waits, Distribution)
    assert (sum(waits.counts), sum(waits.counts[:8]), waits.bounds[7]) == (2, 1, 0.5)
