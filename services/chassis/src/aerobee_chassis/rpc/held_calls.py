"""End running calls that are not allowed any more, after the rights of users have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any


class HeldCalls:
    """The calls in progress that may last.

    `refusal` is the exception that a check raises if a call is not allowed any more.
    """

    def __init__(self, refusal: type[Exception]) -> None:
        self._refusal = refusal
        self._calls: dict[asyncio.Task[Any], _HeldCall] = {}

    def hold(self, user: str, check: Callable[[], None]) -> AbstractContextManager[None]:
        """Let `recheck` end the call of the running task, in this block.

        `check` raises the refusal if the call is not allowed any more. Then the block raises it.
        """
        return _HeldCall(self._calls, user, check)

    def recheck(self, users: Collection[str] | None = None) -> None:
        """End the calls of these users that are not allowed any more. None: of all users."""
        for held in list(self._calls.values()):
            if held.refusal is None and (users is None or held.user in users):
                try:
                    held.check()
                except self._refusal as refusal:
                    held.end(refusal)


class _HeldCall(AbstractContextManager[None]):
    """A call in `calls` while its block runs. A generator would take twice the time."""

    __slots__ = ("_calls", "_task", "check", "refusal", "user")

    def __init__(
        self, calls: dict[asyncio.Task[Any], _HeldCall], user: str, check: Callable[[], None]
    ) -> None:
        task = asyncio.current_task()
        assert task is not None, "a handler runs in a task"
        self._calls = calls
        self._task = task
        self.user = user
        self.check = check
        self.refusal: Exception | None = None

    def __enter__(self) -> None:
        self._calls[self._task] = self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        del self._calls[self._task]
        if self.refusal is not None and kind is asyncio.CancelledError:
            self._task.uncancel()
            raise self.refusal from None

    def end(self, refusal: Exception) -> None:
        """Cancel the call; its block then raises this error."""
        self.refusal = refusal
        self._task.cancel()
