"""Order work within one iteration of an event loop, which asyncio cannot do.

The loop of a service can (`rpc.http2.loop`). On another loop, such as that of a test, the work
takes one more iteration.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any


def at_end_of_turn(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    """Run `action` at the end of this iteration of the loop, after everything that is ready."""
    getattr(loop, "at_end_of_turn", loop.call_soon)(action)


def deliver(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    """Wake the loop and run `action`. What it makes ready runs in the same iteration of the loop.

    Any thread may call this. Raises RuntimeError if the loop is closed, or does nothing.
    """
    getattr(loop, "deliver", loop.call_soon_threadsafe)(action)


def start_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]
) -> asyncio.Task[None]:
    """Start a task, and run its first step now if no other task is running.

    A task that waits for nothing is done when this returns.
    """
    if asyncio.current_task(loop) is not None:
        return loop.create_task(coroutine)
    if sys.version_info >= (3, 12):
        return asyncio.Task(coroutine, loop=loop, eager_start=True)
    return _started(loop, asyncio.Task(coroutine, loop=loop))


def _started(loop: Any, task: asyncio.Task[None]) -> asyncio.Task[None]:
    """Run the first step of a task, which asyncio has just put at the end of its queue.

    Python 3.11 has no function for it. If another thread has queued something in this moment, or
    the loop has no such queue, the first step comes in the next iteration.
    """
    ready = getattr(loop, "_ready", None)
    if ready:
        handle = ready.pop()
        if getattr(handle._callback, "__self__", None) is task:
            handle._run()
        else:
            ready.append(handle)
    return task
