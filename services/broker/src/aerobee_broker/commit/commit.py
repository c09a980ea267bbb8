"""When an append counts: what synchronous and asynchronous flush have in common.

A commit keeps its own offset up to which everything is durable *and* visible. The store's
`flushed_offset` would not do: the flusher's thread sets it before the loop confirms, and a reader
that asked between the two would not find the message yet. Its `confirmed_offset` ends with the last
record, so it leaves out a blank behind that.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.errors import FlushTimeout
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import Arrival
from aerobee_wire.status import MqError

OnArrivals = Callable[[list[Arrival]], None]


class Commit(ABC):
    """Makes appends durable, then visible. Two exist: GroupCommit and IntervalCommit.

    `on_arrivals` is called with what has become visible. `timeout_ms`: of each wait (FlushTimeout).
    """

    def __init__(
        self, store: MessageStore, flusher: Worker, on_arrivals: OnArrivals, timeout_ms: int
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._on_arrivals = on_arrivals
        self._flush_waiters = CommitWaiters(timeout_ms)
        self._visible = store.flushed_offset  # opening the store confirmed everything below
        self._task: asyncio.Task[None] | None = None  # while something is to be flushed

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits for a flush."""
        return len(self._flush_waiters) > 0

    @abstractmethod
    async def durable(self, end_offset: int) -> None:
        """Returns when everything below this physical offset may be acknowledged.

        Raises MqError: StoreWriteError, StoreFlushError, DiskFull, StoreReadOnly: it was rolled
        back; FlushTimeout: it stands in the log, and may become durable later.
        """

    async def flushed(self, end_offset: int) -> None:
        """Returns when everything below is on the disk and visible, whatever the flush type.

        Raises like `durable`.
        """
        if end_offset > self._visible:
            await self.flushing(end_offset)

    def flushing(self, end_offset: int) -> asyncio.Future[None]:
        """`flushed` as a future, whose wait begins with this call. A coroutine may begin to wait
        only after the append was rolled back; it would then wait for another append that has taken
        the same offsets."""
        if end_offset <= self._visible:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        future = self._flush_waiters.add(end_offset)
        self.schedule()
        return future

    @abstractmethod
    def schedule(self) -> None:
        """Schedules the write of what was appended, and its flush."""

    async def drain(self) -> None:
        """Flushes everything, to stop. What cannot be flushed is logged."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def _confirm(self, flushed: int) -> None:
        arrivals = self._store.flush.confirm(flushed)
        self._visible = flushed
        self._flush_waiters.release_up_to(flushed)
        if arrivals:
            self._on_arrivals(arrivals)

    def _fail(self, error: MqError, above: int = -1) -> None:
        """Fails every waiter above this offset, and refuses appends for one turn of the loop, so
        that they can first roll back what they did in memory: an entry that builds on it would stay
        in the log.
        """
        self._flush_waiters.fail(error, above)
        self._store.flush.block_appends(error)
        asyncio.get_running_loop().call_soon(self._store.flush.unblock_appends)


class CommitWaiters:
    """The futures that wait for a physical offset. Offsets only grow, so they are a queue.

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

    def release_up_to(self, offset: int) -> None:
        """Ends the waits for `offset` or less."""
        queue = self._queue
        while queue and queue[0][0] <= offset:
            future = queue.popleft()[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception, above: int = -1) -> None:
        """Ends the waits for more than the offset `above` with the error."""
        queue = self._queue
        self._queue = deque(waiter for waiter in queue if waiter[0] <= above)
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
