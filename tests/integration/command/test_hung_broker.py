"""One of two brokers hangs: commands answer, name it, and do not take unknown values for zeros.

A stopped process keeps its port and its registration, so only the time limit of a call shows it.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_cli.errors import FAILED, INCOMPLETE
from aerobee_client import AdminClient, Message, Producer, PushConsumer, ReceivedMessage
from support.clock.polling import until_sync
from support.processes.command import aerobee, aerobee_json
from support.processes.service import ServiceProcess, named_broker, namesrv_process

TOPIC, GROUP = "orders", "billing"
MESSAGES = 8
# A call to a broker has 5 s, and a change asks each broker before it changes the others. The rest
# is for a slow machine.
LIMIT_S = 30.0

Brokers = dict[str, ServiceProcess]


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with namesrv_process(tmp_path_factory.mktemp("namesrv")) as process:
        yield process.address


@pytest.fixture(scope="module")
def brokers(namesrv: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Two brokers with a message for each key, which the group has dead-lettered on both."""
    data = tmp_path_factory.mktemp("brokers")
    made = {name: named_broker(data, f"broker-{name}", namesrv=namesrv) for name in "ab"}
    with made["a"], made["b"]:
        aerobee_json("topic", "create", TOPIC, "--queues", "2", namesrv=namesrv)
        aerobee_json("group", "create", GROUP, "--max-attempts", "1", namesrv=namesrv)
        with Producer(namesrv=namesrv) as producer:
            for number in range(MESSAGES):
                producer.send(Message(TOPIC, b"body", keys=(f"k{number}",)))
        with PushConsumer(GROUP, fail, namesrv=namesrv) as consumer:
            consumer.subscribe(TOPIC)
            until_sync(lambda: dead_letters(namesrv) == MESSAGES, "all are dead letters")
        yield made


def fail(message: ReceivedMessage) -> None:
    raise LookupError("no such account")


def dead_letters(namesrv: str) -> int:
    return len(aerobee_json("dlq", "list", GROUP, namesrv=namesrv))


@pytest.fixture
def hung(brokers: Brokers) -> Iterator[ServiceProcess]:
    process = brokers["b"]
    process.send_signal(signal.SIGSTOP)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)


def told(namesrv: str, command: str, code: int = INCOMPLETE) -> str:
    """Run a command that names the hung broker in time. Return its output."""
    began = time.monotonic()
    done = aerobee(*command.split(), namesrv=namesrv)
    assert time.monotonic() - began < LIMIT_S, command
    assert done.returncode == code, f"{command}: {done.stdout}{done.stderr}"
    assert "broker-b" in done.stdout + done.stderr, f"{command}: {done.stderr}"
    return done.stdout


def test_each_question_is_answered_without_a_broker_that_hangs(
    namesrv: str, hung: ServiceProcess
) -> None:
    # Who is behind?
    queues = json.loads(told(namesrv, f"group progress {GROUP} --json"))
    assert {each["broker_name"] for each in queues} == {"broker-a"}
    # Where is the message, and who consumed it?
    found = {
        number: json.loads(told(namesrv, f"message search {TOPIC} --key k{number} --json"))
        for number in range(MESSAGES)
    }
    here = [number for number, each in found.items() if each["messages"]]
    away = [number for number in found if number not in here]
    assert here and away, "each broker has some of them"
    [tracked] = json.loads(told(namesrv, f"message track --topic {TOPIC} --key k{here[0]} --json"))
    [state] = tracked["groups"]
    assert (state["state"], state["failure_reason"]) == ("DEAD_LETTERED", "LookupError")
    told(namesrv, f"message track --topic {TOPIC} --key k{away[0]}", FAILED)
    # Why did it die?
    letters = json.loads(told(namesrv, f"dlq list {GROUP} --json"))
    assert len(letters) == len(here) and {each["reason"] for each in letters} == {"LookupError"}


@pytest.mark.parametrize(
    "command",
    [
        "cluster list",
        "doctor",
        "topic list",
        f"topic status {TOPIC}",
        "group list",
        f"group show {GROUP}",
        f"group members {GROUP}",
        f"group blocked {GROUP}",
        "client list",
        f"message browse {TOPIC}",
        "broker status",
        f"lease list {GROUP}",
        "delayed list",
        "transaction list",
        "dlq jobs list",
        f"dlq peek {GROUP}",
        "top --count 1",
    ],
)
def test_a_list_without_a_broker_that_hangs_says_so(
    namesrv: str, hung: ServiceProcess, command: str
) -> None:
    assert "broker-a" in told(namesrv, command) or "broker" not in command


def test_a_total_without_a_broker_that_hangs_is_unknown(namesrv: str, hung: ServiceProcess) -> None:
    assert "?" in told(namesrv, "top --count 1").split("all", 1)[1]
    rows = json.loads(told(namesrv, "top --count 1 --json"))
    assert rows, "the other broker is shown"


def test_changes_reach_the_others_and_a_second_run_completes_them(
    namesrv: str, brokers: Brokers, tmp_path: Path
) -> None:
    manifest = tmp_path / "cluster.yaml"
    manifest.write_text(
        "topics: [{topic: applied, queues: 8}]\ngroups: [{group: applied, max_attempts: 17}]\n"
    )
    changes = [
        "topic create added --queues 3",
        f"topic update {TOPIC} --queues 4",
        "group create added",
        f"group update {GROUP} --max-attempts 3",
        f"group pause {GROUP}",
        f"apply {manifest}",
    ]
    brokers["b"].send_signal(signal.SIGSTOP)
    try:
        # First, because the name server forgets a broker that hangs for long.
        told(namesrv, f"dlq redrive {GROUP} --all", FAILED)
        for command in changes:
            told(namesrv, command)
        assert told(namesrv, "topic create dry --dry-run")
        # Repeating it would move the group on the other broker again.
        told(namesrv, f"group reset-offset {GROUP} {TOPIC} --to earliest --yes")
        told(namesrv, f"group clone-offsets {GROUP} added --yes")
    finally:
        brokers["b"].send_signal(signal.SIGCONT)
    until_sync(lambda: settings(namesrv)["applied"] == {"broker-a": 8}, "it answers again")
    for command in changes:
        done = aerobee(*command.split(), namesrv=namesrv)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    assert settings(namesrv) == {
        TOPIC: {"broker-a": 4, "broker-b": 4},
        "added": {"broker-a": 3, "broker-b": 3},
        "applied": {"broker-a": 8, "broker-b": 8},
    }
    with AdminClient(namesrv) as admin:
        groups = admin.groups_of_brokers()
    for there in groups.values():
        attempts = {each.consumer_group: each.max_attempts for each in there}
        assert attempts == {GROUP: 3, "added": 17, "applied": 17}
    brokers["b"].send_signal(signal.SIGSTOP)
    try:
        told(namesrv, "topic delete applied --yes")
        told(namesrv, "group delete applied --yes")
    finally:
        brokers["b"].send_signal(signal.SIGCONT)
    for kind in ("topic", "group"):
        again = aerobee(kind, "delete", "applied", "--yes", namesrv=namesrv)
        assert again.returncode == 0, again.stderr


def settings(namesrv: str) -> dict[str, dict[str, Any]]:
    """Return the queues of each topic, by broker."""
    done = aerobee("topic", "list", "--json", namesrv=namesrv)
    return {
        each["topic"]: {at["broker_name"]: at["write_queue_count"] for at in each["brokers"]}
        for each in json.loads(done.stdout)
    }
