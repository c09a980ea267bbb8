"""Limit repeated log lines: at most one for each subject in each interval."""

from __future__ import annotations

from aerobee_chassis.clock import Clock

DEFAULT_EVERY_MS = 10_000
MAX_SUBJECTS = 1_000


class LogThrottle:
    def __init__(self, clock: Clock, every_ms: int = DEFAULT_EVERY_MS) -> None:
        self._clock = clock
        self._every_ms = every_ms
        self._logged: dict[str, tuple[int, int]] = {}  # (last logged at, suppressed since then)

    def allow(self, subject: str) -> int | None:
        """Decide whether to log a line about this subject now.

        Return the number of lines that were suppressed since the last logged line, or None to
        suppress this line too.
        """
        now_ms = self._clock.monotonic_ms()
        logged = self._logged.get(subject)
        if logged is not None and now_ms - logged[0] < self._every_ms:
            self._logged[subject] = (logged[0], logged[1] + 1)
            return None
        if len(self._logged) >= MAX_SUBJECTS:
            self._logged.clear()
        self._logged[subject] = (now_ms, 0)
        return logged[1] if logged is not None else 0
