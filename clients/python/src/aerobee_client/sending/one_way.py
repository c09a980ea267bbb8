"""Send one-way messages in requests of their own. Up to 256 are in flight; others wait."""

from __future__ import annotations

import asyncio
from functools import partial

from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.sending.budget import Budget
from aerobee_client.sending.sender import Sender

WINDOW = 256


class OneWaySends:
    """The one-way sends of one producer, on its event loop. `budget`: see Budget."""

    def __init__(self, sender: Sender, budget: Budget) -> None:
        self._sender = sender
        self._budget = budget
        self._room = asyncio.Semaphore(WINDOW)
        self._tasks: set[asyncio.Task[None]] = set()

    async def post(self, message: Message, queue: MessageQueue | None, timeout_s: float) -> None:
        """Send a message and return without waiting for the answer.

        Raises like `Sender.prepare`, the errors of the route query, and FLOW_CONTROL if there is
        not enough room within the timeout.
        """
        outgoing, size = self._sender.prepare(message, queue), message.size
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        await self._budget.take(size, timeout_s)
        try:
            target = queue or await self._sender.next_queue(message)
            async with asyncio.timeout_at(deadline_s):
                await self._room.acquire()
        except TimeoutError:
            self._budget.give_back(1, size)
            raise self._budget.full() from None
        except BaseException:
            self._budget.give_back(1, size)
            raise
        task = asyncio.create_task(self._sender.post(outgoing, target))
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, size))

    async def drain(self) -> None:
        """Wait until none is in flight."""
        await asyncio.gather(*self._tasks)

    def _done(self, size: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()
        self._budget.give_back(1, size)
