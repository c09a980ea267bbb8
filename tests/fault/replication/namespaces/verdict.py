"""What a history shows, by round: counts, and what must not be. Pure.

A message belongs to the round in which its send began. In a synchronous group nothing that was
acknowledged may be lost, nor come again when it was settled. In an asynchronous one both may be
when another master is elected; what is lost must be in what a replica cut off its log, unless a
disk was lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Report = dict[str, Any]
Place = tuple[Any, ...]  # topic, broker, queue, queue offset

SETTLED = ("acked", "dead-lettered")


@dataclass(frozen=True)
class Round:
    """`began`, `ended`: from the fault until the group was whole again and every client sent.
    `epoch`: of the master when it began. `wipes`: a disk was lost."""

    fault: str
    began: float
    ended: float
    elections: int
    epoch: int = 0
    wipes: bool = False


@dataclass(frozen=True)
class History:
    """`reported`: by each client. `stored` and `diverged`: what the reader found in the end.
    `behind`: what masters told of their slaves. `logs_differ`: how those of the replicas do in
    the end."""

    mode: str
    rounds: Sequence[Round]
    reported: Mapping[str, Sequence[Report]]
    stored: Sequence[Report]
    diverged: Sequence[Report] = ()
    behind: Sequence[Report] = ()
    logs_differ: str = ""

    def cut(self) -> list[Report]:
        """Of `diverged`, what producers sent: a dead letter has the key of another message."""
        topics = {one["place"][0] for one in self.stored}
        return [one for one in self.diverged if one["where"][0] in topics]

    def elected_near(self, moment: float) -> bool:
        """Whether another master was elected in the round of this moment, or in the next one."""
        number = self.round_at(moment)
        return any(each.elections for each in self.rounds[number : number + 2])

    def round_at(self, moment: float) -> int:
        return max(0, bisect_right([each.began for each in self.rounds], moment) - 1)


@dataclass
class Counts:
    """Of one round. `named`: of the lost, what a replica keeps as cut off its log. `lost_s`: from
    the first to the last acknowledgement of what is lost; `behind_s`: the most that the master of
    the round told of its slaves until it was replaced. `gone`: shown, and not there in the end.
    `came_again`: after its acknowledgement was answered. `duplicates`: stored beyond the first.
    `cut`: messages that are nowhere but in what was cut. `gaps_s`: by client, the longest time
    without an acknowledged send."""

    mode: str
    fault: str
    acknowledged: int = 0
    lost: int = 0
    named: int = 0
    lost_s: float = 0.0
    behind_s: float = 0.0
    gone: int = 0
    came_again: int = 0
    duplicates: int = 0
    elections: int = 0
    cut: int = 0
    gaps_s: dict[str, float] = field(default_factory=dict)


def counted(history: History) -> list[Counts]:
    """Of each round."""
    found = [Counts(history.mode, each.fault, elections=each.elections) for each in history.rounds]
    copies = Counter(one["key"] for one in history.stored)
    kept = {one["key"] for one in history.cut()}
    places = {tuple(one["place"]): one["body"] for one in history.stored}
    for client, reported in history.reported.items():
        for one in reported:
            counts = found[history.round_at(one["began"] if "began" in one else one["at"])]
            if one["event"] == "acknowledged":
                counts.acknowledged += 1
                counts.lost += is_lost(one, copies)
                counts.named += is_lost(one, copies) and one["key"] in kept
            if one["event"] in ("acknowledged", "not sent"):
                counts.duplicates += max(0, copies[one["key"]] - 1)
                counts.cut += one["key"] in kept and one["key"] not in copies
        for one in gone(reported, places):
            found[history.round_at(one["at"])].gone += 1
        for settled, _ in came_again(reported, copies):
            found[history.round_at(settled["at"])].came_again += 1
        for each, counts in zip(history.rounds, found, strict=True):
            counts.gaps_s[client] = longest_gap_s(reported, each)
    lost = [
        one for reported in history.reported.values() for one in reported if is_lost(one, copies)
    ]
    for number, (each, counts) in enumerate(zip(history.rounds, found, strict=True)):
        moments = [one["at"] for one in lost if history.round_at(one["began"]) == number]
        counts.lost_s = max(moments, default=0.0) - min(moments, default=0.0)
        reported_ms = (
            one["behind_ms"]
            for one in history.behind
            if one["epoch"] == each.epoch and each.began <= one["at"] <= each.ended
        )
        counts.behind_s = max(reported_ms, default=0) / 1_000
    return found


def is_lost(one: Report, copies: Mapping[str, int]) -> bool:
    return one["event"] == "acknowledged" and one["key"] not in copies


def gone(reported: Sequence[Report], places: dict[Place, str]) -> Iterator[Report]:
    """What was shown, and is not at its place in the end."""
    topics = {place[0] for place in places}
    for one in reported:
        is_shown = one["event"] in ("shown", "received") and one.get("place", [""])[0] in topics
        if is_shown and places.get(tuple(one["place"])) != one["body"]:
            yield one


def came_again(
    reported: Sequence[Report], copies: Mapping[str, int]
) -> Iterator[tuple[Report, Report]]:
    """What was settled, and its delivery by a later pop: the attempt is higher, or the time. An SDK
    does not tell the places of messages, and its agent acknowledges by message id: of those, what
    is stored once."""
    settled: dict[Any, Report] = {}
    for one in reported:
        if one["event"] not in (*SETTLED, "received"):
            continue
        place = tuple(one["place"]) if "place" in one else one["key"]
        before = settled.get(place)
        if one["event"] in SETTLED:
            settled[place] = max(before or one, one, key=pop_of)
        elif before is None:
            continue
        elif pop_of(one) > pop_of(before) if "place" in one else copies[one["key"]] < 2:
            yield before, one


def pop_of(one: Report) -> tuple[int, int]:
    """Of a later pop it is more."""
    return one.get("attempt", 0), one.get("popped_ms", 0)


def longest_gap_s(reported: Sequence[Report], round_: Round) -> float:
    """Between two acknowledged sends of the client, of which a part lies in the round."""
    moments = sorted(one["at"] for one in reported if one["event"] == "acknowledged")
    return max(
        (b - a for a, b in pairwise(moments) if b > round_.began and a < round_.ended), default=0.0
    )


def undelivered(history: History) -> set[str]:
    """Keys that are stored, and that no consumer of their group has received."""
    received: defaultdict[str, set[str]] = defaultdict(set)
    for client, reported in history.reported.items():
        received[client] |= {one["key"] for one in reported if one["event"] == "received"}
    return {
        one["key"]
        for one in history.stored
        if one["key"].partition("-")[0] in received
        and one["key"] not in received[one["key"].partition("-")[0]]
    }


def problems(history: History) -> Iterator[str]:
    """What must not be, with an example of each."""
    wipes = any(each.wipes for each in history.rounds)
    stored = {one["key"] for one in history.stored}
    kept = {one["key"] for one in history.cut()}
    for client, reported in history.reported.items():
        lost = {one["key"] for one in reported if one["event"] == "acknowledged"} - stored
        if history.mode == "SYNC_MASTER" and lost:
            yield f"{client}: {len(lost)} acknowledged messages are lost, such as {min(lost)}"
        elif lost - kept and not wipes:
            yield f"{client}: {len(lost - kept)} are lost and kept nowhere: {min(lost - kept)}"
        places = {tuple(one["place"]): one["body"] for one in history.stored}
        for one in list(gone(reported, places))[:1]:
            there = places.get(tuple(one["place"]))
            yield f"{client}: shown, and then {there!r} was there: {one}"
        for settled, again in came_again(reported, Counter(each["key"] for each in history.stored)):
            if history.mode == "SYNC_MASTER" or not history.elected_near(settled["at"]):
                yield f"{client}: settled, and came again: {settled}, {again}"
    if missing := undelivered(history):
        yield f"{len(missing)} stored messages were never delivered, such as {min(missing)}"
    if history.logs_differ:
        yield history.logs_differ
    for one in history.stored:
        if one["body"] != one["key"]:
            yield f"a message has the body of another: {one}"
    wrong = [one for one in history.cut() if one["missing"] is (one["key"] in stored)]
    if wrong:
        yield f"{len(wrong)} of what was cut is told wrongly as missing or stored: {wrong[0]}"
