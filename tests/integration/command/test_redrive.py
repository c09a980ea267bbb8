"""`aerobee dlq redrive` of thousands of dead letters against running services: killed, resumed, and
what dies again afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import Message, Producer, PushConsumer, ReceivedMessage
from aerobee_wire import properties as names
from support.clock.polling import until_sync
from support.processes import redriving
from support.processes.command import Up, aerobee, aerobee_json

COUNT = 4_000


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("data"), "--set", "brokerName=broker-a") as up:
        yield up


def test_a_command_that_is_killed_leaves_the_job_to_the_broker(up: Up) -> None:
    redriving.fill(up.namesrv, "killed", "killed-orders", COUNT)
    letters = redriving.dead_letters_by_id(up.namesrv, "killed")
    redrive = redriving.Redrive(up.namesrv, "killed", "origin", "job-1")

    def jobs() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = aerobee_json(
            "dlq", "jobs", "list", "--group", "killed", namesrv=up.namesrv
        )
        return found

    with redrive.started() as process:
        until_sync(jobs, "the job has begun", timeout_s=60)
        process.kill()
    result = redrive.finish()
    assert (result["sent"], result["failed"], result["job_id"]) == (COUNT, 0, "job-1")
    assert [job["state"] for job in jobs()] == ["done"]
    found = redriving.message_ids(up.namesrv, "killed-orders")
    assert found.keys() == letters.keys() and found.total() == COUNT
    again = redriving.Redrive(up.namesrv, "killed", "origin", "job-2").finish()
    assert (again["sent"], again["already"]) == (0, COUNT)
    listed = aerobee_json("dlq", "list", "killed", "--limit", "2", namesrv=up.namesrv)
    assert {(item["state"], item["job_id"]) for item in listed} == {("redriven", "job-1")}
    assert aerobee_json("dlq", "list", "killed", "--state", "open", namesrv=up.namesrv) == []


def test_a_job_is_cancelled_and_the_rest_dismissed(up: Up, tmp_path: Path) -> None:
    redriving.fill(up.namesrv, "slow", "slow-orders", 100)
    slow = ("dlq", "redrive", "slow", "--all", "--to", "origin", "--rate", "1", "--job", "slow-1")
    detached = aerobee_json(*slow, "--detach", namesrv=up.namesrv)
    assert (detached["job_id"], detached["brokers"]) == ("slow-1", ["broker-a"])
    cancelled = aerobee_json("dlq", "jobs", "cancel", "slow-1", namesrv=up.namesrv)
    assert cancelled == {"job_id": "slow-1", "cancelled_on": 1}
    again = aerobee("dlq", "jobs", "cancel", "slow-1", namesrv=up.namesrv)
    assert (again.returncode, again.stderr) == (0, "the job slow-1 had ended before\n")
    shown = aerobee_json("dlq", "jobs", "show", "slow-1", namesrv=up.namesrv)
    sent = shown["brokers"][0]["sent"]
    assert shown["brokers"][0]["state"] == "cancelled" and sent < 100
    dismissed = aerobee_json("dlq", "dismiss", "slow", "--all", namesrv=up.namesrv)
    assert dismissed["sent"] == 100 - sent
    assert len(aerobee_json("dlq", "list", "slow", namesrv=up.namesrv)) == sent
    hidden = aerobee_json("dlq", "list", "slow", "--state", "dismissed", namesrv=up.namesrv)
    assert len(hidden) == 100 - sent
    out = ("--out", str(tmp_path / "report"), "--engine", "local")
    summary = aerobee_json("report", "--group", "slow", *out, namesrv=up.namesrv)
    expected = {"dismissed": 100 - sent, "redriven": sent}
    assert summary["dead_letters_by_state"] == {k: n for k, n in expected.items() if n}
    assert summary["states_unknown"] == {}
    (cluster,) = summary["clusters"]
    assert (cluster["reason"], cluster["dead_letters"], cluster["open"]) == ("ValueError", 100, 0)
    command = ("dlq", "redrive", "slow", "--all", "--reason", "ValueError", "--to", "origin")
    assert cluster["redrive"].split() == ["aerobee", *command, "--dry-run"]


def test_a_message_that_dies_again_says_that_it_was_redriven(up: Up) -> None:
    given = ("--max-attempts", "2", "--retry-delays", "100ms")
    aerobee_json("group", "create", "again", *given, namesrv=up.namesrv)
    aerobee_json("topic", "create", "again-orders", namesrv=up.namesrv)
    attempts: list[dict[str, str]] = []

    def fail(message: ReceivedMessage) -> None:
        attempts.append(dict(message.properties))
        raise ValueError("never")

    def dead() -> list[dict[str, Any]]:
        listed = aerobee("dlq", "list", "again", "--json", namesrv=up.namesrv)
        found: list[dict[str, Any]] = json.loads(listed.stdout) if not listed.returncode else []
        return found

    def redrive() -> dict[str, Any]:
        arguments = ("dlq", "redrive", "again", "--all", "--to", "origin")
        result: dict[str, Any] = aerobee_json(*arguments, namesrv=up.namesrv)
        return result

    with PushConsumer("again", fail, namesrv=up.namesrv) as consumer:
        consumer.subscribe("again-orders")
        with Producer(namesrv=up.namesrv) as producer:
            producer.send(Message("again-orders", b"x"))
        until_sync(lambda: len(dead()) == 1, "it is dead", timeout_s=60)
        assert redrive()["sent"] == 1
        until_sync(lambda: len(dead()) == 2, "it is dead again", timeout_s=60)
    assert [each.get(names.REDRIVE_TIMES) for each in attempts] == [None, None, "1", "1"]
    exported = aerobee("dlq", "export", "again", namesrv=up.namesrv).stdout.splitlines()
    first, second = (json.loads(line)["properties"] for line in exported)
    assert names.REDRIVE_TIMES not in first
    assert second[names.REDRIVE_TIMES] == "1" and int(second[names.REDRIVE_TIMESTAMP]) > 0
    result = redrive()
    assert (result["sent"], result["already"]) == (1, 1), "the first letter was sent before"
    states = [item["state"] for item in dead()]
    assert states[0] == "dead again"


def test_the_list_of_an_export_is_redriven(up: Up, tmp_path: Path) -> None:
    redriving.fill(up.namesrv, "listed", "listed-orders", 300)
    out = tmp_path / "dead.jsonl"
    assert aerobee("dlq", "export", "listed", "--out", str(out), namesrv=up.namesrv).returncode == 0
    lines = out.read_text().splitlines()[100:120]
    out.write_text("\n".join(lines))
    arguments = ("dlq", "redrive", "listed", "--list", str(out), "--to", "topic:repair")
    aerobee_json("topic", "create", "repair", namesrv=up.namesrv)
    done = aerobee_json(*arguments, namesrv=up.namesrv)
    assert (done["sent"], done["topics"]) == (20, ["repair"])
    found = redriving.message_ids(up.namesrv, "repair")
    assert set(found) == {json.loads(line)["message_id"] for line in lines}
    assert found.total() == 20
