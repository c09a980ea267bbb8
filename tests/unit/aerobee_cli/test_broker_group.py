"""What the commands make of a broker group of which some do not answer. No network."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Self

import pytest
from aerobee.broker.v1 import admin_pb2, replication_pb2
from aerobee.broker.v1 import replica_pb2 as pb

from aerobee_cli import main
from aerobee_cli.doctor import cluster as doctor_cluster
from aerobee_cli.doctor.broker_group import AbsentReplica, absent_replicas, no_master
from aerobee_client.admin.descriptions import (
    BrokerDescription,
    BrokerStatus,
    ClusterDescription,
    ConfigChange,
    ConfigOption,
    DivergedFile,
    ReplicaDescription,
)
from aerobee_wire.status import Code, MqError

NAME = "broker-a"
PROMOTE = f"aerobee broker promote {NAME}"


def address(number: int) -> str:
    return f"10.0.0.{number}:10911"


def status(number: int, role: str = "slave", **fields: Any) -> pb.GetReplicationStatusResponse:
    log = replication_pb2.LogReplica(broker_name=NAME, replica_id=number, end_offset=50)
    given = {"total_replicas": 3, "address": address(number), **fields}
    return pb.GetReplicationStatusResponse(replica=log, role=role, **given)


def described(*statuses: pb.GetReplicationStatusResponse) -> list[ReplicaDescription]:
    leads = next((each for each in statuses if each.role == "master"), None)
    return [ReplicaDescription.of(each, leads) for each in statuses]


def master(number: int, *in_sync: int, **fields: Any) -> pb.GetReplicationStatusResponse:
    reported = pb.MasterStatus(in_sync=in_sync, required_replicas=2, synchronous=True)
    return status(number, "master", master=reported, **fields)


def absent(
    registered: dict[int, int], *statuses: pb.GetReplicationStatusResponse
) -> list[tuple[int | None, str]]:
    """`registered`: registration id → number of the replica that has the address."""
    at = {key: address(number) for key, number in registered.items()}
    return [(each.replica_id, each.address) for each in absent_replicas(described(*statuses), at)]


def test_who_is_not_registered_is_missed_by_its_number() -> None:
    assert absent({0: 1, 2: 2}, master(1, 1, 2), status(2)) == [(0, "")]
    assert absent({0: 1}, master(1, 1)) == [(0, ""), (2, "")]
    assert absent({0: 0, 1: 1, 2: 2}, master(0, 0, 1, 2), status(1), status(2)) == []


def test_who_is_registered_and_does_not_answer_has_its_address() -> None:
    assert absent({0: 0, 1: 1, 2: 2}, master(0, 0, 1), status(1)) == [(2, address(2))]
    # A former master, by a registration id that is not its number.
    assert absent({0: 1, 2: 2, 1000: 0}, master(1, 1, 2), status(2)) == [(0, address(0))]
    # The one that leads as far as name servers know: by elimination.
    assert absent({0: 1, 2: 2, 1000: 0}, status(0), status(2)) == [(1, address(1))]


def test_a_master_that_does_not_answer_beside_another_that_is_away_is_not_named() -> None:
    assert absent({0: 0, 2: 2}, status(2)) == [(None, address(0)), (None, "")]


def test_with_etcd_a_number_is_known_by_the_set_alone() -> None:
    given: dict[str, Any] = {"elected": True}
    assert absent({0: 7, 8: 8}, master(7, 7, 8, 9, **given), status(8, **given)) == [(9, "")]
    assert absent({0: 7, 8: 8}, master(7, 7, 8, **given), status(8, **given)) == [(None, "")]


def test_a_learner_is_none_of_the_copies() -> None:
    copies = master(0, 0, 1), status(1), status(2)
    learner = status(3, learner=True)
    assert absent({0: 0, 1: 1, 2: 2, 3: 3}, *copies, learner) == []
    assert absent({0: 0, 1: 1, 2: 2, 3: 3}, *copies) == [(3, address(3))]


def test_a_group_without_a_master_is_promoted_where_nobody_elects() -> None:
    found = described(status(1), status(2))
    problem, step = no_master(NAME, found, [AbsentReplica(0, "")])
    assert "2 of its 3" in problem
    assert step == PROMOTE


def test_with_etcd_somebody_is_elected_unless_etcd_or_the_set_is_away() -> None:
    given: dict[str, Any] = {"elected": True}
    away = [AbsentReplica(3, "")]
    found = described(status(1, "candidate", coordinator_reachable=True, **given))
    _, step = no_master(NAME, found, away)
    assert "replica 3" in step and "--unclean" in step
    assert PROMOTE not in no_master(NAME, found, [])[1]
    found = described(status(1, "candidate", coordinator_reachable=False, **given))
    assert PROMOTE not in no_master(NAME, found, away)[1]


def test_with_etcd_only_who_is_in_sync_is_waited_for() -> None:
    given: dict[str, Any] = {"elected": True, "coordinator_reachable": True}
    away = [AbsentReplica(3, ""), AbsentReplica(4, "")]
    outside = described(status(1, "candidate", set_at_coordinator=[2, 3], **given))
    _, step = no_master(NAME, outside, away)
    assert "replica 3" in step and "replica 4" not in step and "--unclean" in step
    member = described(status(2, "candidate", set_at_coordinator=[2, 3], **given))
    assert PROMOTE not in no_master(NAME, outside + member, away)[1], "2 is elected"
    cut_off = {**given, "coordinator_reachable": False}
    member = described(status(2, "candidate", set_at_coordinator=[2, 3], **cut_off))
    assert PROMOTE in no_master(NAME, outside + member, away)[1], "2 does not reach etcd"
    registered = {1: 1}
    assert absent(registered, status(1, set_at_coordinator=[2, 3], **given)) == [(2, ""), (3, "")]


# ---- commands ----


class GroupAdmin:
    """Knows a group of which `statuses` answer."""

    def __init__(
        self, registered: dict[int, int], *statuses: pb.GetReplicationStatusResponse
    ) -> None:
        self._addresses = {key: address(number) for key, number in registered.items()}
        self._found = described(*statuses)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def cluster(self) -> ClusterDescription:
        return ClusterDescription((BrokerDescription("c", NAME, self._addresses),), ())

    def replicas(self, name: str, *, silent: list[MqError]) -> list[ReplicaDescription]:
        answering = {each.address for each in self._found}
        silent += [
            MqError(Code.BROKER_UNREACHABLE, f"{each} cannot be reached")
            for each in self._addresses.values()
            if each not in answering
        ]
        return self._found

    def replica(self, name: str) -> ReplicaDescription:
        return next(each for each in self._found if each.role == "master")

    def broker_status(self, name: str) -> BrokerStatus:
        return BrokerStatus.of(admin_pb2.GetBrokerStatusResponse(broker_name=NAME, broker_id=0))

    def broker_config(self, name: str, *, silent: list[MqError]) -> list[ConfigOption]:
        return [ConfigOption(each.address, "logLevel", "info", "default", True)
                for each in self._found]  # fmt: skip

    def update_broker_config(self, name: str, *_: Any, **__: Any) -> list[ConfigChange]:
        return [ConfigChange(each.address, ()) for each in self._found]

    def list_diverged(self, name: str, *, silent: list[MqError]) -> list[DivergedFile]:
        return [
            DivergedFile(
                broker_name=NAME, replica_id=2, address=address(2), name="1-40.log",
                epoch=1, begin_offset=40, size=10,
            )
        ]  # fmt: skip


Knowing = Callable[..., None]


@pytest.fixture
def knowing(monkeypatch: pytest.MonkeyPatch) -> Knowing:
    def know(*given: Any) -> None:
        monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: GroupAdmin(*given))
        monkeypatch.setattr("aerobee_client.AdminClient", lambda *_, **__: GroupAdmin(*given))

    return know


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    """Exit code, JSON and remarks of a command."""
    code = main.main([*arguments, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else None, err


def test_replicas_are_listed_by_their_own_number_after_a_promotion(
    knowing: Knowing, capsys: pytest.CaptureFixture[str]
) -> None:
    knowing({0: 1, 2: 2, 1000: 0}, master(1, 0, 1, 2), status(0), status(2))
    code, rows, _ = shown(capsys, "cluster", "list")
    assert code == 0
    assert [(each["broker_id"], each["replica_id"], each["role"]) for each in rows] == [
        (0, 1, "master"),
        (2, 2, "slave"),
        (1000, 0, "slave"),
    ]
    code, state, _ = shown(capsys, "broker", "status", NAME)
    assert (state["broker_id"], state["replica_id"]) == (0, 1)
    assert main.main(["broker", "status", NAME]) == 0
    assert "broker id" not in capsys.readouterr().out


def test_a_replica_that_is_away_has_a_row(
    knowing: Knowing, capsys: pytest.CaptureFixture[str]
) -> None:
    knowing({0: 1, 2: 2}, master(1, 0, 1), status(2))
    code, rows, _ = shown(capsys, "broker", "ha-status", NAME)
    assert code == 3
    assert [(each["replica_id"], each["answers"], each["in_sync"]) for each in rows] == [
        (1, True, True),
        (2, True, False),
        (0, False, True),
    ]
    assert rows[0].keys() == rows[2].keys()
    code, rows, _ = shown(capsys, "cluster", "list")
    assert code == 3
    assert [(each["replica_id"], each["answers"]) for each in rows] == [
        (1, True),
        (2, True),
        (0, False),
    ]
    assert len({frozenset(each) for each in rows}) == 1
    assert main.main(["broker", "ha-status", NAME]) == 3
    assert main.main(["cluster", "list"]) == 3
    assert capsys.readouterr().out.count("is not registered") == 2


def test_what_a_replica_that_is_away_has_to_cut_is_not_known(
    knowing: Knowing, capsys: pytest.CaptureFixture[str]
) -> None:
    knowing({0: 1, 2: 2}, master(1, 1, 2), status(2))
    code, rows, err = shown(capsys, "broker", "diverged", "list", NAME)
    assert code == 3
    assert [(each["replica_id"], each["name"]) for each in rows] == [(2, "1-40.log"), (0, None)]
    assert "replica 0" in err


@pytest.mark.parametrize(
    "command", [("get", NAME), ("set", NAME, "logLevel=debug"), ("unset", NAME, "logLevel")]
)
def test_options_name_a_replica_that_is_not_registered(
    knowing: Knowing, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    knowing({0: 1, 2: 2}, master(1, 1, 2), status(2))
    code, rows, err = shown(capsys, "broker", "config", *command)
    assert (code, len(rows)) == (3, 2)
    assert f"replica 0 of {NAME} is not registered" in err
    knowing({0: 0, 1: 1, 2: 2}, master(0, 0, 1, 2), status(1), status(2))
    assert shown(capsys, "broker", "config", *command)[0] == 0


def test_a_mistyped_option_names_the_nearest_one(
    knowing: Knowing, capsys: pytest.CaptureFixture[str]
) -> None:
    knowing({0: 1, 2: 2}, master(1, 1, 2), status(2))
    for key, hint in (("logLevl", "did you mean logLevel?"), ("x", "leave KEY out")):
        code, _, err = shown(capsys, "broker", "config", "get", NAME, key)
        assert code == 2 and hint in err


@pytest.mark.parametrize("command", [("broker", "ha-status", NAME), ("cluster", "list")])
def test_a_group_without_a_master_is_reported_with_the_next_step(
    knowing: Knowing, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    knowing({1: 1, 2: 2}, status(1), status(2))
    code, _, err = shown(capsys, *command)
    assert code == 3
    assert PROMOTE in err


def test_the_status_of_a_group_without_a_master_is_its_next_step(
    knowing: Knowing, capsys: pytest.CaptureFixture[str]
) -> None:
    knowing({1: 1, 2: 2}, status(1), status(2))
    code, _, err = shown(capsys, "broker", "status", NAME)
    assert code == 1 and PROMOTE in err
    code, rows, err = shown(capsys, "broker", "status")
    assert (code, rows) == (1, None) and PROMOTE in err, "no broker has a state to show"


def test_the_doctor_finds_a_group_without_a_master(knowing: Knowing) -> None:
    knowing({1: 1, 2: 2}, status(1), status(2))
    found = doctor_cluster.diagnose(["10.0.0.9:9876"]).findings
    assert ("replica", NAME, PROMOTE) in [(each.check, each.subject, each.advice) for each in found]
