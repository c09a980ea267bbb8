"""Wait for many file descriptors and timers on one thread, with `epoll` and a heap.

On systems without `epoll`, such as macOS, `poll` does the same, but takes longer with thousands of
file descriptors.
"""

from __future__ import annotations

import heapq
import itertools
import math
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    OnEvent = Callable[[int], None]

IN, OUT = select.POLLIN, select.POLLOUT  # epoll has the same values


class _Poll:
    """`select.poll` with the methods of `select.epoll`."""

    def __init__(self) -> None:
        poll = select.poll()
        self.register, self.modify, self.unregister = poll.register, poll.modify, poll.unregister
        self._poll = poll.poll

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        return self._poll(None if timeout_s < 0 else math.ceil(timeout_s * 1_000))


class Poller:
    """Run callbacks when a file descriptor is ready or a timer is due."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = monotonic_s
        self._poll = select.epoll() if hasattr(select, "epoll") else _Poll()
        self._waiting: dict[int, tuple[int, OnEvent]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._running = False

    def wait_for(self, fd: int, interest: int, on_event: OnEvent) -> None:
        """Call `on_event(events)` whenever `fd` is ready for `interest` (IN, OUT or both).

        Interest 0 stops the calls, also for hang-ups, which would be reported repeatedly.
        """
        known = self._waiting.get(fd)
        if not interest:
            self.forget(fd)
            return
        if known is None:
            self._poll.register(fd, interest)
        elif known[0] != interest:
            self._poll.modify(fd, interest)
        self._waiting[fd] = (interest, on_event)

    def forget(self, fd: int) -> None:
        """Stop waiting for `fd`. Call this before `fd` is closed."""
        if self._waiting.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self._now_s() + delay_s, next(self._order), callback))

    def run(self) -> None:
        """Run the callbacks until `stop` is called."""
        self._running = True
        poll, waiting = self._poll.poll, self._waiting
        while self._running:
            for fd, events in poll(self._until_next_timer()):
                # An earlier callback may have closed the descriptor.
                if (found := waiting.get(fd)) is not None:
                    found[1](events)
            self._call_due()

    def stop(self) -> None:
        self._running = False

    def _until_next_timer(self) -> float:
        return max(self._timers[0][0] - self._now_s(), 0.0) if self._timers else -1

    def _call_due(self) -> None:
        now = self._now_s()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
