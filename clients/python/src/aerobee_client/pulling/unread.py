"""Keep pulled messages that no poll has returned yet, and the messages of the last poll.

Messages of the last poll count as consumed when the next poll begins. Until then they stay in their
process queues, so that commits do not pass them. This module does no I/O.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.statistics import Tally
from aerobee_client.pulling.offsets import PullOffsets
from aerobee_client.runtime.clock import Clock
from aerobee_wire.status import MqError, illegal_operation, invalid_parameter

MAX_LENT = 256
# Messages of one queue that a poll returned.
Returned = tuple[ProcessQueue, list[ReceivedMessage]]
Item = tuple[ProcessQueue, ReceivedMessage]


class Lent:
    """A group of messages that another thread takes one by one.

    A loop of the plain pull consumer therefore calls the consumer's thread only once for all
    available messages. Each message counts as a poll: it is consumed when the thread takes the next
    message.

    The reading thread calls `take`, and the event loop calls all other methods. A message leaves
    the deque once, by `take` or by `end`, in either thread.
    """

    def __init__(self, items: list[Item]) -> None:
        self._items = items
        self._left = deque(items)
        self._settled = 0  # items that were returned by `consumed` or `end`

    @property
    def taken(self) -> int:
        """The number of messages that have left the deque."""
        return len(self._items) - len(self._left)

    def take(self) -> ReceivedMessage | None:
        """Return the next message, or None if there are no more messages.

        If a queue was lost or moved by a seek in the meantime, its messages are skipped.
        """
        while True:
            try:
                process_queue, message = self._left.popleft()
            except IndexError:
                return None
            if not process_queue.dropped:
                return message

    def consumed(self) -> list[Item]:
        """Return the items that became consumed since the previous call.

        The last item that the thread took is not consumed yet.
        """
        begin = self._settled
        self._settled = max(begin, len(self._items) - len(self._left) - 1)
        return self._items[begin : self._settled]

    def end(self) -> tuple[list[Item], list[Item]]:
        """Return the items taken since the last `consumed`, and the items that were not taken.

        After that, `take` returns None. Items are removed from the end of the deque, because the
        thread may take items from its beginning at the same time.
        """
        rest: list[Item] = []
        while self._left:
            try:
                rest.append(self._left.pop())
            except IndexError:  # the thread has just taken it
                break
        rest.reverse()
        taken = self._items[self._settled : len(self._items) - len(rest)]
        self._settled = len(self._items)
        return taken, rest


class UnreadMessages:
    """The consumption of a pull consumer. Only one task may poll at a time.

    If `on_returned` is not None, it is called after each poll that returns messages, with these
    messages and the duration of the poll in seconds. `tally` counts consumed messages, and the time
    that the caller took for each poll.
    """

    def __init__(
        self,
        offsets: PullOffsets,
        clock: Clock,
        on_returned: Callable[[list[ReceivedMessage], float], None] | None,
    ) -> None:
        self.tally = Tally(clock)
        self._clock = clock
        self._returned_ms = 0
        self.closed = False
        self.paused: set[MessageQueue] = set()
        self._offsets = offsets
        self._on_returned = on_returned
        # Queues are read in rotation: after a poll, its queue moves to the end.
        self._unread: OrderedDict[ProcessQueue, deque[ReceivedMessage]] = OrderedDict()
        self._returned: list[Returned] = []
        self._lent: Lent | None = None
        # the last failure of each queue that fails now
        self._failures: dict[MessageQueue, MqError] = {}
        self._refusals: list[MqError] = []  # not raised by a poll yet
        self._changed = asyncio.Event()
        self._polling = False

    def start(self) -> None: ...

    def submit(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        if messages:
            unread = self._unread.get(process_queue)
            if unread is None:
                self._unread[process_queue] = deque(messages)
            else:
                unread.extend(messages)
        self._failures.pop(process_queue.queue, None)
        self._changed.set()

    def failed(self, queue: MessageQueue, error: MqError) -> None:
        """Record that `queue` cannot be read now.

        If a retry cannot help, the next poll without messages raises `error` once.
        """
        self._failures[queue] = error
        if not error.retryable:
            self._refusals = [error]
            self._changed.set()

    def failure(self, queue: MessageQueue) -> MqError | None:
        """Return the last error of `queue` if it cannot be read now; otherwise None."""
        return self._failures.get(queue)

    async def close(self, timeout_s: float = 0) -> None:
        """End the waiting poll, and the loop of another thread that takes messages."""
        self.end_lending()
        self.closed = True
        self._changed.set()

    def position(self, process_queue: ProcessQueue) -> int:
        """Return the offset of the next unread message, or the next offset to pull."""
        self.end_lending()
        unread = self._unread.get(process_queue)
        return unread[0].queue_offset if unread else process_queue.pulled_to

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        self.end_lending()
        self.paused.update(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        self.paused.difference_update(queues)
        self._changed.set()

    def consume_last(self) -> None:
        """Mark the messages of the last poll as consumed. Their offsets may then be committed."""
        self.end_lending()
        returned, self._returned = self._returned, []
        self._consume(returned, 1)

    def settle(self) -> None:
        """Mark the messages that another thread took before its last message as consumed."""
        if self._lent is not None:
            consumed = [(process_queue, [one]) for process_queue, one in self._lent.consumed()]
            self._consume(consumed, len(consumed))

    def end_lending(self) -> None:
        """Take back the messages that another thread has not taken yet.

        They become unread again. The last message that the thread took counts as returned by a
        poll.
        """
        lent, self._lent = self._lent, None
        if lent is None:
            return
        taken, rest = lent.end()
        polls = [(process_queue, [message]) for process_queue, message in taken]
        self._returned = polls[-1:]
        self._consume(polls[:-1], len(polls) - 1)
        for process_queue, message in reversed(rest):
            if not process_queue.dropped:
                self._unread.setdefault(process_queue, deque()).appendleft(message)

    def _consume(
        self, returned: list[tuple[ProcessQueue, list[ReceivedMessage]]], polls: int
    ) -> None:
        if not returned:
            return
        for process_queue, messages in returned:
            committable = process_queue.remove(messages)
            if not process_queue.dropped:
                self._offsets.advance(process_queue.queue, committable)
        now_ms = self._clock.monotonic_ms()
        count = sum(len(messages) for _, messages in returned)
        self.tally.add(count, 0, now_ms - self._returned_ms, calls=polls)
        self._returned_ms = now_ms

    def take_back(self) -> None:
        """Make the messages of the last poll unread, because they did not reach the caller."""
        self.end_lending()
        for process_queue, messages in reversed(self._returned):
            if not process_queue.dropped:
                unread = self._unread.setdefault(process_queue, deque())
                unread.extendleft(reversed(messages))
        self._returned.clear()
        self._changed.set()

    def _take(
        self, max_messages: int, ends: Mapping[MessageQueue, int] | None
    ) -> list[ReceivedMessage]:
        """Return up to `max_messages` available messages, only below `ends` if given."""
        taken: list[ReceivedMessage] = []
        for process_queue in list(self._unread):
            if process_queue.dropped:
                del self._unread[process_queue]
                continue
            queue = process_queue.queue
            if queue in self.paused or (ends is not None and queue not in ends):
                continue
            end = None if ends is None else ends[queue]
            part = self._take_of(process_queue, max_messages - len(taken), end)
            if part:
                self._returned.append((process_queue, part))
                taken += part
                if len(taken) == max_messages:
                    break
        if taken:
            self._returned_ms = self._clock.monotonic_ms()
        return taken

    def _take_of(
        self, process_queue: ProcessQueue, most: int, end: int | None
    ) -> list[ReceivedMessage]:
        unread = self._unread[process_queue]
        if most >= len(unread) and (end is None or unread[-1].queue_offset < end):
            del self._unread[process_queue]
            return list(unread)
        part: list[ReceivedMessage] = []
        while len(part) < most and (end is None or unread[0].queue_offset < end):
            part.append(unread.popleft())
        if part:
            self._unread.move_to_end(process_queue)
        return part

    async def poll(
        self,
        max_messages: int,
        timeout_s: float | None,
        ends: Mapping[MessageQueue, int] | None = None,
    ) -> list[ReceivedMessage]:
        """Return up to `max_messages`, in order within each queue.

        Wait up to `timeout_s` for the first message. Return [] if none arrives, or if the consumer
        is closed. If `ends` is given, return only messages of these queues below these offsets.
        Then the call also returns when a pull without usable messages or a failure is reported.

        Raises MqError: refusals of brokers that arrived in the meantime, ILLEGAL_OPERATION while
        another poll waits, and INVALID_PARAMETER for an invalid `max_messages`.
        """
        if max_messages < 1:
            raise invalid_parameter(f"max_messages is {max_messages}: give 1 or more")
        if self._polling:
            raise illegal_operation(
                "another poll of this consumer waits: one task or thread polls at a time, since a "
                "poll counts what the one before returned as consumed"
            )
        self.consume_last()
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        messages = self._take(max_messages, ends)
        if not messages and not self.closed:
            messages = await self._wait(max_messages, timeout_s, ends)
        if messages and self._on_returned is not None:
            self._on_returned(messages, now_s() - began_s)
        return messages

    async def _wait(
        self, max_messages: int, timeout_s: float | None, ends: Mapping[MessageQueue, int] | None
    ) -> list[ReceivedMessage]:
        self._polling = True
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    return await self._next(max_messages, ends)
        finally:
            self._polling = False
        return []

    async def lend(
        self, timeout_s: float | None, ends: Mapping[MessageQueue, int] | None = None
    ) -> Lent | None:
        """Poll for a thread that takes the messages one by one. Return None if none arrives."""
        # Interceptors are notified of exactly the returned messages, before they are returned.
        await self.poll(1 if self._on_returned else MAX_LENT, timeout_s, ends)
        returned, self._returned = self._returned, []
        if not returned:
            return None
        items = [(process_queue, one) for process_queue, part in returned for one in part]
        self._lent = Lent(items)
        return self._lent

    async def _next(
        self, max_messages: int, ends: Mapping[MessageQueue, int] | None
    ) -> list[ReceivedMessage]:
        while not self.closed:
            if self._refusals:
                raise self._refusals.pop()
            self._changed.clear()
            await self._changed.wait()
            messages = self._take(max_messages, ends)
            if messages or ends is not None:
                return messages
        return []
