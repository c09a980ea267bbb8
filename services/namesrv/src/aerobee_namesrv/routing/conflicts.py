"""Recent registrations that were rejected because another process holds the broker's number.

This module stores them only; `route_info_manager.py` has the rule.
"""

from __future__ import annotations

from aerobee_chassis.clock import Clock
from aerobee_namesrv.routing.rows import BrokerConflict, BrokerKey

KEPT_MS = 120_000  # a rejected process that still runs registers again every second


class Conflicts:
    """The last conflict for each address of a newcomer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[BrokerKey, tuple[int, BrokerConflict]] = {}

    def add(self, conflict: BrokerConflict) -> bool:
        """Store a conflict and return whether it is new."""
        key = BrokerKey(conflict.cluster, conflict.newcomer_address)
        before = self._found.get(key)
        self._found[key] = (self._clock.monotonic_ms(), conflict)
        return before is None or before[1] != conflict

    def end(self, key: BrokerKey) -> None:
        """Remove the conflict of an address. Call this when its broker is registered."""
        self._found.pop(key, None)

    def all(self) -> list[BrokerConflict]:
        """Return the conflicts of the last KEPT_MS, sorted."""
        oldest_ms = self._clock.monotonic_ms() - KEPT_MS
        self._found = {key: each for key, each in self._found.items() if each[0] >= oldest_ms}
        return sorted(
            (conflict for _, conflict in self._found.values()),
            key=lambda each: (each.broker_name, each.newcomer.number, each.newcomer_address),
        )
