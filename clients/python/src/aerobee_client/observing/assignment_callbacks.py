"""Tells functions of the user of queues that come and go. The queues of the retry topic are the
consumer's own business, and are left out.
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

# A rebalance waits this long for a function; then it goes on, and the function too.
TIMEOUT_S = 30.0


class AssignmentCallbacks:
    """A plain function is called in a thread. What a function raises is logged."""

    def __init__(
        self, on_assigned: Sequence[OnQueues] = (), on_revoked: Sequence[OnQueues] = ()
    ) -> None:
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked

    async def assigned(self, queues: Iterable[MessageQueue]) -> None:
        """Before they are pulled."""
        if self._on_assigned:
            await _tell(self._on_assigned, queues)

    async def revoked(self, queues: Iterable[MessageQueue]) -> None:
        """When they are not pulled any more; before their offsets are committed, if that may be."""
        if self._on_revoked:
            await _tell(self._on_revoked, queues)


async def _tell(functions: Sequence[OnQueues], queues: Iterable[MessageQueue]) -> None:
    told = frozenset(queue for queue in queues if not is_retry(queue.topic))
    for function in functions if told else ():
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await _call(function, told)
        except TimeoutError:
            log.error("%r takes more than %.0f s: the rebalance goes on", function, TIMEOUT_S)
        except Exception:
            log.exception("%r failed on %s", function, told)


async def _call(function: OnQueues, queues: frozenset[MessageQueue]) -> None:
    call = getattr(function, "__call__", None)  # noqa: B004  # an object with async __call__
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        answer = function(queues)
    else:
        answer = await asyncio.to_thread(function, queues)
    if answer is not None:
        await answer
