"""Queue the receives that wait for messages, and serve the one that has waited longest first.

The outcome of a wait is a broker to pop from, or messages, or None after the deadline. If a receive
is cancelled after it got an outcome, a callback passes this outcome to another receive or returns
the messages to the group. This module does not call brokers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

W = TypeVar("W")  # what a receive wants
O = TypeVar("O")  # noqa: E741  # outcome


class _Wait(NamedTuple, Generic[W]):
    place: int  # sequence number of the wait; the lowest has waited longest
    wanted: W


class WaitingReceives(Generic[W, O]):
    """The receives that wait, in the order in which they began.

    A receive may prefer a name, such as a broker (`prefers`). An outcome that is given under this
    name goes first to the receives that prefer it, and otherwise to the longest wait. `hand_over`
    is called with the outcome of a receive that was cancelled after it got this outcome.
    """

    def __init__(self, hand_over: Callable[[O], None]) -> None:
        self._hand_over = hand_over
        self._count = 0  # receives that wait or have not yet read their outcome
        # Those without an outcome, by preference, the longest wait first.
        self._waits: dict[str, dict[asyncio.Future[O | None], _Wait[W]]] = {}
        self._places = itertools.count()

    def __len__(self) -> int:
        """Return the number of receives that wait or have not yet read their outcome."""
        return self._count

    @property
    def any_waits(self) -> bool:
        """Return whether any waiting receive has no outcome yet."""
        return any(True for _ in self._without_outcome())

    async def wait(self, wanted: W, deadline_s: float, *, prefers: str = "") -> O | None:
        """Wait for the outcome of a receive and return it; None after `deadline_s`.

        `wanted` describes the receive, and `deadline_s` is in the event loop's time.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[O | None] = loop.create_future()
        self._waits.setdefault(prefers, {})[future] = _Wait(next(self._places), wanted)
        self._count += 1
        timer = loop.call_at(deadline_s, self._resolve, prefers, future, None)
        try:
            return await future
        except asyncio.CancelledError:
            found = future.result() if future.done() and not future.cancelled() else None
            if found is not None:
                self._hand_over(found)
            raise
        finally:
            timer.cancel()
            self._count -= 1
            self._leave(prefers, future)

    def longest(self, prefers: str = "") -> W | None:
        """Return the `wanted` of the receive that `give` would serve next.

        Return None if no receive waits.
        """
        found = self._next(prefers)
        return None if found is None else found[2].wanted

    def give(self, outcome: O, prefers: str = "") -> bool:
        """Give the outcome to the next waiting receive. Return False if no receive waits."""
        found = self._next(prefers)
        if found is None:
            return False
        preference, future, _ = found
        self._resolve(preference, future, outcome)
        return True

    def preferring(self, prefers: str) -> int:
        """Return the number of receives without an outcome that prefer this name."""
        return sum(not future.done() for future in self._waits.get(prefers, ()))

    def wanted(self) -> list[W]:
        """Return the `wanted` of each receive without an outcome."""
        return [wait.wanted for _, wait in self._without_outcome()]

    def end(self) -> None:
        """End all waits; each receive without an outcome gets None."""
        for prefers, waits in list(self._waits.items()):
            for future in list(waits):
                self._resolve(prefers, future, None)

    def _next(self, prefers: str) -> tuple[str, asyncio.Future[O | None], _Wait[W]] | None:
        first: tuple[str, asyncio.Future[O | None], _Wait[W]] | None = None
        for preference, waits in self._waits.items():
            for future, wait in waits.items():
                if not future.done():
                    if preference == prefers:
                        return preference, future, wait
                    if first is None or wait.place < first[2].place:
                        first = preference, future, wait
                    break
        return first

    def _without_outcome(self) -> Iterator[tuple[asyncio.Future[O | None], _Wait[W]]]:
        for waits in self._waits.values():
            for future, wait in waits.items():
                if not future.done():  # else its receive was cancelled
                    yield future, wait

    def _resolve(self, prefers: str, future: asyncio.Future[O | None], outcome: O | None) -> None:
        self._leave(prefers, future)
        if not future.done():
            future.set_result(outcome)

    def _leave(self, prefers: str, future: asyncio.Future[O | None]) -> None:
        waits = self._waits.get(prefers, {})
        if waits.pop(future, None) is not None and not waits:
            del self._waits[prefers]
