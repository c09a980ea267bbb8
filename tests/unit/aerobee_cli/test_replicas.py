"""What `aerobee up --replicas N` asks of each broker: options that a broker takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.config import BrokerOptions
from aerobee_chassis.config import load
from aerobee_cli.main import main
from aerobee_cli.processes.suite import ONE_COPY, Replicas, SuiteOptions, any_listens

ETCD = "127.0.0.1:2379,127.0.0.1:2381"


def options(group: Replicas) -> list[BrokerOptions]:
    settings = [group.settings(number) for number in range(group.copies)]
    return [load(BrokerOptions, sets=each) for each in settings]


@pytest.mark.parametrize("copies", [2, 3, 5])
@pytest.mark.parametrize("etcd", ["", ETCD])
def test_each_copy_counts_and_two_hold_what_is_acknowledged(copies: int, etcd: str) -> None:
    brokers = options(Replicas(copies, etcd))
    assert {each.total_replicas for each in brokers} == {copies}
    assert {each.required_replicas for each in brokers} == {2}
    assert all(each.is_synchronous and each.is_replicated for each in brokers)
    assert {each.is_learner for each in brokers} == {False}
    assert {each.enable_auto_in_sync_replicas for each in brokers} == {copies == 2}
    assert {each.is_elected for each in brokers} == {bool(etcd)}
    numbers = [each.broker_id for each in brokers]
    assert numbers == list(range(1, copies + 1) if etcd else range(copies))
    assert len({each.metrics_prom_exporter_port for each in brokers}) == copies


def test_a_broker_alone_is_asked_for_nothing() -> None:
    assert ONE_COPY.settings(0) == []
    assert ONE_COPY.remark == ""
    assert ONE_COPY.check(["brokerRole=SLAVE"]) == ""


@pytest.mark.parametrize("key", ["brokerRole", "brokerId", "broker.totalReplicas"])
def test_what_differs_from_broker_to_broker_cannot_be_set_for_all(key: str) -> None:
    assert Replicas(3).check([f"{key}=1"])
    assert not Replicas(3).check(["inSyncReplicas=3", "namesrv.logLevel=debug"])


def test_brokers_of_a_group_have_ports_and_directories_of_their_own() -> None:
    suite = SuiteOptions(Path("d"), broker_port=10_911, replicas=Replicas(3))
    assert [suite.broker_arguments(number)[:4] for number in range(3)] == [
        ["--port", "10911", "--data", "d"],
        ["--port", "10912", "--data", "d/replica-1"],
        ["--port", "10913", "--data", "d/replica-2"],
    ]
    free = SuiteOptions(Path("d"), replicas=Replicas(2))
    assert free.broker_arguments(1)[:2] == ["--port", "0"]
    assert free.broker_arguments(1, 4_711)[:2] == ["--port", "4711"]


def test_a_demo_without_a_failover_has_nothing_to_elect() -> None:
    assert main(["demo", "--etcd", ETCD]) == 2


async def test_an_etcd_that_is_away_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    async def refuse(host: str, port: int) -> None:
        asked.append((host, port))
        raise ConnectionRefusedError

    monkeypatch.setattr("asyncio.open_connection", refuse)
    assert not await any_listens(ETCD.split(","))
    assert asked == [("127.0.0.1", 2379), ("127.0.0.1", 2381)]
