"""`aerobee dlq redrive` of thousands of dead letters against running services: killed, resumed, and
what dies again afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import Message, Producer, PushConsumer, ReceivedMessage
from aerobee_client.admin.redriving.journal import MAX_IN_FLIGHT
from aerobee_wire import properties as names
from support.clock.polling import until_sync
from support.processes import redriving
from support.processes.command import Up, aerobee, aerobee_json

COUNT = 4_000


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("data"), "--set", "brokerName=broker-a") as up:
        yield up


def test_a_redrive_that_is_killed_goes_on_by_its_journal(up: Up, tmp_path: Path) -> None:
    """SIGKILL twice: each message arrives, those in flight at a kill perhaps twice, and the result
    says so."""
    redriving.fill(up.namesrv, "killed", "killed-orders", COUNT)
    letters = redriving.dead_letters_by_id(up.namesrv, "killed")
    redrives = redriving.Redrives(up.namesrv, "killed", "origin", tmp_path / "journal")
    in_flight = redrives.kill_after(1)
    assert 0 < in_flight <= MAX_IN_FLIGHT
    first_left = redrives.unfinished()
    redrives.kill_after(in_flight + COUNT // 2)
    left = redrives.unfinished()
    assert len(left) <= 2 * MAX_IN_FLIGHT
    result = redrives.finish().result
    assert result["sent"] + result["sent_before"] == COUNT
    assert result["failed"] == result["missing"] == result["skipped"] == 0
    assert result["perhaps_twice"] == len(left)
    found = redriving.message_ids(up.namesrv, "killed-orders")
    assert found.keys() == letters.keys()
    twice = {message_id for message_id, times in found.items() if times > 1}
    assert twice <= first_left | left, "only what was in flight at a kill"
    again = redrives.finish()
    assert (again.result["sent"], again.result["sent_before"]) == (0, COUNT)
    assert redriving.message_ids(up.namesrv, "killed-orders") == found


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
    assert (result["sent"], result["skipped"]) == (1, 1), "one message, dead twice"


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
