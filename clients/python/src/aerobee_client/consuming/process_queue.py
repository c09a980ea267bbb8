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


class Allowance:
    """Messages and bytes that the process queues of a topic, or all of a consumer, may hold
    together; None: any number. Those of paused queues do not count."""

    def __init__(self, max_messages: int | None, max_bytes: int | None) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages = self._size_bytes = 0
        self._queues: set[ProcessQueue] = set()  # that are not dropped

    def has_room(self) -> bool:
        return (self._max_messages is None or self._messages <= self._max_messages) and (
            self._max_bytes is None or self._size_bytes <= self._max_bytes
        )

    def join(self, queue: ProcessQueue) -> None:
        self._queues.add(queue)

    def leave(self, queue: ProcessQueue) -> None:
        self._queues.discard(queue)

    def change(self, messages: int, size_bytes: int) -> None:
        """Adds to what is held. When that makes room, or fills it, all queues are told."""
        before = self.has_room()
        self._messages += messages
        self._size_bytes += size_bytes
        if self.has_room() is not before:
            for queue in self._queues:
                queue.update_room()


class ProcessQueue:
    """One process queue belongs to one acquisition of a message queue. A queue that is released and
    acquired again gets a new one; `dropped` marks the old one, whose messages are ignored.

    `pulled_to`: the offset to pull next; at first where pulling starts. `paused`: nothing is
    pulled, and no listener begins. `allowances`: what it may hold together with others.
    """

    def __init__(
        self,
        queue: MessageQueue,
        options: ReadingOptions,
        pulled_to: int = 0,
        *,
        paused: bool = False,
        allowances: Sequence[Allowance] = (),
    ) -> None:
        self.queue = queue
        self.dropped = False
        self.paused = paused
        self.is_off = paused  # paused or dropped: no listener gets anything of it
        self.pulled_to = pulled_to
        # The end of the message queue, as of the last pull.
        self.max_offset = pulled_to
        self._options = options
        self._allowances = allowances
        # OrderedDict, not dict: taking the first key stays cheap after removals at the front.
        self._waiting: OrderedDict[int, ReceivedMessage] = OrderedDict()
        self._size_bytes = 0
        self._last_put = -1
        self._room = asyncio.Event()
        for allowance in allowances:
            allowance.join(self)
        self.update_room()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, message: ReceivedMessage) -> bool:
        return self._waiting.get(message.queue_offset) is message

    @property
    def size_bytes(self) -> int:
        """Stored sizes of the messages, summed."""
        return self._size_bytes

    @property
    def consumed_to(self) -> int:
        """The offset that may be committed: that of the first message here, or the one to pull next
        when there is none."""
        return next(iter(self._waiting)) if self._waiting else self.pulled_to

    @property
    def span(self) -> int:
        """Last queue offset minus first."""
        if not self._waiting:
            return 0
        return self._last_put - next(iter(self._waiting))

    def put(self, messages: Sequence[ReceivedMessage], pulled_to: int, max_offset: int = 0) -> None:
        """Adds `messages`, which are in order of their queue offsets and above all earlier ones.

        `pulled_to`: the offset to pull next. What is below it and is not put was filtered out.
        `max_offset`: the end of the message queue.
        """
        before = self._size_bytes
        for message in messages:
            self._waiting[message.queue_offset] = message
            self._size_bytes += message.store_size
        if messages:
            self._last_put = messages[-1].queue_offset
        self.pulled_to = pulled_to
        self.max_offset = max(self.max_offset, pulled_to, max_offset)
        if self._allowances and self._counts:
            self._change(len(messages), self._size_bytes - before)
        self.update_room()

    def remove(self, messages: Iterable[ReceivedMessage]) -> int:
        """Removes `messages`, which are consumed. Returns `consumed_to`."""
        held, before = len(self._waiting), self._size_bytes
        for message in messages:
            if self._waiting.pop(message.queue_offset, None) is not None:
                self._size_bytes -= message.store_size
        if self._allowances and self._counts:
            self._change(len(self._waiting) - held, self._size_bytes - before)
        self.update_room()
        return self.consumed_to

    def has_room(self) -> bool:
        options = self._options
        return (
            len(self._waiting) <= options.pull_threshold_for_queue
            and self._size_bytes <= options.pull_threshold_size_for_queue
            and self.span <= options.consume_concurrently_max_span
            and not self.paused
            and (
                (options.pulls_empty_queues and not self._waiting)
                or all(allowance.has_room() for allowance in self._allowances)
            )
        )

    async def wait_for_room(self) -> None:
        """Returns once more may be pulled."""
        await self._room.wait()

    def pause(self) -> None:
        if not self.paused:
            self._stop_counting()
            self.paused = self.is_off = True
            self.update_room()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.is_off = self.dropped
            if self._counts:
                self._change(len(self._waiting), self._size_bytes)
            self.update_room()

    def drop(self) -> None:
        if self.dropped:
            return
        self._stop_counting()
        self.dropped = self.is_off = True
        for allowance in self._allowances:
            allowance.leave(self)
        self._room.set()

    def update_room(self) -> None:
        """After a change of what it may hold."""
        if self.has_room() or self.dropped:
            self._room.set()
        else:
            self._room.clear()

    @property
    def _counts(self) -> bool:
        return not (self.paused or self.dropped)

    def _stop_counting(self) -> None:
        if self._counts:
            self._change(-len(self._waiting), -self._size_bytes)

    def _change(self, messages: int, size_bytes: int) -> None:
        for allowance in self._allowances:
            allowance.change(messages, size_bytes)
