"""What simple consumers told (`lease_agent.py`): what is settled, and whether it came again.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

Report = dict[str, Any]

SETTLED = ("acked", "dead-lettered")
# Beyond it a message that was settled may not come again by a pop: clocks are read twice.
SLACK_MS = 50


class Settlement(NamedTuple):
    """Of one lease. `began`: the report of its begin; it is done at some time after that.
    `is_known`: the consumer was told that it is done. Else it may be: the consumer was killed, or
    told of a failure."""

    began: Report
    is_known: bool


def settlements(reported: Iterable[Report]) -> Iterator[Settlement]:
    """Of one consumer. It may settle two leases of a message at once: the first one has ended, and
    the consumer was still busy with other messages of that receive."""
    begun: dict[tuple[Any, ...], Report] = {}
    for one in reported:
        if one["event"] == "settling":
            begun[lease_of(one)] = one
        elif one["event"] in SETTLED:
            yield Settlement(begun.pop(lease_of(one)), is_known=True)
    for one in begun.values():
        yield Settlement(one, is_known=False)


def in_doubt(consumers: Iterable[list[Report]]) -> list[Report]:
    """The begins of settlements that may be done."""
    return [
        began for reported in consumers for began, is_known in settlements(reported) if not is_known
    ]


def lease_of(reported: Report) -> tuple[Any, ...]:
    return *reported["place"], reported["lease"]


def check_settled(reported: Iterable[Report]) -> int:
    """That nothing settled came again. Returns how many deliveries were not the first."""
    settled_ms: dict[tuple[Any, ...], float] = {}
    first: set[tuple[Any, ...]] = set()
    again = 0
    for one in sorted(reported, key=lambda one: float(one["at_ms"])):
        place = tuple(one.get("place", ()))
        if one["event"] == "received":
            late_ms = one["popped_ms"] - settled_ms.get(place, float("inf"))
            assert late_ms < SLACK_MS, f"{one} came {late_ms:.0f} ms after it was settled"
            again += place in first
            first.add(place)
        elif one["event"] in SETTLED:
            settled_ms.setdefault(place, one["at_ms"])
    return again
