"""The bounded queue of brokers to unregister, which hands them out in batches.

A removal visits every topic. With batches, the loss of a rack of forty brokers costs one visit.
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
        """Add a broker to the queue. Return False if the queue is full."""
        if len(self._waiting) >= self._capacity:
            return False
        self._waiting.append(unregistration)
        self._filled.set()
        return True

    def drain(self) -> list[Unregistration]:
        """Empty the queue and return its content, oldest first."""
        batch = list(self._waiting)
        self._waiting.clear()
        self._filled.clear()
        return batch

    async def next_batch(self) -> list[Unregistration]:
        """Wait until the queue is not empty, and drain it."""
        await self._filled.wait()
        return self.drain()
