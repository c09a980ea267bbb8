"""The messages of one message queue that are pulled and not yet consumed: which offset may be
committed, and whether there is room to pull more. Pure; knows no network.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.reading import ReadingOptions


class ProcessQueue:
    """One process queue belongs to one acquisition of a message queue. A queue that is released and
    acquired again gets a new one; `dropped` marks the old one, whose messages are ignored.

    `pulled_to`: the offset to pull next; at first where pulling starts.
    """

    def __init__(self, queue: MessageQueue, options: ReadingOptions, pulled_to: int = 0) -> None:
        self.queue = queue
        self.dropped = False
        self.pulled_to = pulled_to
        self._options = options
        # OrderedDict, not dict: taking the first key stays cheap after removals at the front.
        self._waiting: OrderedDict[int, ReceivedMessage] = OrderedDict()
        self._size_bytes = 0
        self._last_put = -1
        self._room = asyncio.Event()
        self._room.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, message: ReceivedMessage) -> bool:
        return self._waiting.get(message.queue_offset) is message

    @property
    def size_bytes(self) -> int:
        """Stored sizes of the messages, summed."""
        return self._size_bytes

    @property
    def span(self) -> int:
        """Last queue offset minus first."""
        if not self._waiting:
            return 0
        return self._last_put - next(iter(self._waiting))

    def put(self, messages: Sequence[ReceivedMessage], pulled_to: int) -> None:
        """Adds `messages`, which are in order of their queue offsets and above all earlier ones.

        `pulled_to`: the offset to pull next. What is below it and is not put was filtered out.
        """
        for message in messages:
            self._waiting[message.queue_offset] = message
            self._size_bytes += message.store_size
        if messages:
            self._last_put = messages[-1].queue_offset
        self.pulled_to = pulled_to
        self._update_room()

    def remove(self, messages: Iterable[ReceivedMessage]) -> int:
        """Removes `messages`, which are consumed. Returns the offset that may be committed: that of
        the first message left, or the one to pull next when none is left."""
        for message in messages:
            if self._waiting.pop(message.queue_offset, None) is not None:
                self._size_bytes -= message.store_size
        self._update_room()
        return next(iter(self._waiting)) if self._waiting else self.pulled_to

    def has_room(self) -> bool:
        options = self._options
        return (
            len(self._waiting) <= options.pull_threshold_for_queue
            and self._size_bytes <= options.pull_threshold_size_for_queue
            and self.span <= options.consume_concurrently_max_span
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
