"""What the checks of a run over consumer groups find, each in a history of a few lines."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest

from fault.agents import Agent
from fault.group_agent import EVENTS, STEPS, content
from fault.groups import judge
from fault.groups.record import KINDS, History, Member, Report

SEED = "1"


class Silent:
    """In place of a process: what it told."""

    def __init__(self) -> None:
        self.reported: list[Report] = []


class Story:
    """A history that is told line by line, one second after the other, from second 1 on."""

    def __init__(self) -> None:
        self.history = History(SEED)
        self.now = 0.0

    def member(self, kind: str, number: int = 0) -> Member:
        name = f"{kind}-{number}"
        for member in self.history.members:
            if member.name == name:
                return member
        self.history.members.append(Member(name, kind, cast(Agent, Silent())))
        return self.history.members[-1]

    def report(
        self, member: Member, event: str, key: str, place: tuple[Any, ...], lease: int = 0
    ) -> None:
        self.now += 1
        more: Report = {} if event == "acknowledged" else {"body": content(SEED, key)}
        if member.kind == "simple":
            more["lease"] = lease
        if event == "received":
            more["popped_ms"] = self.now * 1_000
        reported = {"event": event, "at": self.now, "at_ms": self.now * 1_000, "key": key, **more}
        member.reported.append({**reported, "place": list(place)})

    def send(self, key: str, place: tuple[Any, ...]) -> None:
        self.report(self.member("single"), "acknowledged", key, place)

    def consume(self, kind: str, number: int, key: str, place: tuple[Any, ...]) -> None:
        self.report(self.member(kind, number), "begin", key, place)
        self.report(self.member(kind, number), "end", key, place)

    def lease(self, number: int, key: str, place: tuple[Any, ...], outcome: str) -> None:
        settling = () if outcome == "given back" else ("settling",)
        for event in ("received", *settling, outcome):
            self.report(self.member("simple", number), event, key, place)

    def all_consume(self, key: str, place: tuple[Any, ...]) -> None:
        self.send(key, place)
        for kind in KINDS[:3]:
            self.consume(kind, 0, key, place)
        self.lease(0, key, place, "acked")


def place(offset: int, *, topic: str = EVENTS, broker: str = "broker-a") -> tuple[Any, ...]:
    return topic, broker, 0, offset


def test_a_run_without_faults_is_good() -> None:
    story = Story()
    for offset in range(3):
        story.all_consume(f"single-0/{offset}", place(offset, topic=STEPS))
        story.all_consume(f"single/{offset}", place(offset))
    judge.check(story.history)


def test_calls_of_one_message_that_overlap_in_a_member_are_distinguished() -> None:
    """The second one began when the member had lost the queue and got it back."""
    story = Story()
    story.all_consume("single/0", place(0))
    member = story.member("concurrent")
    for event in ("begin", "begin", "end", "failed"):
        story.report(member, event, "single/0", place(0))
    _, second, third = judge.history_calls(story.history, "concurrent")[place(0)[:3]]
    assert (second.consumed, third.consumed) == (True, False)
    assert second.began < third.began < (second.ended or 0.0) < (third.ended or 0.0)


def test_a_message_is_lost_unless_it_is_away_with_its_own_broker() -> None:
    story = Story()
    story.send("single/0", place(0))
    story.history.deaths["broker-b"].append((1.0, math.inf))
    assert judge.lost(story.history, "pull") == {"single/0"}
    story.history.deaths["broker-a"].append((1.0, 2.0))
    assert judge.lost(story.history, "pull") == {"single/0"}
    story.history.deaths["broker-a"].append((3.0, math.inf))
    assert judge.lost(story.history, "pull") == set()
    assert judge.away(story.history, "pull") == {"single/0"}


def test_a_lease_counts_when_it_is_settled_or_in_doubt() -> None:
    story = Story()
    story.send("single/0", place(0))
    simple = story.member("simple")
    story.report(simple, "received", "single/0", place(0))
    assert judge.lost(story.history, "simple") == {"single/0"}
    story.report(simple, "given back", "single/0", place(0))
    assert judge.lost(story.history, "simple") == {"single/0"}
    story.report(simple, "received", "single/0", place(0), lease=1)
    story.report(simple, "settling", "single/0", place(0), lease=1)
    story.report(simple, "received", "single/0", place(0), lease=2)
    assert judge.lost(story.history, "simple") == set()


def test_another_body_and_another_message_at_a_place_are_found() -> None:
    story = Story()
    story.consume("pull", 0, "single/0", place(0))
    judge.check_contents(story.history)
    story.consume("orderly", 0, "single/1", place(0))
    with pytest.raises(AssertionError):
        judge.check_contents(story.history)
    story = Story()
    story.consume("pull", 0, "single/0", place(0))
    story.member("pull").reported[-1]["body"] = "another"
    with pytest.raises(AssertionError):
        judge.check_contents(story.history)


def test_a_message_group_is_stored_in_order() -> None:
    for numbers, good in (([0, 1, 0, 1, 2], True), ([0, 2, 1], False), ([0, 2], False)):
        story = Story()
        for offset, number in enumerate(numbers):
            story.consume("pull", 0, f"single-0/{number}", place(offset, topic=STEPS))
        if good:
            judge.check_stored_order(story.history)
        else:
            with pytest.raises(AssertionError):
                judge.check_stored_order(story.history)


def overlapping_story() -> Story:
    """The listener of orderly-0 runs from second 1 to 3, that of orderly-1 begins at 2."""
    story = Story()
    first, second = story.member("orderly", 0), story.member("orderly", 1)
    story.report(first, "begin", "single/0", place(0))
    story.report(second, "begin", "single/0", place(0))
    story.report(first, "end", "single/0", place(0))
    story.report(second, "end", "single/0", place(0))
    return story


def test_two_listeners_at_once_are_excused_by_the_death_of_their_own_broker_between_them() -> None:
    for broker, killed, excused in (
        ("broker-a", 1.5, "broker killed"),
        ("broker-b", 1.5, ""),
        ("broker-a", 0.5, ""),
        ("broker-a", 2.5, ""),
    ):
        history = overlapping_story().history
        history.deaths[broker].append((killed, killed + 0.1))
        (pair,) = judge.overlapping(history)
        assert judge.excuse(history, *pair) == excused


def test_two_listeners_at_once_are_excused_by_a_freeze_of_the_first_for_longer_than_it_trusts() -> (
    None
):
    for number, stopped, began, excused in (
        (0, 1.5, 40.0, "member frozen"),
        (0, 1.5, 20.0, ""),
        (0, 0.5, 40.0, ""),
        (1, 1.5, 40.0, ""),
    ):
        story = overlapping_story()
        later = story.member("orderly", 1).reported
        later[0]["at"], later[1]["at"] = began, began + 1
        story.member("orderly", 0).reported[1]["at"] = began + 2
        story.member("orderly", number).frozen.append((stopped, began + 1))
        (pair,) = judge.overlapping(story.history)
        assert judge.excuse(story.history, *pair) == excused


def causes(story: Story, kind: str) -> list[str]:
    return [again.cause for again in judge.repeats(story.history, kind)]


@pytest.mark.parametrize(("kind", "cause"), [("orderly", ""), ("pull", "rebalance")])
def test_in_order_another_member_alone_is_no_reason_to_repeat(kind: str, cause: str) -> None:
    story = Story()
    story.consume(kind, 0, "single/0", place(0))
    story.consume(kind, 1, "single/0", place(0))
    assert causes(story, kind) == [cause]
    story.history.deaths["broker-b"].append((1.0, 3.0))
    assert causes(story, kind) == [cause]
    story.member(kind, 0).killed = 2.5
    assert causes(story, kind) == ["member killed"]
    story.history.deaths["broker-a"].append((1.0, 3.0))
    assert causes(story, kind) == ["broker killed"]


@pytest.mark.parametrize("kind", ["concurrent", "pull"])
def test_one_member_repeats_nothing_of_a_queue_that_it_kept(kind: str) -> None:
    story = Story()
    story.consume(kind, 0, "single/0", place(0))
    story.consume(kind, 0, "single/0", place(0))
    assert causes(story, kind) == [""]
    released = {"event": "rebalanced", "at": 2.5, "released": [list(place(0)[:3])]}
    story.member(kind).reported.append(released)
    assert causes(story, kind) == ["rebalance"]


def test_what_was_consumed_long_before_its_member_was_killed_is_not_repeated() -> None:
    story = Story()
    story.consume("orderly", 0, "single/0", place(0))
    story.now = story.member("orderly").killed = 100.0
    story.consume("orderly", 1, "single/0", place(0))
    assert causes(story, "orderly") == [""]


def test_what_was_settled_does_not_come_again_nor_late() -> None:
    story = Story()
    story.lease(0, "single-0/0", place(0, topic=STEPS), "acked")
    story.lease(1, "single-0/1", place(1, topic=STEPS), "acked")
    judge.check_leased_order(story.history)
    story = Story()
    story.lease(0, "single-0/0", place(0, topic=STEPS), "given back")
    story.lease(1, "single-0/1", place(1, topic=STEPS), "acked")
    with pytest.raises(AssertionError):
        judge.check_leased_order(story.history)


@pytest.mark.parametrize("outcome", ["acked", None])
def test_a_settlement_counts_from_its_own_begin(outcome: str | None) -> None:
    """The lease of message 0 has ended, and its holder comes to it while the next one settles it:
    the broker has delivered message 1 before the consumer is answered, or is killed."""
    story = Story()
    first, second = place(0, topic=STEPS), place(1, topic=STEPS)
    one, other = story.member("simple", 0), story.member("simple", 1)
    for member, event, where, lease in (
        (one, "received", first, 2),
        (one, "settling", first, 2),
        (other, "received", second, 3),
        (one, "received", first, 1),
        (one, "settling", first, 1),
        (one, outcome, first, 2),
    ):
        if event is not None:
            story.report(member, event, f"single-0/{where[3]}", where, lease)
    judge.check_leased_order(story.history)
