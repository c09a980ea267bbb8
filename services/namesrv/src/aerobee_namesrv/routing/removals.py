"""The bounded queue of brokers that are to be unregistered, handed out in batches.

In batches, because a removal goes over every topic: for a rack of forty brokers that is done once.
"""

from __future__ import annotations

import asyncio
from collections import deque

from aerobee_namesrv.routing.rows import Unregistration


class RemovalQueue:
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._waiting: deque[Unregistration] = deque()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, unregistration: Unregistration) -> bool:
        """Whether there was room for it."""
        if len(self._waiting) >= self._capacity:
            return False
        self._waiting.append(unregistration)
        self._filled.set()
        return True

    def drain(self) -> list[Unregistration]:
        """Empties the queue; oldest first."""
        batch = list(self._waiting)
        self._waiting.clear()
        self._filled.clear()
        return batch

    async def next_batch(self) -> list[Unregistration]:
        """Waits until the queue is not empty, and drains it."""
        await self._filled.wait()
        return self.drain()
