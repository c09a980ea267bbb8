"""Notify functions of the application about acquired and lost queues.

Queues of the retry topic are internal to the consumer and are left out.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from aerobee_client.message_queue import MessageQueue
from aerobee_wire.topics import is_retry

log = logging.getLogger(__name__)

OnQueues = Callable[[frozenset[MessageQueue]], Awaitable[None] | None]

# A rebalance waits this long for a function. Then both continue.
TIMEOUT_S = 30.0


class AssignmentCallbacks:
    """Calls the application's functions, and logs their errors.

    A function that is not a coroutine function runs in a thread.
    """

    def __init__(
        self, on_assigned: Sequence[OnQueues] = (), on_revoked: Sequence[OnQueues] = ()
    ) -> None:
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked

    async def assigned(self, queues: Iterable[MessageQueue]) -> None:
        """Notify the application of acquired queues, before they are pulled."""
        if self._on_assigned:
            await _notify(self._on_assigned, queues)

    async def revoked(self, queues: Iterable[MessageQueue]) -> None:
        """Notify the application of lost queues, after their pulls have stopped.

        If the member can still commit the offsets of these queues, it commits them afterwards.
        """
        if self._on_revoked:
            await _notify(self._on_revoked, queues)


async def _notify(functions: Sequence[OnQueues], queues: Iterable[MessageQueue]) -> None:
    visible = frozenset(queue for queue in queues if not is_retry(queue.topic))
    for function in functions if visible else ():
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await _call(function, visible)
        except TimeoutError:
            log.error("%r takes more than %.0f s: the rebalance continues", function, TIMEOUT_S)
        except Exception:
            log.exception("%r failed on %s", function, visible)


async def _call(function: OnQueues, queues: frozenset[MessageQueue]) -> None:
    call = getattr(function, "__call__", None)  # noqa: B004  # an object with async __call__
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        answer = function(queues)
    else:
        answer = await asyncio.to_thread(function, queues)
    if answer is not None:
        await answer
