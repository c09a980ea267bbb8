"""What a replica counts since its process has started, for its metrics. Owned by the loop."""

from __future__ import annotations

from collections import Counter


class ReplicaCounts:
    """`received_bytes`: of its masters' logs. `cuts`, `diverged_bytes`, `diverged_messages`: of its
    own log, what it cut. `given_up_bytes`: of the logs of others, at least, by elections of this
    replica that lost something. `elections`: reason → how often it became master for it."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.cuts = self.diverged_bytes = self.diverged_messages = 0
        self.given_up_bytes = 0
        self.elections: Counter[str] = Counter()
        self._waits_ms: list[int] = []

    def received(self, size: int) -> None:
        self.received_bytes += size

    def cut(self, size: int, messages: int) -> None:
        self.cuts += 1
        self.diverged_bytes += size
        self.diverged_messages += messages

    def gave_up(self, size: int) -> None:
        self.given_up_bytes += size

    def elected(self, reason: str) -> None:
        self.elections[reason] += 1

    def waited(self, duration_ms: int) -> None:
        """From a flush of the master until every replica in sync has what it covers."""
        self._waits_ms.append(duration_ms)

    def take_waits(self) -> list[int]:
        """Those since the last call."""
        waits, self._waits_ms = self._waits_ms, []
        return waits
