"""How fast a task sends, where `maxMessagesPerSecond` is set: its share of what all tasks may.

Spark does not tell a task how many there are. Each is a producer of one group that is named after
the job, so the brokers know which of them send now: a task asks them, and divides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

# A task counts once brokers know it, and then waits so long before it asks: those that begin at the
# same moment are known by then.
SETTLE_S = 0.3
LONGEST_S = 5.0  # without brokers that know it, it goes on as if it were alone
# Between two questions: short at first, while other tasks begin too.
FIRST_INTERVAL_S = 0.1
LONGEST_INTERVAL_S = 1.0
# A request of a slow task holds at most what it may send in this time.
REQUEST_S = 0.1
POLL_S = 0.05


@dataclass(slots=True)
class Pace:
    """`rate`: messages a second of all tasks together. `sharers`: how many tasks send now; this one
    is among them once brokers know it. None: no broker answers, so the share stays as it was."""

    rate: int
    sharers: Callable[[], int | None]
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _share: float = field(default=0.0, init=False)
    _ask_at_s: float = field(default=0.0, init=False)
    _interval_s: float = field(default=FIRST_INTERVAL_S, init=False)
    _due_s: float = field(default=0.0, init=False)

    def most_messages(self, most: int) -> int:
        """Of the next request, at most `most`."""
        if not self._share:
            self._begin()
        return max(1, min(most, int(self._share * REQUEST_S)))

    def wait(self, messages: int) -> None:
        """Until so many may be sent."""
        now_s = self.monotonic()
        if now_s >= self._ask_at_s:
            self._ask()
            now_s = self.monotonic()
        if self._due_s > now_s:
            self.sleep(self._due_s - now_s)
        self._due_s = max(self._due_s, now_s) + messages / self._share

    def _begin(self) -> None:
        until_s = self.monotonic() + LONGEST_S
        while not self.sharers() and self.monotonic() < until_s:
            self.sleep(POLL_S)
        self.sleep(SETTLE_S)
        self._ask()

    def _ask(self) -> None:
        sharers = self.sharers()
        if sharers is not None or not self._share:
            self._share = self.rate / max(1, sharers or 1)
        self._ask_at_s = self.monotonic() + self._interval_s
        self._interval_s = min(2 * self._interval_s, LONGEST_INTERVAL_S)
