"""End running calls that are not allowed any more, after the rights of users have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


class HeldCalls:
    """The calls in progress that may last.

    `refusal` is the exception that a check raises if a call is not allowed any more.
    """

    def __init__(self, refusal: type[Exception]) -> None:
        self._refusal = refusal
        self._calls: dict[asyncio.Task[Any], _HeldCall] = {}

    @contextmanager
    def hold(self, user: str, check: Callable[[], None]) -> Iterator[None]:
        """Let `recheck` end the call of the running task, in this block.

        `check` raises the refusal if the call is not allowed any more. Then the block raises it.
        """
        task = asyncio.current_task()
        assert task is not None, "a handler runs in a task"
        held = self._calls[task] = _HeldCall(user, check)
        try:
            yield
        except asyncio.CancelledError:
            if held.refusal is None:
                raise
            task.uncancel()
            raise held.refusal from None
        finally:
            del self._calls[task]

    def recheck(self, users: Collection[str] | None = None) -> None:
        """End the calls of these users that are not allowed any more. None: of all users."""
        for task, held in list(self._calls.items()):
            if held.refusal is None and (users is None or held.user in users):
                try:
                    held.check()
                except self._refusal as refusal:
                    held.refusal = refusal
                    task.cancel()


@dataclass(slots=True)
class _HeldCall:
    user: str
    check: Callable[[], None]
    refusal: Exception | None = None
