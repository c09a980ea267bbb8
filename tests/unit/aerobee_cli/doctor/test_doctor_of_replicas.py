"""What the doctor makes of what replicas say. No network."""

from __future__ import annotations

from typing import Any

import pytest
from aerobee.broker.v1 import replica_pb2 as pb
from aerobee.broker.v1 import replication_pb2

from aerobee_cli.doctor.checks import of_replicas
from aerobee_client.admin.descriptions import ReplicaDescription
from aerobee_wire.status import Code, MqError


def status(number: int, role: str, **fields: Any) -> pb.GetReplicationStatusResponse:
    log = replication_pb2.LogReplica(broker_name="a", replica_id=number, end_offset=50)
    return pb.GetReplicationStatusResponse(replica=log, role=role, **fields)


def master(*in_sync: int, required: int = 2, clock_ms: int = 0) -> pb.GetReplicationStatusResponse:
    follower = pb.FollowerStatus(replica_id=1, connected=True, clock_offset_ms=clock_ms)
    reported = pb.MasterStatus(in_sync=in_sync, required_replicas=required, followers=[follower])
    return status(0, "master", master=reported)


def found(
    leads: pb.GetReplicationStatusResponse | None,
    *statuses: pb.GetReplicationStatusResponse,
    silent: tuple[MqError, ...] = (),
) -> list[tuple[str, str]]:
    """(check, subject) of each finding."""
    all_of_them = [*([leads] if leads else []), *statuses]
    replicas = [ReplicaDescription.of(each, leads) for each in all_of_them]
    return [(each.check, each.subject) for each in of_replicas("a", replicas, silent)]


def test_a_group_that_is_well_has_none() -> None:
    assert found(master(0, 1), status(1, "slave", coordinator_reachable=True)) == []
    learner = status(2, "slave", learner=True)
    assert found(master(0, 1), status(1, "slave"), learner) == []


def test_a_replica_that_does_not_answer_is_reported() -> None:
    away = MqError(Code.BROKER_UNREACHABLE, "replica 1 does not answer")
    assert found(master(0, required=1), silent=(away,)) == [("replica", "a")]


def test_a_replica_that_no_name_server_knows_is_missed() -> None:
    slave = status(1, "slave", total_replicas=3)
    assert found(master(0, 1), slave) == [("replica", "a")]
    assert found(master(0, 1), slave, status(2, "slave", learner=True)) == [("replica", "a")]


def test_a_group_that_takes_no_messages_or_has_no_master_says_so() -> None:
    assert ("replica", "a") in found(master(0), status(1, "slave"))
    assert found(None, status(1, "candidate")) == [("replica", "a")]


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
    assert found(master(0, required=1), status(1, **fields)) == [("replica", "a, replica 1")]


@pytest.mark.parametrize(("clock_ms", "checks"), [(501, 1), (-501, 1), (500, 0)])
def test_a_clock_that_is_off_is_reported(clock_ms: int, checks: int) -> None:
    assert (
        found(master(0, 1, clock_ms=clock_ms), status(1, "slave"))
        == [("clock", "a, replica 1")][:checks]
    )


def test_a_replica_that_does_not_reach_etcd_is_reported() -> None:
    lonely = status(1, "slave", coordinator_reachable=False)
    assert found(master(0, 1), lonely) == [("replica", "a, replica 1")]


def test_damage_is_reported_of_the_damaged_replica_alone() -> None:
    damaged = status(1, "slave", damaged_bytes=300, damaged_ranges=2)
    replicas = [ReplicaDescription.of(each, None) for each in (damaged, status(2, "slave"))]
    findings = [each for each in of_replicas("a", replicas, ()) if "damaged" in each.problem]
    assert [each.subject for each in findings] == ["a, replica 1"]
    assert "replica 2" in findings[0].advice
    alone = list(of_replicas("a", [ReplicaDescription.of(damaged, None)], ()))
    assert "loses what it alone has" in alone[-1].advice
