"""When an append counts: the waiting that synchronous and asynchronous flush have in common.

Both keep for themselves up to where everything is durable and visible. The store's `flushed_offset`
would not do: the flusher's thread sets it before the loop confirms, and who asked between the two
would look for a message that is not shown yet. Its `confirmed_offset` ends with the last record, so
it says nothing of a blank behind that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from aerobee_broker.errors import FlushTimeout, TooMuchUnflushed
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import Arrival
from aerobee_wire.status import MqError

OnArrivals = Callable[[list[Arrival]], None]
# Senders wait for the disk, each with its messages in memory: beyond this they are turned away, and
# so are pops and send-backs. Acknowledgements are not: they are small, and each is stored once.
MAX_UNFLUSHED_BYTES = 256 * 1024 * 1024


class Commit(Protocol):
    """Makes appends durable, and visible. Two exist: GroupCommit and TimedCommit."""

    async def durable(self, end_offset: int) -> None:
        """Returns when everything below this physical offset may be acknowledged.

        Raises MqError: StoreWriteError, StoreFlushError, StoreReadOnly, FlushTimeout.
        """

    async def flushed(self, end_offset: int) -> None:
        """Returns when everything below is on the disk and visible, whatever the flush type.

        Raises like `durable`.
        """

    def flushing(self, end_offset: int) -> asyncio.Future[None]:
        """`flushed` as a future, which waits from now on: who begins to wait only after an append
        failed waits for somebody else's."""

    def begin(self) -> None:
        """Sees to it that what was appended gets on its way, though nobody waits for it."""

    async def drain(self) -> None:
        """Flushes everything, to stop. What cannot be flushed is logged."""


def check_room(store: MessageStore) -> None:
    """Before anything that clients may ask for without end. Raises TooMuchUnflushed."""
    unflushed = store.end_offset - store.flushed_offset
    if unflushed > MAX_UNFLUSHED_BYTES:
        raise TooMuchUnflushed(unflushed)


def fail_all(store: MessageStore, error: MqError, *waiters: CommitWaiters, above: int = -1) -> None:
    """Nobody's wait for more than `above` will end well. Until those who waited have taken back
    what they did in memory, in the next turn of the loop, nobody appends: an entry that builds on
    it would stay in the log.
    """
    for one in waiters:
        one.fail(error, above)
    store.refuse(error)
    asyncio.get_running_loop().call_soon(store.accept)


class CommitWaiters:
    """Who waits for which physical offset. Offsets only grow, so it is a queue.

    One timer watches the oldest waiter: a timer for each would cost more than the wait.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._queue: deque[tuple[int, float, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, end_offset: int) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        deadline = loop.time() + self._timeout_ms / 1000
        self._queue.append((end_offset, deadline, future))
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._expire)
        return future

    def settle(self, offset: int) -> None:
        """Lets everybody go who waits for `offset` or less."""
        queue = self._queue
        while queue and queue[0][0] <= offset:
            future = queue.popleft()[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception, above: int = -1) -> None:
        """The waits for more than the offset `above` will not end well."""
        queue = self._queue
        self._queue = deque(one for one in queue if one[0] <= above)
        for end_offset, _, future in queue:
            if end_offset > above and not future.done():
                future.set_exception(error)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        queue = self._queue
        while queue and queue[0][1] <= loop.time():
            future = queue.popleft()[2]
            if not future.done():
                future.set_exception(FlushTimeout(self._timeout_ms))
        if queue:
            self._timer = loop.call_at(queue[0][1], self._expire)
