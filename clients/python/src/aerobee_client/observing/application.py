"""Call functions of the application that are notified of events."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

A = TypeVar("A")

# The event waits this long for a function. Then both continue.
TIMEOUT_S = 30.0


async def call_in_time(function: Callable[[A], Awaitable[None] | None], argument: A) -> None:
    """Call a function or coroutine function. A plain function runs in a thread.

    Raises TimeoutError after TIMEOUT_S, or the exception of the function.
    """
    async with asyncio.timeout(TIMEOUT_S):
        call = getattr(function, "__call__", None)  # noqa: B004  # an object with async __call__
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
            answer = function(argument)
        else:
            answer = await asyncio.to_thread(function, argument)
        if answer is not None:
            await answer
