"""Keep the messages of one queue that are consumed one after the other.

They form a single ordered group, or one group per message group. This module uses neither brokers
nor threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile

from aerobee_client.consuming.order.lock_keeper import QueueLock
from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.consuming.send_back import Rejection
from aerobee_client.message import ReceivedMessage


class OrderedGroup:
    """Messages that are consumed one after the other.

    `waiting` starts with the next message; a message that fails stays first. `consumed` holds
    consumed messages that are not committed yet. With automatic commit, `consumed` is empty.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.waiting: deque[ReceivedMessage] = deque()
        self.consumed: list[ReceivedMessage] = []
        # True while the listener runs or the first message is being dead-lettered.
        self.busy = False
        self._rolled_back = False
        self._dying: tuple[ReceivedMessage, Rejection] | None = None
        self._suspension: asyncio.TimerHandle | None = None

    @property
    def dying(self) -> Rejection | None:
        """The rejection of the first message if it is to be dead-lettered; otherwise None."""
        if self._dying is None or not self.waiting or self._dying[0] is not self.waiting[0]:
            return None
        return self._dying[1]

    @property
    def is_ready(self) -> bool:
        return bool(self.waiting) and not self.busy and self._suspension is None

    @property
    def is_over(self) -> bool:
        return not (self.waiting or self.consumed or self.busy or self._suspension)

    def begin(self) -> None:
        self.busy = True

    def end(self) -> bool:
        """End a batch. Return True if the group was rolled back since the batch began."""
        self.busy = False
        rolled_back, self._rolled_back = self._rolled_back, False
        return rolled_back

    def give_up(self, rejection: Rejection) -> None:
        """Mark the first message for the dead-letter topic."""
        self._dying = self.waiting[0], rejection

    def remove(self, message: ReceivedMessage) -> None:
        """Remove a message that was dead-lettered."""
        self.waiting.remove(message)
        self._dying = None

    def take(self, count: int) -> list[ReceivedMessage]:
        """Remove and return the first `count` messages, which the listener has consumed."""
        return [self.waiting.popleft() for _ in range(count)]

    def has_given(self, message: ReceivedMessage) -> bool:
        """Return whether the listener got the message since the last commit."""
        return message in self.consumed or (self.busy and message in self.waiting)

    def commit(self, message: ReceivedMessage | None) -> list[ReceivedMessage]:
        """Commit consumed messages, up to `message` if it is given, and return them.

        If the listener is still processing `message`, that message is also returned, but stays in
        `waiting` until the listener returns.
        """
        if message is None:
            count = len(self.consumed)
        elif message in self.consumed:
            count = self.consumed.index(message) + 1
        else:
            listened = list(takewhile(lambda other: other is not message, self.waiting))
            committed, self.consumed = [*self.consumed, *listened, message], []
            return committed
        committed, self.consumed = self.consumed[:count], self.consumed[count:]
        return committed

    def roll_back(self) -> None:
        """Move consumed messages that are not committed back to `waiting`.

        If a listener call is running, its result will be ignored.
        """
        self.waiting.extendleft(reversed(self.consumed))
        self.consumed = []
        self._rolled_back = self.busy

    def suspend(self, delay_s: float, resume: Callable[[], None]) -> None:
        """Suspend the group for `delay_s`, then call `resume`."""

        def over() -> None:
            self._suspension = None
            resume()

        self.stop_waiting()
        self._suspension = asyncio.get_running_loop().call_later(delay_s, over)

    def stop_waiting(self) -> None:
        """End a suspension without calling `resume`."""
        if self._suspension is not None:
            self._suspension.cancel()
            self._suspension = None


class OrderedQueue:
    """The ordered groups of one process queue.

    `before` is the OrderedQueue of an earlier process queue of the same message queue. No group
    begins while a group of `before` runs.
    """

    def __init__(
        self,
        process_queue: ProcessQueue,
        lock: QueueLock,
        key_of: Callable[[ReceivedMessage], str],
        before: OrderedQueue | None,
    ) -> None:
        self.process_queue = process_queue
        self.lock = lock
        self._key_of = key_of
        self._before = before
        self._groups: dict[str, OrderedGroup] = {}
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = False

    def groups(self) -> list[OrderedGroup]:
        return list(self._groups.values())

    def add(self, messages: Sequence[ReceivedMessage]) -> list[OrderedGroup]:
        """Append `messages` to their groups. Return these groups."""
        grown: dict[str, OrderedGroup] = {}
        for message in messages:
            key = self._key_of(message)
            group = grown.get(key)
            if group is None:
                group = grown[key] = self._groups.setdefault(key, OrderedGroup(key))
            group.waiting.append(message)
        return list(grown.values())

    def group_of(self, message: ReceivedMessage) -> OrderedGroup | None:
        return self._groups.get(self._key_of(message))

    def drop_if_over(self, group: OrderedGroup) -> None:
        """Remove a group that has no messages, to limit the number of groups."""
        if group.is_over and self._groups.get(group.key) is group:
            del self._groups[group.key]

    # ---- what runs ----

    @property
    def is_busy(self) -> bool:
        return self._under_way > 0 or (self._before is not None and self._before.is_busy)

    @property
    def is_open(self) -> bool:
        """True if groups may begin, provided that the lock is trusted."""
        return self._is_wanted() and not (self._before is not None and self._before.is_busy)

    def may_go_on(self) -> bool:
        """Return whether the listener may get another message. Any thread may call this method."""
        return self._is_wanted() and self.lock.is_trusted()

    def _is_wanted(self) -> bool:
        return not (self._stopped or self.process_queue.dropped or self.process_queue.paused)

    def begin(self, group: OrderedGroup) -> None:
        group.begin()
        self._under_way += 1
        self._idle.clear()

    def end(self, group: OrderedGroup) -> bool:
        """End a batch of a group. Return True if the group was rolled back meanwhile."""
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()
        return group.end()

    def stop(self) -> None:
        """Prevent new batches. A running batch ends after the current listener call."""
        self._stopped = True
        for group in self._groups.values():
            group.stop_waiting()

    async def until_idle(self) -> None:
        if self._before is not None:
            await self._before.until_idle()
        await self._idle.wait()
