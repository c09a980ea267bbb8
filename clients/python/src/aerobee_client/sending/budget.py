"""Back-pressure: how much a producer has accepted and not got an answer for, in messages and bytes.

Who finds no room waits in line. Threads and coroutines of any loop share one budget.
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
        """Messages and bytes."""
        return self._messages, self._bytes

    def try_take(self, size: int, messages: int = 1) -> bool:
        """Room for messages of `size` bytes in all; False when there is none, or others wait for
        it."""
        with self._lock:
            if self._waiters:
                return False
            # Nearly every send comes this far and no further.
            taken, taken_bytes = self._messages + messages, self._bytes + size
            if taken > self._max_messages or taken_bytes > self._max_bytes:
                return self._take(messages, size)
            self._messages, self._bytes = taken, taken_bytes
            return True

    async def take(self, size: int, timeout_s: float, messages: int = 1) -> None:
        """Waits for room. Raises FLOW_CONTROL when there is none in time."""
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
        """As `take`, for a thread that runs no loop."""
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
        """Room of `messages`, of `size` bytes in all."""
        with self._lock:
            self._messages -= messages
            self._bytes -= size
            while self._waiters and self._take(self._waiters[0].messages, self._waiters[0].size):
                waiter = self._waiters.popleft()
                waiter.has_room = True
                waiter.wake()

    def full(self) -> MqError:
        """What a caller is told who does not wait."""
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
        if not fits and self._messages:  # alone, a message or request of any size has room
            return False
        self._messages += messages
        self._bytes += size
        return True

    def _join(self, waiter: _Waiter) -> bool:
        """Whether there is room already."""
        with self._lock:
            if not self._waiters and self._take(waiter.messages, waiter.size):
                return True
            self._waiters.append(waiter)
            return False

    def _leave(self, waiter: _Waiter) -> bool:
        """Ends a wait. Whether it had got its room by then."""
        with self._lock:
            if not waiter.has_room:
                self._waiters.remove(waiter)
            return waiter.has_room
