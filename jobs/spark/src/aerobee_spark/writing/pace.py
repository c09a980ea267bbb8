"""Limit the rate of a task to its share of `maxMessagesPerSecond`.

Spark does not pass the number of tasks to a task. All tasks are producers of one group that is
named after the job, so the brokers know how many send now. A task asks them and divides the rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

# After brokers know a task, it waits this long before it asks for the number of tasks: tasks that
# start at the same time are known by then.
SETTLE_S = 0.3
LONGEST_S = 5.0  # after this, a task that no broker knows assumes that it is alone
# Interval between two requests: short at first, while other tasks start too.
FIRST_INTERVAL_S = 0.1
LONGEST_INTERVAL_S = 1.0
# A request of a slow task holds at most the messages that it may send in this time.
REQUEST_S = 0.1
POLL_S = 0.05


@dataclass(slots=True)
class Pace:
    """The share of one task.

    Args:
        rate: messages per second of all tasks together.
        sharers: returns the number of tasks that send now, including this one as soon as brokers
            know it. None if no broker answers; the share stays unchanged then.
        monotonic: clock in seconds.
        sleep: waits for seconds.
    """

    rate: int
    sharers: Callable[[], int | None]
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _share: float = field(default=0.0, init=False)
    _ask_at_s: float = field(default=0.0, init=False)
    _interval_s: float = field(default=FIRST_INTERVAL_S, init=False)
    _due_s: float = field(default=0.0, init=False)

    def most_messages(self, most: int) -> int:
        """Return the size of the next request in messages, at most `most`."""
        if not self._share:
            self._begin()
        return max(1, min(most, int(self._share * REQUEST_S)))

    def wait(self, messages: int) -> None:
        """Wait until this number of messages may be sent."""
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
