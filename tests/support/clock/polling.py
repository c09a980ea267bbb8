"""Waiting for a condition instead of sleeping for luck.

Not for measuring: how long it took is nobody's business but the deadline's.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

TIMEOUT_S = 20.0  # generous: two cores may be shared by a whole suite
INTERVAL_S = 0.02


class _Wait:
    """The deadline of one wait and what was last seen before it."""

    def __init__(
        self, condition: Callable[[], Any], what: str, timeout_s: float, retry_on: tuple[Any, ...]
    ) -> None:
        self.what = what or getattr(condition, "__name__", repr(condition))
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s
        # An assertion that fails inside a condition means: not yet.
        self.retry_on = (AssertionError, *retry_on)
        self.last: object = "nothing"

    def note(self, seen: object) -> None:
        """Keeps what was seen. Raises TimeoutError past the deadline."""
        self.last = seen
        if time.monotonic() >= self.deadline:
            cause = seen if isinstance(seen, BaseException) else None
            raise TimeoutError(
                f"not within {self.timeout_s:g} s: {self.what}; last seen: {seen!r}"
            ) from cause


@overload
async def until(
    condition: Callable[[], Awaitable[T]],
    what: str = "",
    *,
    timeout_s: float = TIMEOUT_S,
    retry_on: tuple[type[Exception], ...] = (),
) -> T: ...


@overload
async def until(
    condition: Callable[[], T],
    what: str = "",
    *,
    timeout_s: float = TIMEOUT_S,
    retry_on: tuple[type[Exception], ...] = (),
) -> T: ...


async def until(
    condition: Callable[[], Any],
    what: str = "",
    *,
    timeout_s: float = TIMEOUT_S,
    retry_on: tuple[type[Exception], ...] = (),
) -> Any:
    """The first truthy value of `condition`, which may be a plain function or a coroutine function.

    An AssertionError or an exception of `retry_on` counts as "not yet". Raises TimeoutError that
    names `what` and what was last seen.
    """
    wait = _Wait(condition, what, timeout_s, retry_on)
    while True:
        seen: object
        try:
            seen = condition()
            if inspect.isawaitable(seen):
                seen = await seen
            if seen:
                return seen
        except wait.retry_on as error:
            seen = error
        wait.note(seen)
        await asyncio.sleep(INTERVAL_S)


def until_sync(
    condition: Callable[[], T],
    what: str = "",
    *,
    timeout_s: float = TIMEOUT_S,
    retry_on: tuple[type[Exception], ...] = (),
) -> T:
    """`until` for tests without a loop; `condition` is a plain function."""
    wait = _Wait(condition, what, timeout_s, retry_on)
    while True:
        seen: T | Exception
        try:
            seen = condition()
            if seen:
                return seen
        except wait.retry_on as error:
            seen = error
        wait.note(seen)
        time.sleep(INTERVAL_S)
