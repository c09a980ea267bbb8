"""Messages of two brokers are browsed, searched and followed, also with one broker down."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_cli.errors import INCOMPLETE
from aerobee_client import Message, Producer
from support.clock.polling import until_sync
from support.processes.command import Running, aerobee, aerobee_json
from support.processes.service import ServiceProcess, namesrv_and_brokers

TOPIC = "orders"
COUNT = 20


class Cluster:
    """A name server and two brokers with 20 messages, and one message with the key order-7."""

    def __init__(self, namesrv: str, brokers: dict[str, ServiceProcess]) -> None:
        self.namesrv, self.brokers = namesrv, brokers
        aerobee_json("topic", "create", TOPIC, "--queues", "2", namesrv=namesrv)
        with Producer(namesrv=namesrv) as producer:
            for number in range(COUNT):
                producer.send(Message(TOPIC, b"body %d" % number, tag="ab"[number % 2]))
            keyed = Message(TOPIC, b"\xff\x00", keys=("order-7",), properties={"region": "eu"})
            self.keyed = producer.send(keyed)

    def json(self, *arguments: str) -> Any:
        return aerobee_json("message", *arguments, namesrv=self.namesrv)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with namesrv_and_brokers(tmp_path) as (namesrv, brokers):
        yield Cluster(namesrv.address, brokers)


def test_messages_of_two_brokers_are_found(cluster: Cluster) -> None:
    found = cluster.json("browse", TOPIC, "--limit", "100", "--oldest")
    assert len(found["messages"]) == COUNT + 1
    assert found["stops"] == {"broker-a": "COMPLETE", "broker-b": "COMPLETE"}
    assert {each["broker_name"] for each in found["messages"]} == set(cluster.brokers)
    stored = [each["store_timestamp_ms"] for each in found["messages"]]
    assert stored == sorted(stored)

    [keyed] = cluster.json("search", TOPIC, "--key", "order-7")["messages"]
    assert keyed["message_id"] == cluster.keyed.message_id
    assert len(cluster.json("search", TOPIC, "--tag", "a")["messages"]) == COUNT // 2
    assert cluster.json("search", TOPIC, "--sql", "region = 'eu'")["messages"] == [keyed]
    [seven] = cluster.json("search", TOPIC, "--text", "body 7")["messages"]
    assert seven["body"] == "body 7"
    [shown] = cluster.json("show", cluster.keyed.message_id)
    assert (shown["properties"]["region"], shown["physical_offset"] >= 0) == ("eu", True)

    place = ("--broker", seven["broker_name"], "--queue", str(seven["queue_id"]))
    at = str(seven["queue_offset"])
    there = cluster.json("browse", TOPIC, *place, "--from-offset", at, "--to-offset", at)
    assert there["messages"] == [seven]


def test_a_limit_says_where_it_cut(cluster: Cluster) -> None:
    limited = aerobee("message", "browse", TOPIC, "--limit", "3", namesrv=cluster.namesrv)
    assert (limited.returncode, limited.stdout.count("\n")) == (0, 3)
    assert "--limit" in limited.stderr and "broker-a/" in limited.stderr
    scanned = aerobee(
        *("message", "search", TOPIC, "--text", "nowhere", "--max-scanned", "2"),
        namesrv=cluster.namesrv,
    )
    assert (scanned.returncode, scanned.stdout) == (INCOMPLETE, "")
    assert "--max-scanned" in scanned.stderr


def test_bodies_are_shown_in_hex(cluster: Cluster) -> None:
    options = ("--key", "order-7", "--format", "hex")
    shown = aerobee("message", "search", TOPIC, *options, namesrv=cluster.namesrv)
    assert shown.stdout.splitlines()[1].split() == ["00000000", "ff", "00", ".."]


def test_new_messages_are_followed(cluster: Cluster) -> None:
    tail = ("message", "tail", TOPIC, "-n", "2", "--json", "--namesrv", cluster.namesrv)
    with Running(*tail) as running:
        running.line('{"message_id": "' + cluster.keyed.message_id)
        with Producer(namesrv=cluster.namesrv) as producer:
            sent = producer.send(Message(TOPIC, b"new"))
        running.line('{"message_id": "' + sent.message_id)
        bodies = [json.loads(line).get("body") for line in running.stdout.splitlines()]
    assert bodies == [f"body {COUNT - 1}", None, "new"]


def test_a_broker_that_is_down_is_named(cluster: Cluster) -> None:
    tail = ("message", "tail", TOPIC, "-n", "1", "--namesrv", cluster.namesrv)
    with Running(*tail) as running:
        until_sync(lambda: running.stdout, "the topic is followed")
        cluster.brokers["broker-b"].kill()
        until_sync(lambda: "are left out" in running.stderr, "the lost broker is reported")
        assert running.end(signal.SIGINT) == INCOMPLETE

    def browsed() -> Any:
        return aerobee("message", "browse", TOPIC, "--limit", "100", namesrv=cluster.namesrv)

    until_sync(lambda: "broker-b" in browsed().stderr, "broker-b is named")
    shown = browsed()
    assert shown.returncode == INCOMPLETE
    assert "broker-a/" in shown.stdout and "broker-b/" not in shown.stdout
