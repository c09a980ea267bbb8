"""What is worth a line in the log, but not one for each call that meets it."""

from __future__ import annotations

from aerobee_chassis.clock import Clock

EVERY_MS = 10_000
MAX_SUBJECTS = 1_000


class Seldom:
    """Says of each subject whether it is time to tell of it again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[str, tuple[int, int]] = {}  # when last, and how often not since then

    def due(self, subject: str) -> int | None:
        """How many times it was not told since the last time; None when it is not to be told."""
        now_ms = self._clock.monotonic_ms()
        told = self._told.get(subject)
        if told is not None and now_ms - told[0] < EVERY_MS:
            self._told[subject] = (told[0], told[1] + 1)
            return None
        if len(self._told) >= MAX_SUBJECTS:
            self._told.clear()
        self._told[subject] = (now_ms, 0)
        return told[1] if told is not None else 0
