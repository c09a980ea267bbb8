"""The daily questions of a support desk, on two brokers and two proxies, each in one command.

Where is the message with this key, and who consumed it when? Why did it die? Clients are the
classic one, one on lease, and an official SDK at each proxy; one broker is killed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from aerobee_cli.errors import INCOMPLETE
from aerobee_client import (
    AdminClient,
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from support.clock.polling import until_sync
from support.processes.command import aerobee, aerobee_json
from support.proxy import sdk_cluster
from support.proxy.official_sdk import Sdk, newest
from support.proxy.sdk_cluster import Cluster

KEYS = ("order-1", "order-2", "order-3", "order-4")
FIRST = ConsumeFromWhere.FIRST_OFFSET


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with sdk_cluster.sdk_cluster(tmp_path, brokers=2) as cluster:
        yield cluster


def send(cluster: Cluster, topic: str) -> dict[str, str]:
    """Send a message for each key, to both brokers. Return the broker by key."""
    with Producer(namesrv=cluster.namesrv.address) as producer:
        placed = {
            key: producer.send(Message(topic, key.encode(), keys=(key,))).queue.broker_name
            for key in KEYS
        }
    assert set(placed.values()) == {"broker-a", "broker-b"}
    return placed


def states(cluster: Cluster, topic: str, key: str) -> dict[str, Any]:
    """Ask where the message with a key is. Return the states by group."""
    asked = ("message", "track", "--topic", topic, "--key", key)
    [tracked] = aerobee_json(*asked, namesrv=cluster.namesrv.address)
    return {state["consumer_group"]: state for state in tracked["groups"]}


def test_where_a_message_is_and_why_it_died(cluster: Cluster) -> None:
    namesrv = cluster.namesrv.address
    topic = cluster.topic(queues=1)
    classic, leasing = cluster.group(retry_max_times=0), cluster.group()
    placed = send(cluster, topic)
    bad = KEYS[0].encode()
    consumed = threading.Event()

    def listen(message: ReceivedMessage) -> None:
        if message.body == bad:
            raise ValueError("no such address")
        consumed.set()

    with ExitStack() as stack:
        push = PushConsumer(classic, listen, namesrv=namesrv, consume_from_where=FIRST)
        push.subscribe(topic)
        stack.enter_context(push)
        simple = SimpleConsumer(leasing, namesrv=namesrv, consume_from_where=FIRST)
        simple.subscribe(topic)
        stack.enter_context(simple)
        leased = []

        def has_all() -> bool:
            leased.extend(
                simple.receive(
                    16, wait=timedelta(seconds=1), invisible_duration=timedelta(minutes=1)
                )
            )
            return len(leased) == len(KEYS)

        until_sync(has_all, "all are on lease")
        for message in leased:
            if message.body == KEYS[1].encode():
                simple.ack(message)
        with AdminClient(namesrv) as admin:
            members = {client.client_id for client in admin.list_clients(classic)}

        def has_consumed() -> bool:
            return bool(states(cluster, topic, KEYS[1])[classic]["state"] == "CONSUMED")

        until_sync(has_consumed, "the offset is committed")
        found = states(cluster, topic, KEYS[1])
        for group in (classic, leasing):
            assert found[group]["state"] == "CONSUMED" and found[group]["at_timestamp_ms"]
        assert {found[classic]["client_id"]} == members
        held = states(cluster, topic, KEYS[2])[leasing]
        assert (held["state"], held["attempt"]) == ("ON_LEASE", 1)
        assert held["client_id"] == found[leasing]["client_id"] != ""

        until_sync(
            lambda: states(cluster, topic, KEYS[0])[classic]["state"] == "DEAD_LETTERED",
            "the bad one died",
        )
        died = states(cluster, topic, KEYS[0])[classic]
        assert (died["failure_reason"], died["failure_description"]) == (
            "ValueError",
            "no such address",
        )
        assert died["place"]["topic"] == f"%DLQ%{classic}"

    # With one broker down, the messages of the other are found, and the first is named.
    cluster.brokers[1].kill()
    here = next(key for key, name in placed.items() if name == "broker-a")
    there = next(key for key, name in placed.items() if name == "broker-b")

    def asked(key: str) -> Any:
        return aerobee("message", "track", "--topic", topic, "--key", key, namesrv=namesrv)

    until_sync(lambda: "broker-b" in asked(here).stderr, "the broker is named")
    answer = asked(here)
    assert answer.returncode == INCOMPLETE and leasing in answer.stdout
    missing = asked(there)
    assert missing.returncode and there in missing.stderr and "broker-b" in missing.stderr


def test_a_reset_is_named_with_its_operator(cluster: Cluster) -> None:
    namesrv = cluster.namesrv.address
    topic, group = cluster.topic(queues=1), cluster.group()
    send(cluster, topic)
    for where in ("earliest", "latest"):
        reset = ("group", "reset-offset", group, topic, "--to", where, "--yes")
        aerobee_json(*reset, namesrv=namesrv)
    state = states(cluster, topic, KEYS[0])[group]
    assert state["state"] == "SKIPPED" and "@" in state["client_id"]


def test_clients_of_an_official_sdk_at_two_proxies_are_named(
    cluster: Cluster, tmp_path: Path
) -> None:
    topic, group = cluster.topic(queues=1), cluster.group()
    send(cluster, topic)
    clients: set[str] = set()
    for number, proxy in enumerate(cluster.proxies):
        (tmp_path / f"sdk-{number}").mkdir()
        with Sdk(newest("python"), proxy.address, tmp_path / f"sdk-{number}") as sdk:
            sdk_cluster.simple(sdk, group, topic)
            [message, *_] = sdk_cluster.receive(sdk, 1, most=1)
            state = states(cluster, topic, message["body"])[group]
            assert state["state"] == "CONSUMED" and state["at_timestamp_ms"]
            clients.add(state["client_id"])
    assert len(clients) == 2 and "" not in clients
