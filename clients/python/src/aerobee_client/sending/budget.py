"""Limit the messages and bytes of a producer that brokers have not answered yet.

Sends that exceed the limits wait in a first-in, first-out queue. Threads and coroutines of any
event loop share one budget.
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
        """Return the numbers of pending messages and pending bytes."""
        return self._messages, self._bytes

    def try_take(self, size: int, messages: int = 1) -> bool:
        """Take room for messages of `size` bytes in total. Return whether there was enough room.

        Return False also if other sends wait for room.
        """
        with self._lock:
            if self._waiters:
                return False
            # Nearly every send ends here.
            taken, taken_bytes = self._messages + messages, self._bytes + size
            if taken > self._max_messages or taken_bytes > self._max_bytes:
                return self._take(messages, size)
            self._messages, self._bytes = taken, taken_bytes
            return True

    async def take(self, size: int, timeout_s: float, messages: int = 1) -> None:
        """Wait for room and take it.

        Raises MqError with the code FLOW_CONTROL if there is not enough room within the timeout.
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
        """Take room for one message as `take` does, in a thread without an event loop."""
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
        """Release the room of messages of `size` bytes in total, and wake waiting sends."""
        with self._lock:
            self._messages -= messages
            self._bytes -= size
            while self._waiters and self._take(self._waiters[0].messages, self._waiters[0].size):
                waiter = self._waiters.popleft()
                waiter.has_room = True
                waiter.wake()

    def full(self) -> MqError:
        """Return the FLOW_CONTROL error, which names the current usage and the limits."""
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
        # an empty budget has room for a message or request of any size
        if not fits and self._messages:
            return False
        self._messages += messages
        self._bytes += size
        return True

    def _join(self, waiter: _Waiter) -> bool:
        """Take room if there is enough; otherwise queue the waiter. Return whether it took room."""
        with self._lock:
            if not self._waiters and self._take(waiter.messages, waiter.size):
                return True
            self._waiters.append(waiter)
            return False

    def _leave(self, waiter: _Waiter) -> bool:
        """End a wait. Return whether the waiter already has its room."""
        with self._lock:
            if not waiter.has_room:
                self._waiters.remove(waiter)
            return waiter.has_room
