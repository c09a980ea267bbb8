"""Provide an asyncio event loop that can order work within one iteration.

Asyncio runs what another thread reports, and what a callback makes ready, in the next iteration,
after another look at the sockets. On this loop, both run in the present one (`turns`). So a task
that waits for an answer continues without another look at the sockets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class ServiceLoop(asyncio.SelectorEventLoop):
    """The event loop of a service. It is an ordinary loop in all other respects."""

    def __init__(self) -> None:
        self._delivered: deque[Callable[[], None]] = deque()
        self._is_waking = False  # a byte is in the socket that wakes the loop
        self._at_end: list[Callable[[], None]] = []  # for the end of this iteration
        super().__init__()

    def deliver(self, action: Callable[[], None]) -> None:
        """Run `action` before all that is ready in the next iteration, and wake the loop for it.

        Any thread may call this. It does nothing if the loop is closed.
        """
        self._delivered.append(action)
        if not self._is_waking:
            self._is_waking = True
            self._write_to_self()  # type: ignore[attr-defined]

    def at_end_of_turn(self, action: Callable[[], None]) -> None:
        """Run `action` at the end of this iteration of the loop.

        Before it, the loop runs everything that is ready, and what this makes ready.
        """
        self._at_end.append(action)

    def _process_events(self, events: list[Any]) -> None:
        super()._process_events(events)  # type: ignore[misc]
        self._run_delivered()

    def _process_self_data(self, data: bytes) -> None:
        """Handle the bytes that have woken the loop: none is left in the socket."""
        super()._process_self_data(data)  # type: ignore[misc]
        # Reset this first: an action that is delivered from here on needs another byte.
        self._is_waking = False
        self._run_delivered()

    def _run_delivered(self) -> None:
        while self._delivered:
            self._run(self._delivered.popleft())

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        ready = self._ready  # type: ignore[attr-defined]
        for _ in range(len(ready)):  # what they make ready comes after the sockets
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()
        while self._at_end:
            actions, self._at_end = self._at_end, []
            for action in actions:
                self._run(action)

    def _run(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self.call_exception_handler(
                {"message": "work of an iteration of the loop failed", "exception": error}
            )
