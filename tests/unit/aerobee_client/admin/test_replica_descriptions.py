"""What replicas say, as the admin client tells it."""

from __future__ import annotations

import pytest
from aerobee.broker.v1 import replica_pb2, replication_pb2

from aerobee_client.admin.descriptions import ReplicaDescription

MASTER = replica_pb2.GetReplicationStatusResponse(
    replica=replication_pb2.LogReplica(broker_name="b", replica_id=1, epoch=3),
    role="master",
    coordinator_reachable=False,
    master=replica_pb2.MasterStatus(
        in_sync=[1, 2],
        followers=[
            replica_pb2.FollowerStatus(
                replica_id=2, connected=True, lag_bytes=7, behind_ms=-1, clock_offset_ms=-600
            ),
            replica_pb2.FollowerStatus(replica_id=3, connected=True),
        ],
    ),
)


def slave(number: int, **fields: object) -> replica_pb2.GetReplicationStatusResponse:
    log = replication_pb2.LogReplica(
        broker_name="b", replica_id=number, lowest_offset=1_000, end_offset=1_400
    )
    return replica_pb2.GetReplicationStatusResponse(replica=log, role="slave", **fields)  # type: ignore[arg-type]


def test_what_only_its_master_knows_comes_from_there() -> None:
    reported = ReplicaDescription.of(slave(2), MASTER)
    assert (reported.in_sync, reported.lag_bytes, reported.behind_ms) == (True, 7, None)
    assert (reported.clock_offset_ms, reported.coordinator_reachable) == (-600, None)
    not_yet = ReplicaDescription.of(slave(3), MASTER)
    assert (not_yet.in_sync, not_yet.clock_offset_ms) == (False, None)
    own = ReplicaDescription.of(MASTER, MASTER)
    assert (own.clock_offset_ms, own.coordinator_reachable) == (0, False)
    assert (own.in_sync_replicas, reported.in_sync_replicas) == ((1, 2), None)
    alone = ReplicaDescription.of(slave(2), None)
    assert (alone.in_sync, alone.lag_bytes, alone.clock_offset_ms) == (None, None, None)


def test_without_a_master_each_says_whom_it_has_read_to_be_in_sync() -> None:
    reported = ReplicaDescription.of(slave(2, set_at_coordinator=[1, 2]), None)
    assert (reported.in_sync, reported.in_sync_replicas) == (True, (1, 2))
    reported = ReplicaDescription.of(slave(3, set_at_coordinator=[1, 2]), None)
    assert (reported.in_sync, reported.in_sync_replicas) == (False, (1, 2))
    led = ReplicaDescription.of(slave(3, set_at_coordinator=[3]), MASTER)
    assert (led.in_sync, led.in_sync_replicas) == (False, None), "the master knows better"


@pytest.mark.parametrize(
    ("copying", "master_end", "percent"),
    [(True, 1_800, 50), (True, 1_200, 100), (True, 0, None), (False, 1_800, None)],
)
def test_how_much_of_its_masters_log_it_has_copied(
    copying: bool, master_end: int, percent: int | None
) -> None:
    reported = ReplicaDescription.of(
        slave(2, copying=copying, master_end_offset=master_end), MASTER
    )
    assert reported.copied_percent == percent
