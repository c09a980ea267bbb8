"""What simple consumers told (`lease_agent.py`): what is settled, and whether it came again.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Report = dict[str, Any]

SETTLED = ("acked", "dead-lettered")
# Beyond it a message that was settled may not come again by a pop: clocks are read twice.
SLACK_MS = 50


def in_doubt(consumers: Iterable[list[Report]]) -> list[Report]:
    """Of each consumer, by what it told: what it was settling when it was killed, and what it was
    told a failure of. That may be done."""
    found = []
    for reported in consumers:
        found += [one for one in reported if one["event"] == "in doubt"]
        last = {tuple(one["place"]): one for one in reported if "place" in one}
        found += [one for one in last.values() if one["event"] == "settling"]
    return found


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
