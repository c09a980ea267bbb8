"""One-way sends that travel alone: a window of them is in flight, and a further one waits."""

from __future__ import annotations

import asyncio

from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.sending.sender import Sender

WINDOW = 256


class OneWaySends:
    """Of one producer, on the loop in which it is made."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._room = asyncio.Semaphore(WINDOW)
        self._tasks: set[asyncio.Task[None]] = set()

    async def post(self, message: Message, queue: MessageQueue | None) -> None:
        """Returns once the message is on its way. Raises as `Sender.prepare`, and what asking for
        the route raises."""
        outgoing = self._sender.prepare(message, queue)
        target = queue or await self._sender.next_queue(message)
        await self._room.acquire()
        task = asyncio.create_task(self._sender.post(outgoing, target))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def drain(self) -> None:
        """Returns when none is in flight."""
        await asyncio.gather(*self._tasks)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()
