"""What users of mqadmin and of other commands get wrong: each is said, and nothing is done."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import (
    AdminClient,
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from support.clock.polling import until_sync
from support.processes.command import Up, aerobee, aerobee_json

COUNT = 3


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    arguments = ("--one-process", "--set", "autoCreateTopicEnable=false")
    with Up(tmp_path_factory.mktemp("data"), *arguments) as up:
        yield up


def refused(up: Up, *arguments: str, code: int = 1) -> str:
    """What a command says that fails."""
    done = aerobee(*arguments, namesrv=up.namesrv)
    assert done.returncode == code, done.stderr
    assert isinstance(done.stderr, str)
    return done.stderr


def waiting(up: Up, name: str) -> None:
    """A topic with COUNT messages, and a group that has not consumed them."""
    aerobee_json("topic", "create", name, "--queues", "1", namesrv=up.namesrv)
    aerobee_json("group", "create", name, namesrv=up.namesrv)
    with Producer(namesrv=up.namesrv) as producer:
        producer.send_batch([Message(name, b"%d" % number) for number in range(COUNT)])


def move(up: Up, name: str, to: str) -> list[int]:
    """The queue offsets that a group is moved to; a second move to there says nothing."""
    arguments = ("group", "reset-offset", name, name, "--to", to, "--yes")
    moved: Any = aerobee_json(*arguments, namesrv=up.namesrv)
    assert aerobee(*arguments, namesrv=up.namesrv).stderr == ""
    return [each["queue_offset"] for each in moved]


def test_milliseconds_are_a_time_and_not_an_offset(up: Up) -> None:
    waiting(up, "millis")
    before = int(datetime(2025, 6, 1, tzinfo=UTC).timestamp() * 1000)
    assert move(up, "millis", str(before)) == [0]
    assert move(up, "millis", "now") == [COUNT]


def test_an_offset_beyond_the_end_is_refused_and_what_is_skipped_is_said(up: Up) -> None:
    waiting(up, "beyond")
    target = ("group", "reset-offset", "beyond", "beyond", "--yes", "--to")
    assert f"the longest ends at {COUNT}" in refused(up, *target, str(COUNT + 1))
    assert refused(up, *target, "17487360000000", code=2)
    [queue] = aerobee_json("group", "progress", "beyond", "--topic", "beyond", namesrv=up.namesrv)
    assert queue["consumer_offset"] is None, "nothing was moved"
    skipped = aerobee(*target, "2", namesrv=up.namesrv)
    assert "skips 2 messages" in skipped.stderr
    repeated = aerobee(*target, "1", namesrv=up.namesrv)
    assert "consumes 1 message again" in repeated.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("group", "progress", "present", "--topic", "absent"),
        ("client", "list", "--topic", "absent"),
        ("client", "list", "--group", "absent"),
        ("group", "forget", "absent", "present", "--yes"),
    ],
)
def test_an_absent_name_is_an_error_and_not_an_empty_table(
    up: Up, arguments: tuple[str, ...]
) -> None:
    if (
        "present" in arguments
        and not aerobee("group", "show", "present", namesrv=up.namesrv).stdout
    ):
        waiting(up, "present")
    assert "absent" in refused(up, *arguments)


def test_a_group_without_members_is_an_empty_table(up: Up) -> None:
    waiting(up, "idle")
    assert (
        aerobee_json("client", "list", "--group", "idle", "--topic", "idle", namesrv=up.namesrv)
        == []
    )


def test_a_property_given_twice_is_refused_by_its_name(up: Up) -> None:
    waiting(up, "coloured")
    twice = ("--property", "colour=1", "--property", "colour=2")
    assert "colour" in refused(up, "message", "send", "coloured", "x", *twice, code=2)
    [queue] = aerobee_json("topic", "status", "coloured", namesrv=up.namesrv)
    assert queue["max_offset"] == COUNT


def test_a_group_is_forgotten_once_it_has_left_a_topic(up: Up) -> None:
    waiting(up, "left")
    seen: list[bytes] = []
    forget = ("group", "forget", "left", "left")
    with PushConsumer(
        "left",
        lambda message: seen.append(message.body),
        namesrv=up.namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    ) as consumer:
        consumer.subscribe("left")
        until_sync(lambda: len(seen) == COUNT, "all are consumed")
        assert "consumes left" in refused(up, *forget, "--yes")
    with Producer(namesrv=up.namesrv) as producer:
        producer.send(Message("left", b"more"))
    assert "1 message not consumed" in refused(up, *forget, code=2)
    dry = aerobee_json(*forget, "--dry-run", namesrv=up.namesrv)
    assert aerobee_json(*forget, "--yes", namesrv=up.namesrv) == dry
    assert [each["queue_offset"] for each in dry] == [COUNT]
    assert aerobee_json(*forget, "--yes", namesrv=up.namesrv) == []
    [queue] = aerobee_json("group", "progress", "left", "--topic", "left", namesrv=up.namesrv)
    assert (queue["consumer_offset"], queue["lag"]) == (None, COUNT + 1)


def fail(message: ReceivedMessage) -> None:
    raise ValueError("x")


def test_a_dry_redrive_fails_where_the_redrive_does(up: Up) -> None:
    waiting(up, "dead")
    aerobee_json("group", "update", "dead", "--max-attempts", "1", namesrv=up.namesrv)
    with PushConsumer(
        "dead",
        fail,
        namesrv=up.namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    ) as consumer:
        consumer.subscribe("dead")
        listed = ("dlq", "list", "dead")
        until_sync(lambda: len(aerobee_json(*listed, namesrv=up.namesrv)) == COUNT, "all are dead")
    redrive = ("dlq", "redrive", "dead", "--all", "--to")
    would = aerobee(*redrive, "topic:dead", "--dry-run", namesrv=up.namesrv)
    assert would.returncode == 0
    assert f"would send {COUNT} of {COUNT}" in would.stderr
    with AdminClient(up.namesrv) as admin:
        admin.delete_topic("dead")
    for target in ("origin", "topic:absent"):
        said = [refused(up, *redrive, target, *dry) for dry in (("--dry-run",), ())]
        assert f"would send 0 of {COUNT}" in said[0]
    assert "absent" in said[1]


def test_an_option_of_a_service_that_is_set_twice_is_refused(tmp_path: Path) -> None:
    twice = ("--set", "brokerName=a", "--set", "brokername=b")
    done = aerobee("broker", "--data", str(tmp_path), "--port", "0", *twice)
    assert done.returncode == 2
    assert "brokerName is given twice" in done.stderr
