"""Consume queues in order.

The listener gets a message after it has consumed the previous message of the same ordered group. It
gets messages only while this member has the lock of the queue. A message that fails is retried in
place. After the last attempt the broker dead-letters it, and the next message follows.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from aerobee_client.consume_result import DEAD_LETTER_LEVEL
from aerobee_client.consuming.failure_reports import FailureReports
from aerobee_client.consuming.listener import Consume, Verdicts
from aerobee_client.consuming.offsets import OffsetStore
from aerobee_client.consuming.order.lock_keeper import QueueLock
from aerobee_client.consuming.order.ordered_queue import OrderedGroup, OrderedQueue
from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.consuming.runners import Batch, Runner, TaskRunner, ThreadRunner
from aerobee_client.consuming.send_back import Outcome, Rejection, Rejections
from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.consumer import MAX_SUSPEND_S, MIN_SUSPEND_S, ConsumerOptions
from aerobee_client.runtime.clock import Clock
from aerobee_wire import properties as names
from aerobee_wire.status import Code, MqError, illegal_operation

log = logging.getLogger(__name__)

# Limits of one batch, so that the offset advances soon.
MAX_MESSAGES = 128
MAX_MS = 20
DEAD_LETTER_AGAIN_S = 1.0  # after the broker did not accept a dead letter


@dataclass(slots=True, eq=False, kw_only=True)
class ListenerBatch(Batch):
    """Messages of one ordered group, for consecutive calls of the listener.

    Each call gets `call_size` messages. A batch saves a round trip to the event loop for each call.
    It ends when a message is rejected, the queue is stopped, its lock is not trusted, or MAX_MS
    have passed. `call` and `call_async` return verdicts only for the messages that the listener
    got, which are the first ones of the batch.
    """

    queue: OrderedQueue
    group: OrderedGroup
    call_size: int
    clock: Clock

    def call(self, consume: Consume) -> Verdicts:
        found: Verdicts = []
        for messages in self._calls(found):
            found += consume.call(messages)
        return found

    async def call_async(self, consume: Consume) -> Verdicts:
        found: Verdicts = []
        for messages in self._calls(found):
            found += await consume.call_async(messages)
        return found

    def _calls(self, found: Verdicts) -> Iterator[list[ReceivedMessage]]:
        """Yield the messages of each listener call.

        The caller must add the verdicts of a call to `found` before it asks for the next messages.
        """
        until_ms = self.clock.monotonic_ms() + MAX_MS
        for start in range(0, len(self.messages), self.call_size):
            if not self.queue.may_go_on():
                return
            yield self.messages[start : start + self.call_size]
            rejected = any(found[start:])
            if rejected or self.clock.monotonic_ms() >= until_ms:
                return


class OrderlyConsumption:
    """Consumes queues in order. `lock_of` returns the lock of a queue that is pulled."""

    def __init__(
        self,
        consume: Consume,
        offsets: OffsetStore,
        rejections: Rejections,
        clock: Clock,
        options: ConsumerOptions,
        *,
        reports: FailureReports,
        lock_of: Callable[[MessageQueue], QueueLock],
    ) -> None:
        self._offsets = offsets
        self._rejections = rejections
        self._reports = reports
        self._clock = clock
        self._options = options
        self._lock_of = lock_of
        self._suspend_s = options.suspend_time.total_seconds()
        runner = TaskRunner if consume.is_coroutine else ThreadRunner
        self._runner: Runner = runner(consume, options.concurrency, clock, self._done)
        self.tally = self._runner.tally
        self.settled_failures = 0  # messages that were dead-lettered
        self._queues: dict[MessageQueue, OrderedQueue] = {}
        self._closed = asyncio.Event()

    def start(self) -> None:
        self._runner.start()

    def runs_on(self, thread: threading.Thread) -> bool:
        return thread in self._runner.threads

    def runs_in(self, task: asyncio.Task[Any] | None) -> bool:
        return task in self._runner.tasks

    def submit(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Pass `messages`, which are in `process_queue`, to the listener."""
        queue = self._queues.get(process_queue.queue)
        if queue is None or queue.process_queue is not process_queue:
            queue = self._open(process_queue)
        self._begin(queue, queue.add(messages))

    def set_concurrency(self, concurrency: int) -> None:
        self._runner.set_concurrency(concurrency)

    def resume(self, process_queue: ProcessQueue) -> None:
        """Pass the messages of a queue to the listener after its pause has ended."""
        queue = self._queues.get(process_queue.queue)
        if queue is not None and queue.process_queue is process_queue:
            self._begin_all(queue)

    async def close(self, timeout_s: float) -> None:
        """Wait until running listeners have returned and pending dead letters are stored."""
        for queue in self._queues.values():
            queue.stop()
        try:
            if not await self._runner.close(timeout_s):
                log.warning(
                    "listeners still run after %.1f s: their messages are redelivered, perhaps "
                    "while they run",
                    timeout_s,
                )
        finally:  # also when it is cancelled, perhaps twice
            try:
                await self._rejections.drain()
                await self._reports.close()
            finally:
                self._closed.set()

    # ---- queues ----

    async def finish(self, process_queue: ProcessQueue) -> None:
        """Stop a queue. Wait until its listeners have ended, or until `close` has ended."""
        queue = self._queues.get(process_queue.queue)
        if queue is None:
            return
        queue.stop()
        waits = [
            asyncio.create_task(queue.until_idle()),
            asyncio.create_task(self._closed.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if self._queues.get(process_queue.queue) is queue:
            del self._queues[process_queue.queue]

    def _open(self, process_queue: ProcessQueue) -> OrderedQueue:
        before = self._queues.get(process_queue.queue)
        if before is not None:
            before.stop()
        queue = OrderedQueue(
            process_queue,
            self._lock_of(process_queue.queue),
            _message_group if self._options.order_by == "message_group" else _one_group,
            before if before is not None and before.is_busy else None,
        )
        self._queues[process_queue.queue] = queue
        return queue

    def _begin(self, queue: OrderedQueue, groups: Iterable[OrderedGroup]) -> None:
        """Pass the messages of all ready `groups` to the listener."""
        if not queue.is_open or self._closed.is_set():
            return
        if not queue.lock.is_trusted():
            queue.lock.when_renewed(partial(self._begin_all, queue))
            return
        automatic = self._options.auto_commit
        call_size = self._options.consume_message_batch_max_size
        for group in groups:
            if not group.is_ready:
                continue
            if group.dying is not None:
                self._dead_letter(queue, group, group.dying)
                continue
            count = min(len(group.waiting), MAX_MESSAGES if automatic else call_size)
            queue.begin(group)
            self._runner.submit(
                ListenerBatch(
                    queue.process_queue,
                    [group.waiting[index] for index in range(count)],
                    queue=queue,
                    group=group,
                    call_size=call_size,
                    clock=self._clock,
                )
            )

    def _begin_all(self, queue: OrderedQueue) -> None:
        self._begin(queue, queue.groups())

    # ---- the listener's answers ----

    def _done(self, batch: Batch, verdicts: Verdicts | None) -> None:
        assert isinstance(batch, ListenerBatch)
        queue, group = batch.queue, batch.group
        rolled_back = queue.end(group)
        if queue.process_queue.dropped:
            self._give_way(queue)
            return
        if rolled_back:
            group.suspend(self._suspend_s, partial(self._begin, queue, [group]))
            return
        found = verdicts or []
        passed = next((index for index, verdict in enumerate(found) if verdict), len(found))
        self._consumed(queue, group, group.take(passed))
        if passed < len(found):
            rejection = found[passed]
            assert rejection is not None
            self._rejected(queue, group, rejection)
        else:
            self._begin(queue, [group])
        queue.drop_if_over(group)

    def _give_way(self, queue: OrderedQueue) -> None:
        """Start the next process queue after the last listener of a dropped one has ended."""
        message_queue = queue.process_queue.queue
        current = self._queues.get(message_queue)
        if current is queue and not queue.is_busy:
            del self._queues[message_queue]
        elif current is not None and current is not queue:
            self._begin_all(current)

    def _consumed(
        self, queue: OrderedQueue, group: OrderedGroup, messages: Sequence[ReceivedMessage]
    ) -> None:
        if not self._options.auto_commit:
            process_queue = queue.process_queue
            group.consumed += [message for message in messages if message in process_queue]
        elif messages:
            self._settle(queue, messages)

    def _settle(self, queue: OrderedQueue, messages: Sequence[ReceivedMessage]) -> None:
        process_queue = queue.process_queue
        self._offsets.advance(process_queue.queue, process_queue.remove(messages))

    def _rejected(self, queue: OrderedQueue, group: OrderedGroup, rejection: Rejection) -> None:
        """Handle a failure of the first message: retry it in place, or dead-letter it."""
        message = group.waiting[0]
        if message not in queue.process_queue:  # its listener has committed it
            group.take(1)
            self._begin(queue, [group])
            return
        self._reports.log_failure(message, rejection)
        attempt = message.reconsume_times + 1
        if rejection.counted:
            message.count_failure()
        is_last = rejection.counted and self._is_last_attempt(queue, message)
        if rejection.delay_level < 0 or is_last:
            group.give_up(rejection)
            self._begin(queue, [group])
            return
        pause_s = self._suspend_s
        if rejection.delay_ms is not None:
            pause_s = min(max(rejection.delay_ms / 1000, MIN_SUSPEND_S), MAX_SUSPEND_S)

        def suspend() -> None:
            queue.end(group)
            if queue.process_queue.dropped:
                self._give_way(queue)
            else:
                group.suspend(pause_s, partial(self._begin, queue, [group]))

        queue.begin(group)
        self._reports.settle(message, rejection, attempt, died=False, then=suspend)

    def _is_last_attempt(self, queue: OrderedQueue, message: ReceivedMessage) -> bool:
        limit = self._options.max_reconsume_times
        if limit is None:
            limit = queue.lock.max_reconsume_times
        return 0 <= limit < message.reconsume_times

    def _dead_letter(self, queue: OrderedQueue, group: OrderedGroup, rejection: Rejection) -> None:
        """Dead-letter the first message. The group continues after the broker has stored it."""
        message = group.waiting[0]

        def on_done(done: asyncio.Future[Outcome]) -> None:
            died = done.result() is not Outcome.KEPT
            self.settled_failures += died
            settle = partial(on_settled, died=died)
            if died:
                attempt = message.reconsume_times
                self._reports.settle(message, rejection, attempt, died=True, then=settle)
            else:
                settle()

        def on_settled(*, died: bool) -> None:
            rolled_back = queue.end(group)
            if queue.process_queue.dropped:
                self._give_way(queue)
                return
            if died:
                group.remove(message)
                self._settle(queue, [message])
            if rolled_back or not died:
                pause_s = self._suspend_s if died else DEAD_LETTER_AGAIN_S
                group.suspend(pause_s, partial(self._begin, queue, [group]))
            else:
                self._begin(queue, [group])
            queue.drop_if_over(group)

        queue.begin(group)
        dead = replace(
            rejection, delay_level=DEAD_LETTER_LEVEL, reconsume_times=message.reconsume_times
        )
        self._rejections.send(message, dead).add_done_callback(on_done)

    # ---- commits by the listener ----

    async def commit(self, message: ReceivedMessage | None) -> None:
        """Commit the messages that the listener has consumed, of every queue.

        If `message` is given, commit only its ordered group, up to `message`. Raises MqError with
        the code QUEUE_LOCK_NOT_HELD if the member has lost the queue of `message`.
        """
        chosen = self._chosen(message)
        for queue, group in chosen:
            self._settle(queue, group.commit(message))
            queue.drop_if_over(group)
        await self._offsets.commit({queue.process_queue.queue for queue, _ in chosen})

    def roll_back(self, message: ReceivedMessage | None) -> None:
        """Pass uncommitted messages to the listener again, after the suspend time.

        If `message` is given, roll back only its ordered group. Raises MqError like `commit`.
        """
        for queue, group in self._chosen(message):
            group.roll_back()
            if not group.busy:
                group.suspend(self._suspend_s, partial(self._begin, queue, [group]))

    def _chosen(self, message: ReceivedMessage | None) -> list[tuple[OrderedQueue, OrderedGroup]]:
        if self._options.auto_commit:
            raise illegal_operation(
                "this consumer commits what its listener has consumed: give it auto_commit=False"
            )
        if message is None:
            return [(queue, group) for queue in self._queues.values() for group in queue.groups()]
        name = MessageQueue(message.stored_topic, message.broker_name, message.queue_id)
        queue = self._queues.get(name)
        group = queue.group_of(message) if queue is not None else None
        if (
            queue is None
            or group is None
            or message not in queue.process_queue
            or not group.has_given(message)
        ):
            raise MqError(
                Code.QUEUE_LOCK_NOT_HELD,
                f"cannot commit {message!r}: it is already committed, or another member now has "
                f"{name} and gets its uncommitted messages",
            )
        return [(queue, group)]


def _one_group(_: ReceivedMessage) -> str:
    return ""


def _message_group(message: ReceivedMessage) -> str:
    """Return the message group of a message.

    Messages without a message group form one group together, as in the official SDKs.
    """
    return message.properties.get(names.SHARDING_KEY, "")
