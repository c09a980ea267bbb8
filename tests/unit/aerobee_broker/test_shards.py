"""Shards of a broker, without any process: options, and the stores that a start must serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.app import BrokerApp
from aerobee_broker.config import MAX_NAME_BYTES, BrokerOptions
from aerobee_broker.shard_stores import check_stores, store_of
from aerobee_broker.shards import Shards, options_of_shard
from aerobee_chassis.config import load
from aerobee_chassis.errors import ConfigError, StartError
from aerobee_chassis.runtime_options import RuntimeOptions
from support.codes import raises_about
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import flush, numbered_messages, open_store, send

ROOT = Path("/store")
NAMED = {"brokerName": "broker-a", "shards": 2}


def options(**given: object) -> BrokerOptions:
    return BrokerOptions.from_values({**NAMED, **given})


# ---- options ----


def test_shards_are_brokers_with_names_ports_and_stores_of_their_own() -> None:
    given = options(storePathRootDir="/data", metricsPromExporterPort=5_557)
    found = [options_of_shard(given, number, {}) for number in range(2)]
    assert [each.broker_name for each in found] == ["broker-a", "broker-a-1"]
    assert [each.listen_port for each in found] == [10_911, 10_912]
    assert [each.metrics_prom_exporter_port for each in found] == [5_557, 5_558]
    assert [str(each.store_path_root_dir) for each in found] == ["/data", "/data/shard-1"]
    assert [each.shards for each in found] == [1, 1]


def test_shard_keeps_the_free_port_that_its_first_process_chose() -> None:
    given = options(listenPort=0)
    assert options_of_shard(given, 1, {}).listen_port == 0
    assert options_of_shard(given, 1, {"address": "127.0.0.1:4711"}).listen_port == 4_711
    assert options_of_shard(options(), 1, {"address": "127.0.0.1:1"}).listen_port == 10_912


def test_each_shard_has_the_certificate_of_its_name() -> None:
    given = options(tlsCertPath="/tls/{brokerName}.crt", tlsKeyPath="/tls/{brokerName}.key")
    found = [options_of_shard(given, number, {}) for number in range(2)]
    assert [each.tls_cert_path for each in found] == ["/tls/broker-a.crt", "/tls/broker-a-1.crt"]
    assert [each.tls_key_path for each in found] == ["/tls/broker-a.key", "/tls/broker-a-1.key"]


def test_changes_at_run_time_keep_what_makes_a_shard() -> None:
    given = load(BrokerOptions, sets=["brokerName=broker-a", "shards=2"])
    runtime = RuntimeOptions(options_of_shard(given, 1, {}))
    runtime.take(runtime.change({"fileReservedTime": "48"}))
    now = runtime.now
    assert (now.broker_name, now.listen_port, now.shards) == ("broker-a-1", 10_912, 1)
    assert now.store_path_root_dir.name == "shard-1" and now.file_reserved_time == 48


def test_ready_line_has_the_addresses_of_all_shards() -> None:
    ready = [{"address": f"127.0.0.1:{port}", "advertised": f"a:{port}"} for port in (1, 2)]
    assert Shards(options()).ready_fields(ready) == {
        "address": "127.0.0.1:1,127.0.0.1:2",
        "broker": "broker-a",
        "advertised": "a:1,a:2",
    }


@pytest.mark.parametrize(
    ("given", "about"),
    [
        ({"brokerRole": "SYNC_MASTER"}, "shards"),
        ({"totalReplicas": 2}, "shards"),
        ({"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": "a:1"}, "shards"),
        ({"etcdEndpoints": "127.0.0.1:2379", "brokerId": 1}, "shards"),
        ({"haMasterAddress": "a:1"}, "haMasterAddress"),
        ({"listenPort": 65_535}, "listenPort"),
        (
            {"metricsExporterType": "PROM", "metricsPromExporterPort": 65_535},
            "metricsPromExporterPort",
        ),
        (
            {"metricsExporterType": "PROM", "metricsPromExporterPort": 10_912},
            "metricsPromExporterPort",
        ),
        (
            {"metricsExporterType": "PROM", "metricsPromExporterPort": 10_910},
            "metricsPromExporterPort",
        ),
        ({"brokerName": "b" * (MAX_NAME_BYTES - 1)}, "brokerName"),
        ({"tlsCertPath": "/tls/broker.crt", "tlsKeyPath": "/tls/{brokerName}.key"}, "tlsCertPath"),
        ({"tlsCertPath": "/tls/{brokerName}.crt", "tlsKeyPath": "/tls/broker.key"}, "tlsKeyPath"),
        ({"shards": 0}, "shards"),
        ({"shards": 65}, "shards"),
    ],
)
def test_what_shards_cannot_have_is_refused(given: dict[str, object], about: str) -> None:
    with raises_about(ConfigError, about):
        options(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"listenPort": 65_534},
        {"listenPort": 0, "metricsExporterType": "PROM", "metricsPromExporterPort": 0},
        {"metricsExporterType": "PROM", "metricsPromExporterPort": 10_913},
        {"metricsPromExporterPort": 10_912},  # no port: metrics are off
        {"brokerName": "b" * (MAX_NAME_BYTES - 2)},
    ],
)
def test_ports_and_names_that_fit_are_taken(given: dict[str, object]) -> None:
    options(**given)


async def test_one_process_runs_one_broker() -> None:
    app = BrokerApp(options())
    with raises_about(StartError, "shards"):
        await app.start()
    await app.stop()


# ---- stores ----


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def used(disk: SimulatedDisk, path: Path, *topics: str, stopped: bool = True) -> None:
    """Makes a store with a message of each topic, or without any."""
    store = open_store(disk, path=path)
    for topic in topics:
        send(store, numbered_messages(0, 1, topic))
    flush(store)
    if stopped:
        store.close()


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_new_directory_takes_any_number_of_shards(disk: SimulatedDisk, shards: int) -> None:
    check_stores(disk, ROOT, shards)


def test_same_number_or_more_shards_serve_everything(disk: SimulatedDisk) -> None:
    for number in range(2):
        used(disk, store_of(ROOT, number), "orders")
    for shards in (2, 3):
        check_stores(disk, ROOT, shards)


@pytest.mark.parametrize("shards", [1, 2])
def test_fewer_shards_than_stores_with_messages_are_refused(
    disk: SimulatedDisk, shards: int
) -> None:
    for number in range(3):
        used(disk, store_of(ROOT, number), "orders", "bills")
    with raises_about(StartError, "shards") as caught:
        check_stores(disk, ROOT, shards)
    text = str(caught.value)
    assert f"{store_of(ROOT, 2)} has messages of bills, orders" in text
    assert (f"{store_of(ROOT, 1)} has" in text) == (shards == 1)
    assert "set shards = 3" in text


def test_store_of_a_killed_shard_may_have_messages(disk: SimulatedDisk) -> None:
    used(disk, store_of(ROOT, 2), "orders", stopped=False)
    with raises_about(StartError, "shards") as caught:
        check_stores(disk, ROOT, 2)
    assert f"{store_of(ROOT, 2)} has messages" in str(caught.value)


def test_store_of_a_shard_without_messages_may_go(disk: SimulatedDisk) -> None:
    used(disk, store_of(ROOT, 1), "orders")
    used(disk, store_of(ROOT, 2))
    check_stores(disk, ROOT, 2)


def test_many_topics_are_counted(disk: SimulatedDisk) -> None:
    used(disk, store_of(ROOT, 2), *(f"t{number}" for number in range(9)))
    with raises_about(StartError, "shards") as caught:
        check_stores(disk, ROOT, 2)
    assert "t0, t1, t2, t3, t4 and 4 topics more" in str(caught.value)


def test_broker_without_shards_gets_some(disk: SimulatedDisk) -> None:
    used(disk, ROOT, "orders")
    check_stores(disk, ROOT, 2)
    assert store_of(ROOT, 0) == ROOT


def test_other_files_in_the_directory_are_no_shards(disk: SimulatedDisk) -> None:
    for name in ("shard-x", "shard-", "shard", "shard-0", "lost+found"):
        used(disk, ROOT / name, "orders")
    check_stores(disk, ROOT, 1)
