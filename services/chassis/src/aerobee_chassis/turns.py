"""Order work within one iteration of an event loop, which asyncio cannot do.

The loop at gRPC's completion queue can (`rpc.completion_queue.loop`). On another loop, such as that
of grpc.aio or of a test, the work takes one more iteration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def at_end_of_turn(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    """Run `action` after everything that is ready in this iteration of the loop."""
    getattr(loop, "at_end_of_turn", loop.call_soon)(action)


def deliver(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    """Wake the loop and run `action`. What it makes ready runs in the same iteration of the loop.

    Any thread may call this. Raises RuntimeError if the loop is closed, or does nothing.
    """
    getattr(loop, "deliver", loop.call_soon_threadsafe)(action)
