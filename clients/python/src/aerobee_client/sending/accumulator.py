"""Collect single sends in batches. The answers of the brokers determine when a batch is sent.

If no request to its broker is in flight, a batch is sent at the end of the event loop's iteration.
Otherwise it is sent after the next answer of that broker, or when it is full. There is no timer: a
lone send never waits. Under load, a batch contains the sends that arrived while the previous one
was in flight.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from aerobee_client.cluster.latency_fault import LatencyFault
from aerobee_client.cluster.route_cache import PublishInfo
from aerobee_client.errors import RequestTimeout
from aerobee_client.message_queue import MessageQueue
from aerobee_client.runtime.clock import Clock
from aerobee_client.send_result import SendResult
from aerobee_client.sending.budget import Budget
from aerobee_client.sending.send_request import RUN_MESSAGES, Outgoing
from aerobee_wire.status import MqError

# A request of this size does not wait for more sends. Two of them fit into the 512 KiB that a
# broker accepts before it reads. A larger one would wait for the event loop several times.
FULL_BYTES = 240 * 1024

# The maximum number of requests in flight to one broker. Further batches wait for an answer.
WINDOW = 4

AnyFuture = asyncio.Future[SendResult] | concurrent.futures.Future[SendResult]


class BatchKey(NamedTuple):
    """Sends with the same key may share a request. `queue` is the queue that the caller chose."""

    topic: str
    is_plain: bool  # True if messages are encoded one by one, not in columns
    queue: MessageQueue | None
    is_one_way: bool
    priority: int | None = None  # the priority, in a topic of the type PRIORITY
    is_group: bool = False  # True for message groups, whose queue may change


def fail(future: AnyFuture, error: BaseException) -> None:
    """Set `error` as the outcome of a future that has no outcome yet."""
    # Another thread may cancel the future between the check and the set.
    with suppress(concurrent.futures.InvalidStateError):
        if not future.done():
            future.set_exception(error)


class SingleSend:
    """A send that waits for a batch or is in a batch.

    `size` is the size of the message from the caller, which the send takes from the budget.
    `future` gets the outcome, even if another thread waits for it.
    """

    __slots__ = ("deadline_ms", "future", "outgoing", "size", "timeout_s")

    def __init__(
        self, outgoing: Outgoing, size: int, future: AnyFuture, deadline_ms: int, timeout_s: float
    ) -> None:
        self.outgoing = outgoing
        self.size = size
        self.future = future
        self.deadline_ms = deadline_ms
        self.timeout_s = timeout_s

    def leaves(self) -> bool:
        """Return whether to send it now: it was not cancelled, and its deadline has not passed."""
        future = self.future
        if isinstance(future, concurrent.futures.Future):
            return not future.done() and future.set_running_or_notify_cancel()
        return not future.done()

    def succeed(self, result: SendResult) -> None:
        future = self.future
        if not future.done():
            future.set_result(result)

    def fail(self, error: BaseException) -> None:
        fail(self.future, error)


class Batch:
    """Sends that share a request. `queue` is the target of the first attempt."""

    __slots__ = ("_failure", "deadline_ms", "is_full", "key", "queue", "refusal", "sends", "size")

    def __init__(self, key: BatchKey, queue: MessageQueue) -> None:
        self.key = key
        self.queue = queue
        self.sends: list[SingleSend] = []
        self.size = 0
        self.is_full = False
        self.deadline_ms: int | None = None  # the earliest deadline of its sends
        self.refusal: MqError | None = None
        self._failure: MqError | None = None

    def take(self, send: SingleSend) -> bool:
        """Add a send if it fits. An empty batch accepts a send of any size."""
        size, sends = self.size + send.size, self.sends
        if sends and (self.is_full or size > FULL_BYTES):
            return False
        sends.append(send)
        self.size = size
        self.is_full = len(sends) >= RUN_MESSAGES or size >= FULL_BYTES
        if self.deadline_ms is None or send.deadline_ms < self.deadline_ms:
            self.deadline_ms = send.deadline_ms
        return True

    def expire(self, now_ms: int) -> None:
        """Fail the sends whose deadline has passed."""
        self.deadline_ms = None
        for send in self.sends:
            if send.future.done():
                continue
            if send.deadline_ms <= now_ms:
                send.fail(self.time_over(send))
            elif self.deadline_ms is None or send.deadline_ms < self.deadline_ms:
                self.deadline_ms = send.deadline_ms

    def refuse(self, error: MqError) -> None:
        """Record that the queue of this batch does not accept messages.

        The sends have no outcome yet, because OrderedSends moves them to another queue.
        """
        self.refusal = error

    def release(self) -> list[SingleSend]:
        """Remove and return the sends of this batch. They keep their shares of the budget."""
        sends, self.sends, self.size = self.sends, [], 0
        return sends

    def attempt_failed(self, error: MqError) -> None:
        """Record a failure that may be retried. A send that expires later fails with `error`."""
        self._failure = error

    def time_over(self, send: SingleSend) -> MqError:
        name = f"broker {self.queue.broker_name}"
        return self._failure or RequestTimeout(name, send.timeout_s)


class _BrokerWindow:
    """The state of one broker: the number of batches in flight, and the waiting batches.

    The oldest batch is first in `waiting`.
    """

    def __init__(self) -> None:
        self.in_flight = 0
        self.waiting: deque[Batch] = deque()
        # queues chosen by callers that have a request in flight; one request at a time is allowed
        self.busy_queues: set[MessageQueue] = set()
        self.leaves_soon = False  # at the end of this iteration of the loop

    @property
    def is_idle(self) -> bool:
        return not self.in_flight and not self.waiting


class Accumulator:
    """Puts sends into batches. Use it on one event loop.

    `deliver` sends a batch, and either sets the outcome of each send or moves the send to another
    batch. It does not raise. `fault` decides which brokers to avoid. A send has taken its share of
    `budget` before it is added, and the end of its batch returns the share. All methods must be
    called on one event loop.
    """

    def __init__(
        self,
        deliver: Callable[[Batch], Awaitable[None]],
        budget: Budget,
        clock: Clock,
        fault: LatencyFault | None,
    ) -> None:
        self._deliver = deliver
        self._budget = budget
        self._clock = clock
        self._fault = fault
        self._loop = asyncio.get_running_loop()
        self._windows: dict[str, _BrokerWindow] = {}
        self._open: dict[BatchKey, Batch] = {}
        self._last: dict[MessageQueue, Batch] = {}  # the newest batch of each chosen queue
        self._live: dict[Batch, None] = {}  # waiting or in flight, oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at_ms: int | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def add(
        self, key: BatchKey, send: SingleSend, info: PublishInfo, *, is_alone: bool = False
    ) -> None:
        """Put a send into a batch.

        With `is_alone`, the batch contains only this send. `info` has the queues that accept
        messages of the topic, or of a priority in the topic. Sends to a chosen queue are sent in
        the order of these calls.
        """
        batch = self._open.get(key)
        if key.queue is not None:
            batch = self._last_of_queue(key.queue, batch, is_alone=is_alone)
        elif batch is not None and self._may_overtake(batch, info):
            batch = None
        if batch is None or not batch.take(send):
            batch = self._begin(key, info)
            batch.take(send)
        if self._wakes_at_ms is None or send.deadline_ms < self._wakes_at_ms:
            self._wake_at(send.deadline_ms)
        if batch.is_full or is_alone:
            del self._open[key]
            self._leave(self._windows[batch.queue.broker_name])

    async def drain(self) -> None:
        """Wait until every send has an outcome."""
        await self._idle.wait()

    async def abort(self, error: Exception) -> None:
        """Fail every send that has no outcome with `error`."""
        waiting = [batch for window in self._windows.values() for batch in window.waiting]
        for window in self._windows.values():
            window.waiting.clear()
        self._open.clear()
        self._abandon(waiting, error)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._abandon(list(self._live), error)  # batches whose task had not begun
        if self._timer is not None:
            self._timer.cancel()

    def take_back(self, queue: MessageQueue) -> list[SingleSend]:
        """Remove and return the waiting sends of message groups to `queue`, in order.

        The sends keep their shares of the budget.
        """
        window = self._windows[queue.broker_name]
        sends: list[SingleSend] = []
        for batch in [each for each in window.waiting if each.key.queue == queue]:
            if batch.key.is_group:
                window.waiting.remove(batch)
                if self._open.get(batch.key) is batch:
                    del self._open[batch.key]
                sends += batch.release()
                self._end(batch)
        return sends

    def _abandon(self, batches: Iterable[Batch], error: Exception) -> None:
        for batch in batches:
            for send in batch.sends:
                send.fail(error)
            self._end(batch)

    # ---- which batch ----

    def _last_of_queue(
        self, queue: MessageQueue, batch: Batch | None, *, is_alone: bool
    ) -> Batch | None:
        """Return the batch that the next send to a chosen queue may join; None for a new batch.

        Otherwise return None, and close the newest batch of the queue for further sends.
        """
        last = self._last.get(queue)
        if last is None or (last is batch and not is_alone):
            return batch
        if self._open.get(last.key) is last:
            del self._open[last.key]
        return None

    def _begin(self, key: BatchKey, info: PublishInfo) -> Batch:
        self._idle.clear()
        batch = Batch(key, key.queue or self._choose(info))
        self._open[key] = batch
        if key.queue is not None:
            self._last[key.queue] = batch
        window = self._windows.get(batch.queue.broker_name)
        if window is None:
            window = self._windows[batch.queue.broker_name] = _BrokerWindow()
        window.waiting.append(batch)
        self._live[batch] = None
        if not window.in_flight and not window.leaves_soon:
            window.leaves_soon = True
            self._start(self._end_of_turn(window))
        return batch

    def _choose(self, info: PublishInfo) -> MessageQueue:
        """Return the next queue. If its broker is busy, prefer a queue of an idle broker."""
        now_ms = self._clock.monotonic_ms() if self._fault is not None else 0
        queue = info.choose(None, self._fault, now_ms)
        if not self._is_idle(queue) and info.has_other(queue.broker_name):
            other = info.choose(queue.broker_name, self._fault, now_ms)
            if self._is_idle(other):
                return other
        return queue

    def _may_overtake(self, batch: Batch, info: PublishInfo) -> bool:
        """Return whether a send would be faster in a new batch for another broker.

        This is the case if the broker of `batch` has requests in flight and another broker of the
        topic is idle.
        """
        broker_name = batch.queue.broker_name
        return (
            info.has_other(broker_name)
            and self._windows[broker_name].in_flight > 0
            and any(self._is_idle(queue) for queue in info.one_of_each_broker)
        )

    def _is_idle(self, queue: MessageQueue) -> bool:
        window = self._windows.get(queue.broker_name)
        return window is None or window.is_idle

    # ---- when it leaves ----

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_of_turn(self, window: _BrokerWindow) -> None:
        """Start the batches of this loop iteration if no request is in flight.

        A task begins after the callbacks that were ready before it. A callback that creates a task
        would cost another iteration.
        """
        window.leaves_soon = False
        first = None if window.in_flight else self._take_first(window)
        if first is not None:
            while window.in_flight < WINDOW and (other := self._take_first(window)) is not None:
                self._start(self._carry(window, other))
            await self._carry(window, first)

    def _leave(self, window: _BrokerWindow) -> None:
        """Start full batches while the window of the broker allows more requests."""
        while window.in_flight < WINDOW and any(batch.is_full for batch in window.waiting):
            batch = self._take_first(window)
            if batch is None:
                return
            self._start(self._carry(window, batch))

    def _take_first(self, window: _BrokerWindow) -> Batch | None:
        """Take the oldest waiting batch whose queue is not busy, and mark the batch as in flight.

        Return None if no waiting batch can be sent.
        """
        for batch in window.waiting:
            if batch.key.queue not in window.busy_queues:
                break
        else:
            return None
        window.waiting.remove(batch)
        if self._open.get(batch.key) is batch:
            del self._open[batch.key]
        window.in_flight += 1
        if batch.key.queue is not None:
            window.busy_queues.add(batch.key.queue)
        return batch

    async def _carry(self, window: _BrokerWindow, batch: Batch | None) -> None:
        """Deliver a batch. After its answer, deliver the next waiting batch, until none waits."""
        while batch is not None:
            try:
                await self._deliver(batch)
            except BaseException:  # cancelled, or SystemExit: still send the waiting batches
                if (following := self._answered(window, batch)) is not None:
                    self._start(self._carry(window, following))
                raise
            batch = self._answered(window, batch)

    def _answered(self, window: _BrokerWindow, batch: Batch) -> Batch | None:
        """End a batch, and start full batches. Return the batch that is to be delivered next."""
        window.in_flight -= 1
        if batch.key.queue is not None:
            window.busy_queues.discard(batch.key.queue)
        self._end(batch)
        following = self._take_first(window) if window.in_flight < WINDOW else None
        self._leave(window)
        return following

    def _end(self, batch: Batch) -> None:
        del self._live[batch]
        queue = batch.key.queue
        if queue is not None and self._last.get(queue) is batch:
            del self._last[queue]
        self._budget.give_back(len(batch.sends), batch.size)
        if not self._live:
            self._idle.set()

    # ---- deadlines ----

    def _wake_at(self, deadline_ms: int) -> None:
        """Set the single timer for all batches. It stays set when batches end.

        Nearly all sends have the same timeout, so the timer is set once per timeout, not once per
        batch.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at_ms = deadline_ms
        left_ms = deadline_ms - self._clock.monotonic_ms()
        self._timer = self._loop.call_later(max(0, left_ms) / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = self._wakes_at_ms = None
        now_ms = self._clock.monotonic_ms()
        for batch in list(self._live):
            if batch.deadline_ms is not None and batch.deadline_ms <= now_ms:
                batch.expire(now_ms)
        deadlines_ms = [each.deadline_ms for each in self._live if each.deadline_ms is not None]
        if deadlines_ms:
            self._wake_at(min(deadlines_ms))
