"""What a run over consumer groups counted: lines to be printed."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from fault.groups.judge import away, excuse, overlapping, repeats
from fault.groups.leases import check_settled, in_doubt
from fault.groups.record import KINDS, PRODUCERS, History, Place, place_of

MS_OF_MONOTONIC = (time.time() - time.monotonic()) * 1_000


def figures(history: History) -> Iterator[str]:
    for kind in PRODUCERS:
        sent = history.acknowledged(kind)
        failures = Counter(
            reported["code"]
            for member in history.of(kind)
            for reported in member.reported
            if reported["event"] == "not sent"
        )
        yield f"{kind}: {len(sent)} acknowledged, not sent: {dict(failures)}"
    copies = copies_of(history)
    yield f"{sum(count - 1 for count in copies.values())} stored twice"
    for kind in KINDS:
        reported = [reported for member in history.of(kind) for reported in member.reported]
        again = sum(1 for one in reported if one["event"] == "not started")
        yield (
            f"{kind}: 0 lost, {len(away(history, kind))} away, order kept, "
            f"{duplicates(history, kind, copies)} duplicates, by repetition "
            f"{by_repetition(history, kind)}; started again without name server {again} times"
        )
        if found := resumed(history, kind):
            yield f"{kind}, from a broker that was back: {summary(found)}"
        if kind in ("orderly", "pull"):
            yield from (
                f"{kind}, next owner after the old one {how}: {summary(found)}"
                for how, found in sorted(handovers(history, kind).items())
            )
    excuses = Counter(excuse(history, *pair) for pair in overlapping(history))
    yield f"orderly: overlaps {dict(excuses)}, all others 0"
    doubted = len(in_doubt(member.reported for member in history.of("simple")))
    yield f"simple: {doubted} settlements in doubt"


def copies_of(history: History) -> dict[str, int]:
    """How often each key is stored, not counting retries."""
    places: defaultdict[str, set[Place]] = defaultdict(set)
    for kind in KINDS:
        for reported in (reported for member in history.of(kind) for reported in member.reported):
            if "place" in reported and not reported["place"][0].startswith("%"):
                places[reported["key"]].add(place_of(reported))
    return {key: len(found) for key, found in places.items()}


def duplicates(history: History, kind: str, copies: dict[str, int]) -> str:
    """Consumptions beyond the first of each stored message; of leases, those that were
    acknowledged."""
    consumed = Counter(
        reported["key"]
        for member in history.of(kind)
        for reported in member.reported
        if reported["event"] in ("end", "acked", "dead-lettered")
    )
    count = sum(max(0, consumed[key] - copies[key]) for key in consumed)
    return f"{count} of {consumed.total()}"


def by_repetition(history: History, kind: str) -> str:
    if kind == "simple":
        reported = (reported for member in history.of(kind) for reported in member.reported)
        return f"{check_settled(reported)} leases that were not settled"
    return str(dict(Counter(again.cause for again in repeats(history, kind))))


def handovers(history: History, kind: str) -> dict[str, list[float]]:
    """Seconds until a listener of another member had the next message of a queue, from when the old
    one's last listener had ended, it was told to end, and the message was stored; by how the old
    one ended. Not while the broker was away."""
    stored = {
        place_of(reported): (reported["stored_ms"] - MS_OF_MONOTONIC) / 1_000
        for member in history.of(kind)
        for reported in member.reported
        if reported["event"] == "begin"
    }
    found: defaultdict[str, list[float]] = defaultdict(list)
    for queue, calls in history.calls(kind).items():
        for old, new in pairwise(calls):
            if old.member == new.member or history.died(queue[1], (old.began, new.began)):
                continue
            since = [old.ended or old.began, stored[*queue, new.offset]]
            how, member = "kept on", history.member(old.member)
            for name, when in (("left", member.left), ("was killed", member.killed)):
                if when is not None and when <= new.began:
                    how = name
                    since.append(when)
            if any(begin <= new.began for begin, _ in member.frozen):
                how = "was frozen"
            if new.began >= max(since):
                found[how].append(new.began - max(since))
    return found


def resumed(history: History, kind: str) -> list[float]:
    """Seconds from when a broker that was killed served again until a member got a message of
    it."""
    got = sorted(
        (reported["at"], reported["place"][1])
        for member in history.of(kind)
        for reported in member.reported
        if reported["event"] in ("begin", "received")
    )
    found = []
    for name, deaths in history.deaths.items():
        for _, ready in deaths:
            first = next((at for at, broker in got if broker == name and at >= ready), None)
            if first is not None:
                found.append(first - ready)
    return found


def summary(seconds: Iterable[float]) -> str:
    found = sorted(seconds)
    return f"{len(found)}, {statistics.median(found):.2f} s (median), {found[-1]:.2f} s (most)"
