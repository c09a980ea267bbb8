"""Notify functions of the application about acquired and lost queues.

Queues of the retry topic are internal to the consumer and are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing import application
from aerobee_wire.topics import is_retry

log = logging.getLogger(__name__)

OnQueues = Callable[[frozenset[MessageQueue]], Awaitable[None] | None]


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
            await application.call_in_time(function, visible)
        except TimeoutError:
            log.error(
                "%r takes more than %.0f s: the rebalance continues",
                function,
                application.TIMEOUT_S,
            )
        except Exception:
            log.exception("%r failed on %s", function, visible)
