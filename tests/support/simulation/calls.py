"""Calls of clients of a simulated group that are under way at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from aerobee_wire.status import MqError
from support.simulation.cluster import SimulatedCluster

TRIES, BETWEEN_S = 200, 0.3


class Calls:
    """What a call raises but MqError is a failure of the cluster's run. `failures`: by code."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.failures: Counter[str] = Counter()
        self._cluster = cluster
        self._under_way: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await work
            except MqError as error:
                self.failures[error.code.name] += 1

        task = asyncio.create_task(run())
        self._under_way.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._cluster.failures.append(error)

    async def wait(self) -> None:
        """Until none is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)


async def until_done(act: Callable[[], Awaitable[Any]]) -> Any:
    """Repeats a call until it is answered. Raises AssertionError after a minute of refusals."""
    for _ in range(TRIES):
        try:
            return await act()
        except MqError as error:
            last = error
            await asyncio.sleep(BETWEEN_S)
    raise AssertionError(f"refused for a minute: {last.message}")
