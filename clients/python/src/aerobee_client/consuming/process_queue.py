"""The messages of one message queue that are pulled and not settled yet, and what follows from
them: the offset that may be committed, and whether to pull more. Pure; knows no network.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from aerobee_client.consumer_options import FlowLimits
from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue


class ProcessQueue:
    """Belongs to one assignment of a queue to this client: a queue that is lost and won again gets
    a new one, and `dropped` tells the parts that still hold the old one to let go."""

    def __init__(self, queue: MessageQueue, limits: FlowLimits) -> None:
        self.queue = queue
        self.dropped = False
        self._limits = limits
        # OrderedDict, not dict: taking the first key stays cheap after removals at the front.
        self._waiting: OrderedDict[int, ReceivedMessage] = OrderedDict()
        self._size_bytes = 0
        self._last_put = -1
        self._pulled_to = -1
        self._room = asyncio.Event()
        self._room.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, message: ReceivedMessage) -> bool:
        return self._waiting.get(message.queue_offset) is message

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def span(self) -> int:
        if not self._waiting:
            return 0
        return self._last_put - next(iter(self._waiting))

    def put(self, messages: Sequence[ReceivedMessage], pulled_to: int) -> None:
        """`messages` in the order of their queue offsets, above all that were put before.

        `pulled_to`: the offset to pull next; whatever lies below it and is not put is not for us.
        """
        for message in messages:
            self._waiting[message.queue_offset] = message
            self._size_bytes += message.store_size
        if messages:
            self._last_put = messages[-1].queue_offset
        self._pulled_to = pulled_to
        self._update_room()

    def remove(self, messages: Iterable[ReceivedMessage]) -> int:
        """Settles `messages`. Returns the offset that may be committed: the smallest that still
        waits, or that to pull next when none does; -1 before the first pull."""
        for message in messages:
            if self._waiting.pop(message.queue_offset, None) is not None:
                self._size_bytes -= message.store_size
        self._update_room()
        return next(iter(self._waiting)) if self._waiting else self._pulled_to

    def has_room(self) -> bool:
        limits = self._limits
        return (
            len(self._waiting) <= limits.messages
            and self._size_bytes <= limits.size_bytes
            and self.span <= limits.span
        )

    async def wait_for_room(self) -> None:
        """Returns once more may be pulled."""
        await self._room.wait()

    def drop(self) -> None:
        self.dropped = True
        self._room.set()

    def _update_room(self) -> None:
        if self.has_room() or self.dropped:
            self._room.set()
        else:
            self._room.clear()
