"""Decides when an append may be acknowledged and is visible, for both flush types.

The decision depends on the disk, and on the replicas of this broker if it has any. A commit has
four watermarks. Each watermark is a physical offset that never decreases. A method that waits has
the name of its watermark:

    sent      sends that end at or below this offset may be acknowledged
    settled   other requests may be acknowledged up to this offset: leases, acknowledgements of
              messages, rollbacks of transactions. They continue if too few replicas are left for
              sends, so `settled` may be higher than `sent`
    flushed   all bytes below this offset are durable here and on the replicas that the commit waits
              for, whatever the flush type is
    visible   the confirm offset. Messages below it may be read, because no failover removes them.
              It is at most `flushed`. It is lower if another replica may become master

The commit does not use the offsets of the store. The flusher thread changes `flushed_offset` before
the event loop makes the messages visible. `confirmed_offset` is the end of the last record, so it
excludes a blank record after it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.errors import FlushSlaveTimeout, FlushTimeout
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import Arrival
from aerobee_wire.status import MqError


class Watermarks(NamedTuple):
    sent: int
    settled: int
    flushed: int
    visible: int


class Replicas(Protocol):
    """The interface through which a commit uses the replicas of this broker.

    `ReplicationSender` implements it, and calls `Commit.advance` when a replica has progressed.
    `ALONE` implements it for a broker without replicas.
    """

    @property
    def ship_at_once(self) -> bool:
        """Return whether replicas receive written data before it is synced.

        If so, the commit calls `written` before the sync, so that both happen at the same time.
        Otherwise it calls `written` after the sync.
        """

    def written(self, end_offset: int) -> None:
        """Note that the log is written up to this physical offset. Replicas may receive it now."""

    def watermarks(self, own: int, flushed: int) -> tuple[int, int, int, int]:
        """Return the four present watermarks, as Watermarks or as a plain tuple.

        `flushed` is the end of the data that is durable on this broker. `own` is the end of the
        data that its flush type requires: durable data with synchronous flush, written data with
        asynchronous flush.
        """

    def check_sends(self) -> None:
        """Check that a message of a producer may be stored. Raises TooFewReplicas if not."""

    def slaves_at(self, physical_offset: int) -> Collection[int]:
        """Return the broker ids of slaves that have the log up to this physical offset."""


class _Alone:
    ship_at_once = False

    def written(self, end_offset: int) -> None:
        pass

    def watermarks(self, own: int, flushed: int) -> tuple[int, int, int, int]:
        return own, own, flushed, flushed  # a named tuple takes 0.3 µs, at every flush

    def check_sends(self) -> None:
        pass

    def slaves_at(self, physical_offset: int) -> tuple[int, ...]:
        return ()


ALONE: Replicas = _Alone()


OnArrivals = Callable[[list[Arrival]], None]


class Commit(ABC):
    """Makes appends durable, and then visible. GroupCommit and IntervalCommit implement it.

    `on_arrivals` is called when messages have become visible. A wait ends after `timeout_ms` with
    FlushTimeout, or with FlushSlaveTimeout if this broker has the data and only replicas lack it.
    """

    def __init__(
        self,
        store: MessageStore,
        flusher: Worker,
        on_arrivals: OnArrivals,
        timeout_ms: int,
        *,
        replicas: Replicas = ALONE,
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._on_arrivals = on_arrivals
        self._replicas = replicas
        self._timeout_ms = timeout_ms
        self._on_disk = store.flushed_offset  # after the last flush that the event loop knows
        self._visible = store.confirmed_offset
        self._sent = self._settled = self._flushed = self._visible
        self._sent_waiters = CommitWaiters(timeout_ms, self._expired)
        self._settled_waiters = CommitWaiters(timeout_ms, self._expired)
        self._flushed_waiters = CommitWaiters(timeout_ms, self._flush_expired)
        self._visible_waiters = CommitWaiters(timeout_ms, self._flush_expired)
        self._task: asyncio.Future[None] | None = None  # set while a flush is pending
        self.check_sends = replicas.check_sends
        self._given_up: MqError | None = None

    @property
    def is_awaited(self) -> bool:
        """Return whether a caller waits for one of the watermarks."""
        return any(self._waiters)

    @property
    def _waiters(self) -> tuple[CommitWaiters, ...]:
        return (
            self._flushed_waiters,
            self._settled_waiters,
            self._sent_waiters,
            self._visible_waiters,
        )

    @property
    @abstractmethod
    def _own(self) -> int:
        """Return the end of the data that the flush type requires: durable or written data."""

    # ---- waits ----

    async def sent(self, end_offset: int) -> None:
        """Wait until sends up to this physical offset may be acknowledged.

        Raises StoreWriteError, StoreFlushError, DiskFull or StoreReadOnly if the append was rolled
        back. Raises FlushTimeout if the append is in the log and may become durable later.
        """
        if end_offset > self._sent:
            await self._wait(self._sent_waiters, end_offset)

    async def settled(self, end_offset: int) -> None:
        """Wait until records that the broker itself appends are safe up to this physical offset.

        Examples are retries and dead letters. The wait includes only the replicas that are in sync
        now, even if sends require more. Raises the same errors as `sent`.
        """
        if end_offset > self._settled:
            await self._wait(self._settled_waiters, end_offset)

    async def flushed(self, end_offset: int) -> None:
        """Wait until all bytes below this physical offset are durable, whatever the flush type is.

        They are then on this disk and on the replicas that the commit waits for. Raises like
        `sent`.
        """
        if end_offset > self._flushed:
            await self._wait(self._flushed_waiters, end_offset)

    async def visible(self, end_offset: int) -> None:
        """Wait until all messages below this physical offset are visible. Raises like `sent`."""
        if end_offset > self._visible:
            await self._wait(self._visible_waiters, end_offset)

    def flushing(self, end_offset: int) -> asyncio.Future[None]:
        """Wait like `flushed`, but return a future whose wait begins with this call.

        A coroutine could begin its wait after a rollback of the append. It would then wait for
        another append at the same offsets.
        """
        if end_offset <= self._flushed:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        return self._wait(self._flushed_waiters, end_offset)

    def _wait(self, waiters: CommitWaiters, end_offset: int) -> asyncio.Future[None]:
        future = waiters.add(end_offset)
        if self._given_up is not None:
            future.set_exception(self._given_up)
            return future
        self.schedule()
        return future

    def _expired(self, end_offset: int) -> MqError:
        return self._timeout(is_here=end_offset <= self._own)

    def _flush_expired(self, end_offset: int) -> MqError:
        return self._timeout(is_here=end_offset <= self._on_disk)

    def _timeout(self, *, is_here: bool) -> MqError:
        kind = FlushSlaveTimeout if is_here else FlushTimeout
        return kind(self._timeout_ms)

    # ---- progress ----

    @abstractmethod
    def schedule(self) -> None:
        """Schedule a write and a flush of all appended data."""

    async def drain(self) -> None:
        """Flush all appended data before a stop, without waiting for replicas.

        A failure is logged.
        """
        # A task that is cancelled before its start does not clear `_task`.
        while (task := self._task) is not None and not task.done():
            await asyncio.wait([task])

    def give_up(self, error: MqError) -> None:
        """End all present and future waits with this error.

        Call it when another broker decides whether the appends remain.
        """
        self._given_up = error
        self._fail_waiters(error, above=-1)

    def advance(self) -> None:
        """Update the watermarks, make messages visible, and end the waits that are fulfilled.

        Call it after a flush, and when a replica has progressed or the set of replicas has changed.
        """
        sent, settled, flushed, visible = self._replicas.watermarks(self._own, self._on_disk)
        arrivals: list[Arrival] = []
        if visible > self._visible:
            arrivals = self._store.flush.confirm(visible)
            self._visible = visible
            self._visible_waiters.release_up_to(visible)
        if flushed > self._flushed:
            self._flushed = flushed
            self._flushed_waiters.release_up_to(flushed)
        if settled > self._settled:
            self._settled = settled
            self._settled_waiters.release_up_to(settled)
        if sent > self._sent:
            self._sent = sent
            self._sent_waiters.release_up_to(sent)
        if arrivals:
            self._on_arrivals(arrivals)

    def _fail_waiters(self, error: Exception, above: int) -> None:
        # The first waiters include callbacks that roll back tables (DurableLog.when_flushed).
        for waiters in self._waiters:
            waiters.fail(error, above)

    def _fail(self, error: MqError, above: int) -> None:
        """Fail all waits above this physical offset, and refuse appends for one loop iteration.

        The waiters first roll back their changes in memory. Otherwise an append that depends on
        these changes could stay in the log.
        """
        self._fail_waiters(error, above)
        self._store.flush.block_appends(error)
        asyncio.get_running_loop().call_soon(self._store.flush.unblock_appends)


class CommitWaiters:
    """Keeps the futures that wait for a physical offset, in the order of their offsets.

    One timer watches the oldest waiter, because a timer for each waiter would be too expensive.
    """

    def __init__(self, timeout_ms: int, expired: Callable[[int], Exception]) -> None:
        """Create an empty queue of waiters.

        A wait ends after `timeout_ms`, with the error that `expired` returns for its offset.
        """
        self._timeout_ms = timeout_ms
        self._expired = expired
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
        """End the waits for physical offsets at or below `offset`, without an error."""
        queue = self._queue
        while queue and queue[0][0] <= offset:
            future = queue.popleft()[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception, above: int) -> None:
        """End the waits for physical offsets above `above` with this error."""
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
            end_offset, _, future = queue.popleft()
            if not future.done():
                future.set_exception(self._expired(end_offset))
        if queue:
            self._timer = loop.call_at(queue[0][1], self._expire)
