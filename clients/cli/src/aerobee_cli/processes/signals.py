"""Coroutines that SIGINT, SIGTERM or SIGHUP cancels."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


class Stopped(Exception):
    """A signal has asked this program to stop."""


class StopSignals:
    """Handles the signals in the running loop; of several, the first counts."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[Stopped] = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop, number)

    def _stop(self, number: signal.Signals) -> None:
        if not self._stopped.done():
            self._stopped.set_result(Stopped(f"stopped by {number.name}"))

    async def guard(self, *works: Coroutine[Any, Any, None]) -> None:
        """Runs `works` concurrently until the first of them returns or raises, then cancels the
        rest.

        Raises what the first one raised; Stopped when a signal came before.
        """
        tasks = {asyncio.create_task(work) for work in works}
        waits: set[asyncio.Future[Any]] = {*tasks, self._stopped}
        try:
            ended, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            # Only the first one's result counts: the others were cancelled.
            await asyncio.gather(*tasks, return_exceptions=True)
        for first in ended - {self._stopped}:
            first.result()
        if self._stopped in ended:
            raise self._stopped.result()
