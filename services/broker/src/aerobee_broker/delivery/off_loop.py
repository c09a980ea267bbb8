"""Where blocking work goes: a thread of its own, awaited on the loop. Not for computing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class OffLoop(Protocol):
    """Runs a blocking function elsewhere. Tests run it on the spot."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


class Thread:
    """One thread: what is given to it runs in that order, one at a time."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, function)

    def close(self) -> None:
        """Waits for what is under way."""
        self._executor.shutdown()
