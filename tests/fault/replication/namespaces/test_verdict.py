"""What the verdict finds, each in a history of a few lines."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fault.replication.namespaces.figures import row
from fault.replication.namespaces.verdict import History, Report, Round, counted, problems

ROUNDS = (Round("first", 10.0, 20.0, 1), Round("second", 30.0, 40.0, 0))


def place(number: int) -> list[Any]:
    return ["orders", "group-a", 0, number]


def line(event: str, at: float, number: int, **more: Any) -> Report:
    key = f"python-{number}"
    return {"event": event, "at": at, "key": key, "body": key, "place": place(number), **more}


def acknowledged(at: float, number: int) -> Report:
    return line("acknowledged", at, number, began=at - 0.1)


def received(at: float, number: int, attempt: int = 1, popped_ms: int = 0) -> Report:
    return line("received", at, number, attempt=attempt, popped_ms=popped_ms)


def acked(at: float, number: int, attempt: int = 1, popped_ms: int = 0) -> Report:
    return line("acked", at, number, attempt=attempt, popped_ms=popped_ms)


def diverged(number: int, *, missing: bool, topic: str = "orders") -> Report:
    return line("diverged", 50.0, number, missing=missing, where=[topic, 1, "1-0.log"])


def history(*reported: Report, stored: tuple[int, ...], mode: str = "SYNC_MASTER") -> History:
    found = [line("stored", 50.0, number) for number in stored]
    return History(mode, ROUNDS, {"python": reported}, found)


SOUND = (acknowledged(9.0, 0), acknowledged(13.5, 1), received(14.0, 0), received(14.0, 1))


def test_a_sound_history_has_no_problem() -> None:
    found = history(*SOUND, stored=(0, 1))
    assert list(problems(found)) == []
    first, second = counted(found)
    assert (first.acknowledged, first.lost, first.elections) == (2, 0, 1)
    assert (second.acknowledged, second.elections) == (0, 0)
    assert first.gaps_s == {"python": 4.5} and second.gaps_s == {"python": 0.0}


def test_what_was_acknowledged_and_is_not_stored_is_lost() -> None:
    found = history(*SOUND, acknowledged(33.0, 2), stored=(0, 1))
    assert [count.lost for count in counted(found)] == [0, 1]
    assert any("are lost" in problem for problem in problems(found))


@pytest.mark.parametrize("kept", [True, False])
def test_an_asynchronous_group_may_lose_what_it_keeps_as_cut(kept: bool) -> None:
    found = history(*SOUND, acknowledged(33.0, 2), stored=(0, 1), mode="ASYNC_MASTER")
    cut = [diverged(2, missing=True)] if kept else []
    found = dataclasses.replace(found, diverged=cut)
    second = counted(found)[1]
    assert (second.lost, second.named, second.cut) == (1, kept, kept)
    assert bool(list(problems(found))) is not kept


def test_what_was_cut_must_be_reported_rightly() -> None:
    found = history(*SOUND, stored=(0, 1))
    wrong = dataclasses.replace(found, diverged=[diverged(1, missing=True)])
    right = dataclasses.replace(found, diverged=[diverged(1, missing=False)])
    letter = diverged(1, missing=True, topic="%DLQ%g")
    assert len(list(problems(wrong))) == 1 and not list(problems(right))
    assert not list(problems(dataclasses.replace(found, diverged=[letter])))


def test_what_was_shown_must_stay_at_its_place() -> None:
    changed = line("shown", 31.0, 1) | {"key": "python-9", "body": "python-9"}
    for shown in (line("shown", 31.0, 7), changed):
        found = history(*SOUND, shown, stored=(0, 1))
        assert [count.gone for count in counted(found)] == [0, 1]
        assert any("was there" in problem for problem in problems(found))


@pytest.mark.parametrize(
    ("again", "is_wrong"),
    [
        (received(35.0, 1, attempt=2), True),
        (received(35.0, 1, popped_ms=5), True),
        (received(35.0, 1), False),  # of the same pop, told late
        (received(35.0, 0, attempt=2), False),  # was not settled
    ],
)
def test_what_was_settled_must_not_be_popped_again(again: Report, is_wrong: bool) -> None:
    found = history(*SOUND, acked(15.0, 1), again, stored=(0, 1))
    assert [count.came_again for count in counted(found)] == [int(is_wrong), 0]
    assert bool(list(problems(found))) is is_wrong


@pytest.mark.parametrize(("elections", "is_wrong"), [(0, True), (1, False)])
def test_an_asynchronous_group_may_forget_what_was_settled_when_it_elects(
    elections: int, is_wrong: bool
) -> None:
    reported = (acked(35.0, 1), received(36.0, 1, attempt=2))
    found = history(*SOUND, *reported, stored=(0, 1), mode="ASYNC_MASTER")
    second = dataclasses.replace(ROUNDS[1], elections=elections)
    found = dataclasses.replace(found, rounds=(ROUNDS[0], second))
    assert bool(list(problems(found))) is is_wrong
    assert counted(found)[1].came_again == 1


def test_an_older_pop_that_is_reported_late_did_not_come_again() -> None:
    reported = (received(14.5, 1, attempt=2), acked(15.0, 1, attempt=2), received(16.0, 1))
    assert list(problems(history(*SOUND, *reported, stored=(0, 1)))) == []


@pytest.mark.parametrize(("copies", "is_wrong"), [(1, True), (2, False)])
def test_without_places_what_is_stored_twice_may_come_again(copies: int, is_wrong: bool) -> None:
    def of_sdk(event: str, at: float) -> Report:
        return {"event": event, "at": at, "key": "sdk-1"}

    reported = [of_sdk(event, 31.0) for event in ("received", "acked", "received", "acked")]
    stored = [line("stored", 50.0, at) | {"key": "sdk-1", "body": "sdk-1"} for at in range(copies)]
    found = History("SYNC_MASTER", ROUNDS, {"sdk": reported}, stored)
    assert bool(list(problems(found))) is is_wrong


def test_what_is_stored_must_be_delivered_and_have_its_own_body() -> None:
    assert len(list(problems(history(*SOUND, stored=(0, 1, 2))))) == 1
    other = history(*SOUND, stored=(0, 1)).stored[0] | {"key": "python-1"}
    assert any(
        "body of another" in problem
        for problem in problems(History("SYNC_MASTER", ROUNDS, {"python": SOUND}, [other]))
    )


def test_what_is_stored_twice_is_counted() -> None:
    found = history(*SOUND, stored=(0, 1))
    again = line("stored", 50.0, 1) | {"place": place(2)}
    first, second = counted(dataclasses.replace(found, stored=[*found.stored, again]))
    assert (first.duplicates, second.duplicates) == (1, 0)
    assert "50.00%" in row("first", [first])


def test_what_is_lost_is_reported_beside_the_lag() -> None:
    found = history(*SOUND, acknowledged(33.0, 2), acknowledged(33.5, 3), stored=(0, 1))
    reported = [(31.0, 0, 100), (32.0, 0, 700), (35.0, 1, 5_000)]  # at, epoch, behind
    behind = [{"at": at, "epoch": epoch, "behind_ms": ms} for at, epoch, ms in reported]
    second = counted(dataclasses.replace(found, mode="ASYNC_MASTER", behind=behind))[1]
    assert (second.lost_s, second.behind_s) == (0.5, 0.7)
    assert "of 0.5 s, 0.7 s reported" in row("second", [second])


def test_logs_that_differ_are_a_problem() -> None:
    found = dataclasses.replace(history(*SOUND, stored=(0, 1)), logs_differ="they do")
    assert list(problems(found)) == ["they do"]
