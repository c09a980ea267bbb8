"""Lock and release the queues of a member that consumes in order.

A queue is locked before it is pulled. To release a queue, the member waits for its listener,
commits the offset, and unlocks the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from aerobee_client.consuming.offsets import OffsetStore
from aerobee_client.consuming.order.lock_keeper import LockKeeper
from aerobee_client.consuming.order.orderly_consumption import OrderlyConsumption
from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.message_queue import MessageQueue

log = logging.getLogger(__name__)


class LockedQueues:
    """The queues that a member has locked.

    `on_free` is called when a queue is released that was requested again in the meantime.
    """

    def __init__(
        self,
        keeper: LockKeeper,
        consumption: OrderlyConsumption,
        offsets: OffsetStore,
        *,
        on_free: Callable[[], None],
    ) -> None:
        self._keeper = keeper
        self._consumption = consumption
        self._offsets = offsets
        self._on_free = on_free
        self.on_link = keeper.on_link
        self.start = keeper.start
        # Called after the last queue is released, because locks are renewed while listeners run.
        self.close = keeper.close
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._wanted: set[MessageQueue] = set()

    async def lock(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Lock queues. Return the queues that this member may pull now."""
        self._wanted |= self._leaving.keys() & queues
        return await self._keeper.lock([queue for queue in queues if queue not in self._leaving])

    def release(self, process_queue: ProcessQueue) -> None:
        """Start to release a queue. Its lock is renewed until its running listener has ended."""
        queue = process_queue.queue
        task = asyncio.create_task(self._release(process_queue), name=f"release of {queue}")
        self._leaving[queue] = task

    async def unlock_others(self, owned: Collection[MessageQueue]) -> None:
        """Unlock the queues that this member has locked but does not own.

        Queues that are being released stay locked until their release ends.
        """
        await self._keeper.unlock(self._keeper.queues() - self._leaving.keys() - set(owned))

    async def until_released(self) -> None:
        """Wait until all queues that are being released are unlocked."""
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)

    async def _release(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        try:
            await self._consumption.finish(process_queue)
            process_queue.drop()
            await self._offsets.commit([queue])
            self._offsets.forget(queue)
            await self._keeper.unlock([queue])
        except Exception:
            log.exception("release of %s failed", queue)
        finally:
            del self._leaving[queue]
            if queue in self._wanted:
                self._wanted.discard(queue)
                self._on_free()
