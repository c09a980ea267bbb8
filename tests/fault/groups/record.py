"""What there was in a run over consumer groups: members, producers, and what was done to them and
to the brokers. Times are seconds of the machine's monotonic clock."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fault.agents import Agent
from support.client.orderly_member import Call, calls

Report = dict[str, Any]
Place = tuple[str, str, int, int]  # topic, broker name, queue id, queue offset
Queue = tuple[str, str, int]
Span = tuple[float, float]

KINDS = ("concurrent", "orderly", "pull", "simple")
PRODUCERS = ("accumulating", "single")
CONSUMED = ("end", "acked", "dead-lettered")


def place_of(reported: Report) -> Place:
    topic, broker_name, queue_id, queue_offset = reported["place"]
    return topic, broker_name, queue_id, queue_offset


@dataclass(eq=False)
class Member:
    """A process. `killed`, `left`: when it was told to end so. `frozen`: from SIGSTOP to
    SIGCONT."""

    name: str
    kind: str
    agent: Agent
    killed: float | None = None
    left: float | None = None
    frozen: list[Span] = field(default_factory=list)

    @property
    def reported(self) -> list[Report]:
        return self.agent.reported


@dataclass
class History:
    """`deaths`: of each broker, from its kill until it served again."""

    seed: str
    members: list[Member] = field(default_factory=list)
    deaths: defaultdict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))

    def of(self, kind: str) -> list[Member]:
        return [member for member in self.members if member.kind == kind]

    def member(self, name: str) -> Member:
        return next(member for member in self.members if member.name == name)

    def acknowledged(self, kind: str) -> dict[str, Place]:
        """By producers of this kind, by key."""
        return {
            reported["key"]: place_of(reported)
            for member in self.of(kind)
            for reported in member.reported
            if reported["event"] == "acknowledged"
        }

    def consumed(self, kind: str) -> set[str]:
        """Keys."""
        return {
            reported["key"]
            for member in self.of(kind)
            for reported in member.reported
            if reported["event"] in CONSUMED
        }

    def calls(self, kind: str) -> dict[Queue, list[Call]]:
        """Of the listeners, by queue, in the order of their beginnings; of pull consumers what the
        program did with a message."""
        found = calls(line for member in self.of(kind) for line in lines(member))
        return {queue_of(queue): each for queue, each in found.items()}

    def lost_for_good(self) -> set[str]:
        """Names of brokers."""
        return {name for name, deaths in self.deaths.items() if deaths[-1][1] == math.inf}

    def died(self, broker_name: str, span: Span) -> bool:
        """Whether that broker was away in that time."""
        return any(touch(death, span) for death in self.deaths.get(broker_name, ()))


def touch(one: Span, other: Span) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def lines(member: Member) -> Iterator[str]:
    """Its calls in the form of `orderly_member`."""
    for reported in member.reported:
        if reported["event"] in ("begin", "end", "failed"):
            topic, broker_name, queue_id, queue_offset = place_of(reported)
            where = f"{topic}@{broker_name}@{queue_id} {queue_offset}"
            # Messages of a pull consumer are its own from the poll that returned them.
            begin = reported.get("polled", reported["at"])
            yield f"{reported['event']} {where} {begin} {member.name}"


def queue_of(text: str) -> Queue:
    topic, broker_name, queue_id = text.split("@")
    return topic, broker_name, int(queue_id)
