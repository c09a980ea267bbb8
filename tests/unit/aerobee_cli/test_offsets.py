"""`aerobee group reset-offset --to`: the place that it names, and what the move costs."""

from __future__ import annotations

import io
import sys
from typing import Any, Self

import click
import pytest

from aerobee_cli import main
from aerobee_cli.offsets import ResetTarget, effects, effects_of_reset, queues_of, reset_target
from aerobee_cli.options import BadOption
from aerobee_client.admin.descriptions import QueueOffset, QueueProgress, QueueStatus
from aerobee_wire.status import Code, MqError


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", {"timestamp_ms": 0}),
        ("latest", {"timestamp_ms": -1}),
        ("now", {"timestamp_ms": -1}),
        ("42", {"queue_offset": 42}),
        ("174873600000", {"queue_offset": 174_873_600_000}),
        ("1748736000000", {"timestamp_ms": 1_748_736_000_000}),  # as users of mqadmin write it
        ("2025-06-01T00:00:00Z", {"timestamp_ms": 1_748_736_000_000}),
        ("2025-06-01", {"timestamp_ms": 1_748_736_000_000}),
        ("2025-06-01T02:00:00+02:00", {"timestamp_ms": 1_748_736_000_000}),
        ("1969-12-31", {"timestamp_ms": 0}),  # below 0 would be the end
    ],
)
def test_offsets_are_reset_to_an_end_a_time_or_an_offset(text: str, target: dict[str, int]) -> None:
    assert reset_target(text) == target


@pytest.mark.parametrize("text", ["yesterday", "17487360000000", "1748736000000000", "-1", ""])
def test_what_is_neither_a_time_nor_an_offset_is_refused(text: str) -> None:
    with pytest.raises(BadOption):
        reset_target(text)


def progress(queue_id: int, consumer_offset: int | None, max_offset: int = 10) -> QueueProgress:
    return QueueProgress("t", "b", queue_id, 2, max_offset, consumer_offset, 0, 0, "")


def moved(*offsets: int) -> list[QueueOffset]:
    return [QueueOffset("t", "b", queue_id, offset) for queue_id, offset in enumerate(offsets)]


def test_messages_that_are_skipped_and_repeated_are_counted() -> None:
    before = [progress(0, 4), progress(1, 9), progress(2, None)]
    said = list(effects(before, moved(7, 5, 5), {"timestamp_ms": 1}))
    assert said == [
        "the group skips 6 messages that it has not consumed",
        "the group consumes 4 messages again",
    ]


def test_queues_that_end_before_the_offset_are_counted() -> None:
    said = list(effects([progress(0, 7), progress(1, 3, 3)], moved(7, 3), {"queue_offset": 7}))
    assert said == ["the group is at the end of 1 queue shorter than 7"]


def test_a_move_to_where_the_group_is_says_nothing() -> None:
    assert list(effects([progress(0, 4)], moved(4), {"queue_offset": 4})) == []


class AdminOfTwoQueues:
    """A topic with 10 messages in queue 0 and 3 in queue 1. The group `g` is at 4 in queue 0."""

    def __init__(self) -> None:
        self.changes: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def consume_progress(self, group: str, topic: str = "", **_: Any) -> list[QueueProgress]:
        if group != "g":
            raise MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group")
        return [
            QueueProgress("t", "b", 0, 0, 10, 4, 6, 0, ""),
            QueueProgress("t", "b", 1, 0, 3, None, 3, 0, ""),
        ]

    def topic_status(self, topic: str, **_: Any) -> list[QueueStatus]:
        if topic != "t":
            raise MqError(Code.TOPIC_NOT_EXIST, "no such topic")
        return [QueueStatus("t", "b", 0, 0, 10, 1, 9), QueueStatus("t", "b", 1, 0, 3, 1, 9)]

    def search_offset(self, topic: str, broker_name: str, queue_id: int, timestamp_ms: int) -> int:
        return min(timestamp_ms, 10 if queue_id == 0 else 3)

    def reset_offsets(self, *_: Any, **__: Any) -> list[QueueOffset]:
        self.changes.append("reset")
        return []

    def clone_offsets(
        self, *_: str, topic: str, silent: list[MqError], dry_run: bool = False
    ) -> list[QueueOffset]:
        silent.append(MqError(Code.BROKER_UNREACHABLE, "broker x: no answer"))
        return moved(4)

    def delete_topic(self, topic: str, **_: Any) -> bool:
        self.changes.append("delete")
        return topic == "t"

    def delete_group(self, group: str, **_: Any) -> bool:
        return self.delete_topic("t" if group == "g" else "")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"timestamp_ms": -1}, ["the group skips 9 messages that it has not consumed"]),
        ({"timestamp_ms": 0}, ["the group consumes 4 messages again"]),
        ({"timestamp_ms": 5}, ["the group skips 4 messages that it has not consumed"]),
        (
            {"queue_offset": 4},
            [
                "the group is at the end of 1 queue shorter than 4",
                "the group skips 3 messages that it has not consumed",
            ],
        ),
    ],
)
def test_the_effects_of_a_reset_are_known_before_it(target: ResetTarget, said: list[str]) -> None:
    admin: Any = AdminOfTwoQueues()
    assert list(effects_of_reset(admin, "g", "t", target)) == said
    assert not admin.changes


def test_a_reset_of_one_queue_costs_nothing_in_others() -> None:
    admin: Any = AdminOfTwoQueues()
    target: ResetTarget = {"timestamp_ms": -1}
    assert list(effects_of_reset(admin, "g", "t", target, [("b", 1)])) == [
        "the group skips 3 messages that it has not consumed"
    ]


def test_a_queue_is_written_as_broker_and_id() -> None:
    assert queues_of(["broker-a/3", "a/b/0"]) == [("broker-a", 3), ("a/b", 0)]
    for text in ("3", "/3", "broker-a", "broker-a/x", "broker-a/-1"):
        with pytest.raises(BadOption, match="broker-a/3"):
            queues_of([text])


@pytest.mark.parametrize(
    ("arguments", "loss"),
    [
        (["topic", "delete", "t"], "t has 13 messages in 2 queues"),
        (
            ["group", "delete", "g"],
            "the offsets of g in 1 queue of t, with 6 messages not consumed",
        ),
        (
            ["group", "reset-offset", "g", "t", "--to", "latest"],
            "the group skips 9 messages that it has not consumed",
        ),
        (["topic", "delete", "none"], ""),
        (["group", "delete", "none"], ""),
    ],
)
@pytest.mark.parametrize("agreed", [True, False])
def test_a_question_on_a_terminal_comes_after_the_loss(
    arguments: list[str],
    loss: str,
    agreed: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    admin = AdminOfTwoQueues()
    shown: list[str] = []

    def ask(_: str) -> bool:
        shown.append(capsys.readouterr().err.strip())
        return agreed

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(click, "confirm", ask)
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: admin)
    main.main(arguments)
    assert shown == [loss]
    assert bool(admin.changes) is agreed


def test_a_broker_that_misses_cloned_offsets_is_named_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = AdminOfTwoQueues()
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: admin)
    assert main.main(["group", "clone-offsets", "h", "g", "--yes"]) == 3
    assert capsys.readouterr().err.count("broker x: no answer") == 1
