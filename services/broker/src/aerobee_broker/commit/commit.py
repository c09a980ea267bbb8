"""Decide when an append counts: the common part of synchronous and asynchronous flush.

Two things let an append count: the disk, and the replicas of this broker if it has any. A commit
keeps its own watermarks. The store's `flushed_offset` is not suitable: the flusher's thread sets it
before the loop confirms. A reader that asks between the two would not find the message yet. Its
`confirmed_offset` ends with the last record, so it excludes a blank after that record.

Four watermarks, all physical offsets that never fall. A wait has the name of its watermark:

    sent      sends that end at or below it may be acknowledged
    settled   everything else that a client waits for may be acknowledged: leases, acknowledgements
              of messages, transactions that are rolled back. These continue when too few replicas
              are left for sends, so it may be ahead of `sent`
    flushed   everything below is durable here and on all replicas that are waited for, whatever the
              flush type
    visible   the confirm offset: everything below may be shown, because no failover takes it back.
              At most `flushed`; it stays behind if a replica that is not waited for may become
              master
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
    """The replicas of this broker, as its commit sees them.

    `ReplicationSender` implements it, and calls `Commit.advance` when a replica has progressed.
    `ALONE` is a broker without replicas: what is on its own disk counts.
    """

    @property
    def ship_at_once(self) -> bool:
        """Return whether what is written is shipped at once.

        If so, `written` is called before the sync, so that the data is shipped meanwhile; otherwise
        after it.
        """

    def written(self, end_offset: int) -> None:
        """Record that the operating system has the log up to here: it may be shipped."""

    def watermarks(self, own: int, flushed: int) -> tuple[int, int, int, int]:
        """Return the four present watermarks, as Watermarks or as a plain tuple.

        `own` is what this broker holds as its flush type demands: `flushed` with synchronous flush,
        what is written with asynchronous flush. `flushed` is what is durable here.
        """

    def check_sends(self) -> None:
        """Check that a message of a producer may be stored. Raises TooFewReplicas if not."""

    def slaves_at(self, physical_offset: int) -> Collection[int]:
        """Return the ids, as name servers have them, of slaves that have the log at this offset."""


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
    """Make appends durable, then visible. Implemented by GroupCommit and IntervalCommit.

    `on_arrivals` is called with what has become visible. Each wait ends after `timeout_ms` with
    FlushTimeout, or with FlushSlaveTimeout if only replicas are waited for.
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
        self._on_disk = store.flushed_offset  # as far as the loop knows
        self._visible = store.confirmed_offset
        self._sent = self._settled = self._flushed = self._visible
        self._sent_waiters = CommitWaiters(timeout_ms, self._expired)
        self._settled_waiters = CommitWaiters(timeout_ms, self._expired)
        self._flushed_waiters = CommitWaiters(timeout_ms, self._flush_expired)
        self._visible_waiters = CommitWaiters(timeout_ms, self._flush_expired)
        self._task: asyncio.Task[None] | None = None  # set while a flush is pending
        self.check_sends = replicas.check_sends
        self._given_up: MqError | None = None

    @property
    def is_awaited(self) -> bool:
        """Return whether any caller waits for a flush."""
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
        """Return the end of what this broker holds as its flush type demands."""

    # ---- waits ----

    async def sent(self, end_offset: int) -> None:
        """Return when sends up to this physical offset may be acknowledged.

        Raises StoreWriteError, StoreFlushError, DiskFull or StoreReadOnly when the append was
        rolled back. Raises FlushTimeout when it stands in the log, and may become durable later.
        """
        if end_offset > self._sent:
            await self._wait(self._sent_waiters, end_offset)

    async def settled(self, end_offset: int) -> None:
        """Return as `sent` does, for appends that are not sends.

        It waits only for the present replicas, even if sends require more.
        """
        if end_offset > self._settled:
            await self._wait(self._settled_waiters, end_offset)

    async def flushed(self, end_offset: int) -> None:
        """Return when everything below is on the disk and on all replicas that are waited for.

        The flush type does not matter. Raises like `sent`.
        """
        if end_offset > self._flushed:
            await self._wait(self._flushed_waiters, end_offset)

    async def visible(self, end_offset: int) -> None:
        """Return when everything below is visible. Raises like `sent`."""
        if end_offset > self._visible:
            await self._wait(self._visible_waiters, end_offset)

    def flushing(self, end_offset: int) -> asyncio.Future[None]:
        """Return `flushed` as a future, whose wait begins with this call.

        A coroutine might begin to wait only after the append was rolled back. It would then wait
        for another append that has taken the same offsets.
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
        """Schedule the write of what was appended, and its flush."""

    async def drain(self) -> None:
        """Flush everything before a stop. Does not wait for replicas.

        What cannot be flushed is logged.
        """
        # A task that is cancelled before it began does not clear `_task`.
        while (task := self._task) is not None and not task.done():
            await asyncio.wait([task])

    def give_up(self, error: MqError) -> None:
        """End every present and future wait with this error.

        Another broker now decides the outcome of what is waited for.
        """
        self._given_up = error
        self._fail_waiters(error, above=-1)

    def advance(self) -> None:
        """Make visible what the watermarks have passed, and end the waits for it.

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
        # The first are callbacks that roll back what is in memory (DurableLog.when_flushed).
        for waiters in self._waiters:
            waiters.fail(error, above)

    def _fail(self, error: MqError, above: int) -> None:
        """Fail every waiter above this offset, and refuse appends for one turn of the loop.

        The waiters can then first roll back what they did in memory. Otherwise an entry that builds
        on it would stay in the log.
        """
        self._fail_waiters(error, above)
        self._store.flush.block_appends(error)
        asyncio.get_running_loop().call_soon(self._store.flush.unblock_appends)


class CommitWaiters:
    """Keep the futures that wait for a physical offset, as a queue because offsets only grow.

    One timer watches the oldest waiter: a timer for each would cost more than the wait.
    """

    def __init__(self, timeout_ms: int, expired: Callable[[int], Exception]) -> None:
        """Create an empty queue.

        `expired` returns the error with which the wait for an offset ends after `timeout_ms`.
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
        """End the waits for `offset` or less."""
        queue = self._queue
        while queue and queue[0][0] <= offset:
            future = queue.popleft()[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception, above: int) -> None:
        """End the waits for more than the offset `above` with the error."""
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
