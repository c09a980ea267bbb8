"""Limit how often something fails, such as logins or signatures. This module does no I/O."""

from __future__ import annotations

from collections.abc import Callable

MAX_KEYS = 10_000  # an entry takes some 200 bytes


class Throttle:
    """Allows `most` failures of each key in `window_s` seconds, which begin with the first one.

    Args:
        most: The number of failures.
        window_s: The length of the window, in seconds.
        now_s: A clock that never goes back, in seconds.
    """

    def __init__(self, most: int, window_s: float, now_s: Callable[[], float]) -> None:
        self._most = most
        self._window_s = window_s
        self._now_s = now_s
        self._failures: dict[str, tuple[float, int]] = {}  # the oldest window first

    def wait_s(self, key: str) -> float:
        """Return how long to wait before another attempt, in seconds; 0 for not at all."""
        began_s, count = self._window(key)
        return max(0.0, began_s + self._window_s - self._now_s()) if count >= self._most else 0.0

    def add(self, key: str) -> None:
        """Count an attempt as a failure, until `forgive` takes it back."""
        began_s, count = self._window(key)
        if not count:
            self._failures.pop(key, None)
            while len(self._failures) >= MAX_KEYS:
                del self._failures[next(iter(self._failures))]
        self._failures[key] = began_s, count + 1

    def forgive(self, key: str) -> None:
        """Take back one attempt that did not fail."""
        began_s, count = self._window(key)
        if count > 1:
            self._failures[key] = began_s, count - 1
        else:
            self._failures.pop(key, None)

    def _window(self, key: str) -> tuple[float, int]:
        """Return when the window of a key began, and its failures."""
        now_s = self._now_s()
        began_s, count = self._failures.get(key, (now_s, 0))
        return (began_s, count) if now_s < began_s + self._window_s else (now_s, 0)
