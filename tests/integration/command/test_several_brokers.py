"""A broker is added to a cluster, and one is emptied and removed, under load."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee_cli.errors import INCOMPLETE
from aerobee_client import AdminClient, Message, Producer, PushConsumer, ReceivedMessage
from support.clock.polling import until_sync
from support.processes.command import Running, aerobee, aerobee_json
from support.processes.service import named_broker, namesrv_process

TOPIC, GROUP = "orders", "billing"


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    with namesrv_process(tmp_path) as process:
        yield process.address


class Load:
    """A producer that sends until it is told to stop: how many went to each broker, what failed."""

    def __init__(self, namesrv: str) -> None:
        self.sent: Counter[str] = Counter()
        self.errors: list[Exception] = []
        self._namesrv = namesrv
        self._stopped = threading.Event()

    @contextmanager
    def running(self) -> Iterator[Callable[[], Counter[str]]]:
        """Sends. Yields a function that counts what was sent since it was called last."""
        thread = threading.Thread(target=self._run)
        thread.start()
        before: Counter[str] = Counter()

        def since() -> Counter[str]:
            nonlocal before
            now = Counter(self.sent)
            new, before = now - before, now
            return new

        try:
            yield since
        finally:
            self._stopped.set()
            thread.join()

    def _run(self) -> None:
        with Producer(namesrv=self._namesrv) as producer:
            number = 0
            while not self._stopped.is_set():
                try:
                    result = producer.send(Message(TOPIC, b"%d" % number))
                except Exception as error:
                    self.errors.append(error)
                else:
                    self.sent[result.queue.broker_name] += 1
                number += 1


def test_a_topic_gets_queues_on_a_broker_that_was_added(namesrv: str, tmp_path: Path) -> None:
    with named_broker(tmp_path, "broker-a", namesrv=namesrv):
        aerobee_json("topic", "create", TOPIC, "--queues", "2", "--type", "fifo", namesrv=namesrv)
        aerobee_json("group", "create", GROUP, "--max-attempts", "3", namesrv=namesrv)
        with named_broker(tmp_path, "broker-b", namesrv=namesrv):
            dry_run = ("topic", "rebalance", TOPIC, "--dry-run")
            (planned,) = aerobee_json(*dry_run, namesrv=namesrv)
            wanted = {"broker_name": "broker-b", "queues": 2, "groups": [GROUP]}
            assert {key: planned[key] for key in wanted} == wanted
            assert queues_by_broker(namesrv) == {"broker-a": 2}
            assert aerobee_json("topic", "rebalance", TOPIC, namesrv=namesrv) == [planned]
            assert queues_by_broker(namesrv) == {"broker-a": 2, "broker-b": 2}
            assert aerobee_json("topic", "rebalance", TOPIC, namesrv=namesrv) == []
            with AdminClient(namesrv) as admin:
                assert admin.list_topics()[0].message_type == "FIFO"
                (group,) = admin.list_groups()
            assert (group.brokers, group.max_attempts) == (("broker-a", "broker-b"), 3)
    unknown = aerobee("topic", "rebalance", "nowhere", namesrv=namesrv)
    assert unknown.returncode == 1


def queues_by_broker(namesrv: str) -> dict[str, int]:
    (topic,) = aerobee_json("topic", "list", namesrv=namesrv)
    return {at["broker_name"]: at["write_queue_count"] for at in topic["brokers"]}


def test_a_broker_is_drained_under_load_and_removed(namesrv: str, tmp_path: Path) -> None:
    received: Counter[bytes] = Counter()
    hold = threading.Event()

    def listen(message: ReceivedMessage) -> None:
        hold.wait()
        received[message.body] += 1

    def backlog(*options: str) -> Any:
        return aerobee_json("broker", "drain", "broker-a", *options, namesrv=namesrv)

    leaving = named_broker(tmp_path, "broker-a", namesrv=namesrv)
    load = Load(namesrv)
    with leaving, named_broker(tmp_path, "broker-b", namesrv=namesrv):
        aerobee_json("topic", "create", TOPIC, "--queues", "2", namesrv=namesrv)
        aerobee_json("group", "create", GROUP, namesrv=namesrv)
        with PushConsumer(GROUP, listen, namesrv=namesrv) as consumer:
            consumer.subscribe(TOPIC)
            with load.running() as sent_since:
                until_sync(lambda: len(sent_since()) == 2, "both brokers take messages")

                def not_empty() -> bool:
                    left = backlog()
                    assert left["draining_since_ms"] > 0
                    return not left["empty"]

                until_sync(not_empty, "the group has messages to consume there")
                sent_since()
                until_sync(lambda: sent_since()["broker-b"], "the other takes messages")
                assert not sent_since()["broker-a"]
                leaving.restart()
                until_sync(lambda: sent_since()["broker-b"], "the other goes on")
                assert not sent_since()["broker-a"], "it drains after its restart, too"
            waiting = ("broker", "drain", "broker-a", "--wait")
            late = aerobee(*waiting, "--timeout", "100ms", namesrv=namesrv)
            assert late.returncode == INCOMPLETE
            with Running(*waiting, "--json", env={"NAMESRV_ADDR": namesrv}) as wait:
                hold.set()
                assert wait.process.wait(60) == 0
            assert backlog()["empty"]
            leaving.stop()
            until_sync(lambda: len(received) == load.sent.total(), "all were received")
    assert load.errors == []


def test_each_command_names_a_broker_that_is_away(namesrv: str, tmp_path: Path) -> None:
    lost = named_broker(tmp_path, "broker-b", namesrv=namesrv)
    with named_broker(tmp_path, "broker-a", namesrv=namesrv):
        with lost:
            aerobee_json("topic", "create", TOPIC, "--queues", "1", namesrv=namesrv)
            aerobee_json("group", "create", GROUP, namesrv=namesrv)
            aerobee_json("message", "send", TOPIC, "x", "--key", "k", namesrv=namesrv)
            lost.kill()
        until_sync(lambda: queues_of_route(namesrv) == {"broker-a"}, "it is not registered")
        for command in (
            "cluster list",
            "topic list",
            f"topic status {TOPIC}",
            "group list",
            f"group show {GROUP}",
            f"group members {GROUP}",
            f"group progress {GROUP}",
            f"message query {TOPIC} --key k",
            f"dlq list {GROUP}",
            "broker status",
            f"export {tmp_path}/cluster.yaml",
        ):
            done = aerobee(*command.split(), namesrv=namesrv)
            assert done.returncode == INCOMPLETE, command
            assert "broker-b" in done.stderr and "broker-a" not in done.stderr, command
        for command in (
            "topic create new",
            f"topic update {TOPIC} --queues 2",
            f"topic rebalance {TOPIC}",
            "topic delete new --yes",
            "group create new",
            f"group update {GROUP} --max-attempts 2",
            f"group pause {GROUP}",
            f"group resume {GROUP}",
            f"group reset-offset {GROUP} {TOPIC} --to latest --yes",
            f"group clone-offsets {GROUP} new --yes",
            f"group forget new {TOPIC} --yes",
            "group delete new --yes",
            f"apply {tmp_path}/cluster.yaml",
            f"dlq redrive {GROUP} --all --to origin",
            f"dlq dismiss {GROUP} --all",
            f"dlq purge {GROUP} --yes",
            "user create someone --generate",
            "quota set User:someone --calls 1",
        ):
            done = aerobee(*command.split(), namesrv=namesrv)
            assert done.returncode == INCOMPLETE, f"{command}: {done.stderr}"
            assert "broker-b" in done.stderr and "broker-a" not in done.stderr, command
        doctor = aerobee("doctor", "--idle", "1ms", namesrv=namesrv)
        assert doctor.returncode == INCOMPLETE and "broker broker-b" in doctor.stdout
        assert "hint" not in doctor.stdout, "what the broker has is not known"


def queues_of_route(namesrv: str) -> set[str]:
    route = aerobee_json("topic", "route", TOPIC, namesrv=namesrv)
    return {each["broker_name"] for each in route["queues"]}


def test_a_difference_on_one_broker_is_named_and_changes_none(namesrv: str, tmp_path: Path) -> None:
    def queues() -> dict[str, int]:
        listed = aerobee_json("topic", "list", namesrv=namesrv)
        return {
            f"{each['topic']} on {there['broker_name']}": there["write_queue_count"]
            for each in listed
            for there in each["brokers"]
        }

    with named_broker(tmp_path, "broker-a", namesrv=namesrv):
        aerobee_json("topic", "create", "old", "--queues", "4", namesrv=namesrv)
        with named_broker(tmp_path, "broker-b", namesrv=namesrv):
            refused = aerobee("topic", "create", "old", "--queues", "3", namesrv=namesrv)
            assert (refused.returncode, "on broker-a" in refused.stderr) == (1, True)
            assert queues() == {"old on broker-a": 4}
            changed = aerobee_json("topic", "update", "old", "--queues", "5", namesrv=namesrv)
            assert {change["broker_name"] for change in changed} == {"broker-a"}
            made = aerobee_json("topic", "create", "old", "--queues", "5", namesrv=namesrv)
            assert {each["broker_name"]: each["created"] for each in made} == {
                "broker-a": False,
                "broker-b": True,
            }
            assert queues() == {"old on broker-a": 5, "old on broker-b": 5}


def test_options_of_a_drain_that_exclude_each_other(namesrv: str, tmp_path: Path) -> None:
    for options in (("--wait", "--undo"), ("--timeout", "1s"), ("--wait", "--timeout", "soon")):
        assert aerobee("broker", "drain", "b", *options, namesrv=namesrv).returncode == 2
    with named_broker(tmp_path, "broker-a", namesrv=namesrv):
        unknown = aerobee("broker", "drain", "b", namesrv=namesrv)
        assert (unknown.returncode, "broker-a" in unknown.stderr) == (1, True)
        aerobee_json("broker", "drain", "broker-a", namesrv=namesrv)
        undone = aerobee_json("broker", "drain", "broker-a", "--undo", namesrv=namesrv)
        assert undone["draining_since_ms"] == 0
