"""Cancel coroutines on SIGINT, SIGTERM or SIGHUP."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


class Stopped(Exception):
    """A signal requested the stop of this program."""


class StopSignals:
    """Handlers of the signals in the running loop. Only the first signal counts."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[Stopped] = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop, number)

    def _stop(self, number: signal.Signals) -> None:
        if not self._stopped.done():
            self._stopped.set_result(Stopped(f"stopped by {number.name}"))

    async def guard(self, *works: Coroutine[Any, Any, None]) -> None:
        """Run `works` concurrently until the first of them ends, then cancel the rest.

        Raises the error of the first one, or Stopped if a signal arrived before.
        """
        tasks = {asyncio.create_task(work) for work in works}
        waits: set[asyncio.Future[Any]] = {*tasks, self._stopped}
        try:
            ended, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            # The results of the others are ignored: they were cancelled.
            await asyncio.gather(*tasks, return_exceptions=True)
        for first in ended - {self._stopped}:
            first.result()
        if self._stopped in ended:
            raise self._stopped.result()
