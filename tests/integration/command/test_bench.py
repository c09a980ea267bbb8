"""`aerobee bench` against clusters of one and of two brokers."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from aerobee_cli.bench.scratch import PREFIX
from aerobee_cli.errors import FAILED, INCOMPLETE, INTERRUPTED
from aerobee_client import AdminClient
from support.clock.polling import until_sync
from support.processes.command import Running, aerobee, aerobee_json
from support.processes.service import ServiceProcess, namesrv_and_brokers

Cluster = tuple[ServiceProcess, dict[str, ServiceProcess]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with namesrv_and_brokers(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def namesrv(cluster: Cluster) -> str:
    return cluster[0].address


@pytest.fixture(scope="module")
def brokers(cluster: Cluster) -> dict[str, ServiceProcess]:
    return cluster[1]


def left(namesrv: str) -> list[str]:
    with AdminClient(namesrv) as admin:
        topics = [each.topic for each in admin.list_topics(include_derived=True, silent=[])]
        groups = admin.groups_of_brokers(silent=[]).values()
    names = [*topics, *(each.consumer_group for listed in groups for each in listed)]
    return [name for name in names if PREFIX in name]


@pytest.mark.parametrize("way", [(), ("--lease",)])
def test_a_load_arrives_in_each_group_and_leaves_nothing(
    namesrv: str, brokers: dict[str, ServiceProcess], way: tuple[str, ...]
) -> None:
    options = ("--messages", "400", "--size", "200", "--groups", "2", "--queues", "2")
    result = aerobee_json("bench", *options, *way, namesrv=namesrv)
    assert result["brokers"] == sorted(brokers) and result["absent_brokers"] == {}
    assert (result["sent"], result["failed"], result["size"]) == (400, 0, 200)
    assert 0 < result["send_latency_p50_ms"] <= result["send_latency_p99_ms"]
    assert result["rate"] > 0 and result["mib_per_second"] > 0
    for group in result["groups"]:
        assert (group["arrived"], group["lost"]) == (400, 0)
        assert 0 < group["latency_p50_ms"] <= group["latency_p99_ms"]
        if not way:
            assert (group["twice"], group["out_of_order"]) == (0, 0)
    assert left(namesrv) == []


def test_an_interrupted_load_shows_its_result_and_leaves_nothing(
    namesrv: str, brokers: dict[str, ServiceProcess]
) -> None:
    environment = {"NAMESRV_ADDR": namesrv}
    options = ("--duration", "1h", "--rate", "20", "--json")
    with Running("bench", *options, env=environment) as running:
        until_sync(lambda: len(left(namesrv)) > 1, "the topic and the group are there")
        assert running.end(signal.SIGINT) == INTERRUPTED
        result = json.loads(running.stdout)
    assert result["groups"][0]["lost"] == 0 and result["failed"] == 0
    assert left(namesrv) == []


def test_what_a_killed_run_left_is_deleted_later(
    namesrv: str, brokers: dict[str, ServiceProcess]
) -> None:
    with Running("bench", "--duration", "1h", env={"NAMESRV_ADDR": namesrv}) as running:
        until_sync(lambda: len(left(namesrv)) > 1, "the topic and the group are there")
        running.end(signal.SIGKILL)
    assert left(namesrv) != []
    assert aerobee("bench", "--clean", namesrv=namesrv).returncode == 2, "it asks first"
    assert aerobee("bench", "--clean", "--yes", namesrv=namesrv).returncode == 0
    assert left(namesrv) == []


def checked(namesrv: str, *options: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    done = aerobee("bench", "--check", "--queues", "3", *options, "--json", namesrv=namesrv)
    found: dict[str, list[dict[str, Any]]] = {}
    for each in json.loads(done.stdout):
        found.setdefault(each["broker_name"], []).append(each)
    return done.returncode, found


def test_the_check_names_what_does_not_answer(
    namesrv: str, brokers: dict[str, ServiceProcess]
) -> None:
    code, found = checked(namesrv)
    assert code == 0 and sorted(found) == sorted(brokers)
    for queues in found.values():
        assert [each["queue_id"] for each in queues] == [0, 1, 2]
        assert all(each["send_ms"] > 0 and each["receive_ms"] > 0 for each in queues)

    aerobee_json("broker", "drain", "broker-b", namesrv=namesrv)
    code, found = checked(namesrv)
    assert code == FAILED
    assert not any(each["problem"] for each in found["broker-a"])
    assert all(each["problem"] and each["receive_ms"] is None for each in found["broker-b"])
    aerobee_json("broker", "drain", "broker-b", "--undo", namesrv=namesrv)

    brokers["broker-b"].kill()
    code, found = checked(namesrv)
    assert code == FAILED
    assert [each["receive_ms"] > 0 for each in found["broker-a"]] == [True] * 3
    [away] = found["broker-b"]
    assert away["problem"] and away["queue_id"] is away["send_ms"] is None

    alone = aerobee("bench", "--messages", "50", "--json", namesrv=namesrv)
    assert alone.returncode == INCOMPLETE and "broker-b" in alone.stderr
    result = json.loads(alone.stdout)
    assert result["brokers"] == ["broker-a"] and list(result["absent_brokers"]) == ["broker-b"]
    assert result["groups"][0]["lost"] == 0
    assert left(namesrv) == []
