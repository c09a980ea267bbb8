"""Limit the messages and bytes of a producer that brokers have not answered yet.

Sends that do not fit wait in a queue. Threads and coroutines of any event loop share one budget.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from aerobee_wire.status import Code, MqError


@dataclass(slots=True, eq=False)
class _Waiter:
    messages: int
    size: int
    wake: Callable[[], object]
    has_room: bool = False


class Budget:
    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages = 0
        self._bytes = 0
        self._waiters: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    def taken(self) -> tuple[int, int]:
        """Return the messages and bytes that are in the budget now."""
        return self._messages, self._bytes

    def try_take(self, size: int, messages: int = 1) -> bool:
        """Add messages of `size` bytes in total to the budget if they fit.

        Return False if they do not fit, or if other sends wait.
        """
        with self._lock:
            if self._waiters:
                return False
            # Nearly every send takes this path.
            taken, taken_bytes = self._messages + messages, self._bytes + size
            if taken > self._max_messages or taken_bytes > self._max_bytes:
                return self._take(messages, size)
            self._messages, self._bytes = taken, taken_bytes
            return True

    async def take(self, size: int, timeout_s: float, messages: int = 1) -> None:
        """Wait until messages fit in the budget, and add them.

        Raises MqError with the code FLOW_CONTROL if they do not fit in time.
        """
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        waiter = _Waiter(messages, size, lambda: loop.call_soon_threadsafe(woken.set))
        if self._join(waiter):
            return
        try:
            async with asyncio.timeout(timeout_s):
                await woken.wait()
        except TimeoutError:
            if not self._leave(waiter):
                raise self.full() from None
        except asyncio.CancelledError:
            if self._leave(waiter):
                self.give_back(messages, size)
            raise

    def take_in_thread(self, size: int, timeout_s: float) -> None:
        """Wait as `take` does, in a thread that does not run an event loop."""
        woken = threading.Event()
        waiter = _Waiter(1, size, woken.set)
        if self._join(waiter):
            return
        try:
            woken.wait(timeout_s)
        except BaseException:  # Ctrl-C
            if self._leave(waiter):
                self.give_back(1, size)
            raise
        if not self._leave(waiter):
            raise self.full()

    def give_back(self, messages: int, size: int) -> None:
        """Remove `messages` of `size` bytes in total from the budget, and wake waiting sends."""
        with self._lock:
            self._messages -= messages
            self._bytes -= size
            while self._waiters and self._take(self._waiters[0].messages, self._waiters[0].size):
                waiter = self._waiters.popleft()
                waiter.has_room = True
                waiter.wake()

    def full(self) -> MqError:
        """Return the error for a send that does not fit in the budget."""
        return MqError(
            Code.FLOW_CONTROL,
            f"{self._messages} messages of {self._bytes} bytes wait to be sent or answered: send "
            f"slower, wait longer, or raise max_pending_messages ({self._max_messages}) or "
            f"max_pending_bytes ({self._max_bytes})",
        )

    def _take(self, messages: int, size: int) -> bool:
        fits = (
            self._messages + messages <= self._max_messages
            and self._bytes + size <= self._max_bytes
        )
        # an empty budget accepts a message or request of any size
        if not fits and self._messages:
            return False
        self._messages += messages
        self._bytes += size
        return True

    def _join(self, waiter: _Waiter) -> bool:
        """Add a send to the budget or to the waiting sends. Return whether it is in the budget."""
        with self._lock:
            if not self._waiters and self._take(waiter.messages, waiter.size):
                return True
            self._waiters.append(waiter)
            return False

    def _leave(self, waiter: _Waiter) -> bool:
        """End the wait of a send. Return whether it was added to the budget before that."""
        with self._lock:
            if not waiter.has_room:
                self._waiters.remove(waiter)
            return waiter.has_room
