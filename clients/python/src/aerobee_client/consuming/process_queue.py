"""Keep the messages of one queue that are pulled and not yet consumed.

A process queue determines which offset may be committed, and whether the client may pull more. This
module does no I/O.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from operator import attrgetter

from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.consumer import ReadingOptions

_STORE_SIZE = attrgetter("store_size")


class Allowance:
    """Limits the messages and bytes that several process queues may hold together.

    The queues of a topic, or all queues of a consumer, share one allowance. A limit of None means
    no limit. Paused queues do not count.
    """

    def __init__(self, max_messages: int | None, max_bytes: int | None) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages = self._size_bytes = 0
        self._queues: set[ProcessQueue] = set()  # those that are not dropped

    def has_room(self) -> bool:
        return (self._max_messages is None or self._messages <= self._max_messages) and (
            self._max_bytes is None or self._size_bytes <= self._max_bytes
        )

    def join(self, queue: ProcessQueue) -> None:
        self._queues.add(queue)

    def leave(self, queue: ProcessQueue) -> None:
        self._queues.discard(queue)

    def change(self, messages: int, size_bytes: int) -> None:
        """Add `messages` and `size_bytes` to the held amounts. Both may be negative.

        If this fills the allowance or frees room in it, all its queues are notified.
        """
        before = self.has_room()
        self._messages += messages
        self._size_bytes += size_bytes
        if self.has_room() is not before:
            for queue in self._queues:
                queue.update_room()


class ProcessQueue:
    """The pulled messages of a message queue, from its acquisition to its release.

    If a message queue is acquired again, it gets a new process queue. `dropped` marks the old one,
    whose messages are ignored.

    `pulled_to` is the offset to pull next, initially the start offset. While `paused` is set, the
    client does not pull the queue or pass its messages to a listener. `allowances` limit the
    messages that this and other process queues hold together.
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
        self.is_off = paused  # paused or dropped: listeners get none of its messages
        self.pulled_to = pulled_to
        # The end offset of the message queue at the last pull.
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
        """The sum of the stored sizes of the messages."""
        return self._size_bytes

    @property
    def consumed_to(self) -> int:
        """The offset that may be committed.

        This is the offset of the first message here, or the next offset to pull if there is none.
        """
        return next(iter(self._waiting)) if self._waiting else self.pulled_to

    @property
    def span(self) -> int:
        """The difference between the last and the first queue offset here; 0 if empty."""
        if not self._waiting:
            return 0
        return self._last_put - next(iter(self._waiting))

    def put(self, messages: Sequence[ReceivedMessage], pulled_to: int, max_offset: int = 0) -> None:
        """Add `messages`, which are sorted by queue offset and follow all earlier messages.

        `pulled_to` is the offset to pull next. Messages below it that are not in `messages` were
        filtered out. `max_offset` is the end offset of the message queue.
        """
        size_bytes = sum(map(_STORE_SIZE, messages))
        waiting = self._waiting
        for message in messages:
            waiting[message.queue_offset] = message
        self._size_bytes += size_bytes
        if messages:
            self._last_put = messages[-1].queue_offset
        self.pulled_to = pulled_to
        self.max_offset = max(self.max_offset, pulled_to, max_offset)
        if self._allowances and self._counts:
            self._change(len(messages), size_bytes)
        self.update_room()

    def remove(self, messages: Iterable[ReceivedMessage]) -> int:
        """Remove consumed `messages`. Return the offset that may be committed now."""
        pop = self._waiting.pop
        gone = [each for each in messages if pop(each.queue_offset, None) is not None]
        size_bytes = sum(map(_STORE_SIZE, gone))
        self._size_bytes -= size_bytes
        if self._allowances and self._counts:
            self._change(-len(gone), -size_bytes)
        if not self._room.is_set():  # a removal cannot end the room
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
        """Wait until more may be pulled."""
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
        """Resume or stop pulling after the held messages have changed."""
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
