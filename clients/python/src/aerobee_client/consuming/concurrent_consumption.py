"""Consume the messages of many queues concurrently, without any order.

A consumed message advances the offset of its queue. A rejected message is sent back to the broker.
If the broker does not accept the message, the listener gets it again, after 5 s or after the delay
that the listener requested.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from aerobee_client.consuming.failure_reports import FailureReports
from aerobee_client.consuming.listener import Consume, Verdicts
from aerobee_client.consuming.offsets import OffsetTable
from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.consuming.runners import Batch, Runner, TaskRunner, ThreadRunner
from aerobee_client.consuming.send_back import CONSUME_TIMEOUT, Outcome, Rejection, Rejections
from aerobee_client.message import ReceivedMessage
from aerobee_client.options.consumer import ConsumerOptions
from aerobee_client.runtime.clock import Clock

log = logging.getLogger(__name__)

CONSUME_AGAIN_S = 5.0
TIMEOUT_DELAY_LEVEL = 3  # a message whose listener timed out is redelivered after 10 s
SWEEP_INTERVAL_S = 60.0


class ConcurrentConsumption:
    def __init__(
        self,
        consume: Consume,
        offsets: OffsetTable,
        rejections: Rejections,
        clock: Clock,
        options: ConsumerOptions,
        *,
        reports: FailureReports,
    ) -> None:
        self._offsets = offsets
        self._rejections = rejections
        self._reports = reports
        self._clock = clock
        self._batch_size = options.consume_message_batch_max_size
        self._timeout_s = options.consume_timeout.total_seconds()
        runner = TaskRunner if consume.is_coroutine else ThreadRunner
        self._runner: Runner = runner(consume, options.concurrency, clock, self._done)
        self.tally = self._runner.tally
        self.settled_failures = 0  # messages that were sent back or skipped
        self._open: set[Batch] = set()
        self._overdue: set[Batch] = set()
        # Batches of paused queues, which were not passed to a listener.
        self._held: dict[ProcessQueue, list[Batch]] = {}
        # Functions to call if the broker does not accept a message that is being sent back.
        self._rejected: dict[ReceivedMessage, Callable[[], None]] = {}
        self._closing = False
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._runner.start()
        self._sweeper = asyncio.create_task(self._sweep_forever(), name="consume timeout")

    def runs_on(self, thread: threading.Thread) -> bool:
        return thread in self._runner.threads

    def runs_in(self, task: asyncio.Task[Any] | None) -> bool:
        return task in self._runner.tasks

    def submit(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Pass `messages`, which are in `process_queue`, to the listener."""
        for start in range(0, len(messages), self._batch_size):
            batch = Batch(process_queue, list(messages[start : start + self._batch_size]))
            self._open.add(batch)
            self._runner.submit(batch)

    def set_concurrency(self, concurrency: int) -> None:
        self._runner.set_concurrency(concurrency)

    def resume(self, process_queue: ProcessQueue) -> None:
        """Pass the held messages of a queue to the listener after its pause has ended."""
        for batch in self._held.pop(process_queue, ()):
            self._again(batch)

    async def close(self, timeout_s: float) -> None:
        """Wait for running listeners, and until the messages that they rejected are sent back."""
        self._closing = True
        try:
            if self._sweeper is not None:
                self._sweeper.cancel()
                await asyncio.gather(self._sweeper, return_exceptions=True)
            if not await self._runner.close(timeout_s):
                log.warning(
                    "listeners still run after %.1f s: their messages are redelivered", timeout_s
                )
        finally:  # also when it is cancelled, perhaps twice
            try:
                await self._rejections.drain()
            finally:
                await self._reports.close()

    def _done(self, batch: Batch, verdicts: Verdicts | None) -> None:
        self._open.discard(batch)
        if self._overdue:
            self._overdue.discard(batch)
        process_queue = batch.process_queue
        if process_queue.dropped:
            self._held.pop(process_queue, None)
            return  # released: its next owner gets the messages
        if verdicts is None:  # skipped
            if process_queue.paused:
                self._held.setdefault(process_queue, []).append(batch)
            elif not self._closing:  # resumed in the meantime
                self._again(batch)
            return
        if not any(verdicts):
            self._remove(process_queue, batch.messages)
            return
        consumed: list[ReceivedMessage] = []
        for message, rejection in zip(batch.messages, verdicts, strict=True):
            if rejection is None:
                consumed.append(message)
            elif message in process_queue:
                self._reports.log_failure(message, rejection)
                on_refusal = partial(self._consume_later, process_queue, message, rejection)
                self._reject(process_queue, message, rejection, on_refusal)
        if consumed:
            self._remove(process_queue, consumed)

    def _again(self, batch: Batch) -> None:
        self._open.add(batch)
        self._runner.submit(batch)

    def _remove(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        self._offsets.advance(process_queue.queue, process_queue.remove(messages))

    def _reject(
        self,
        process_queue: ProcessQueue,
        message: ReceivedMessage,
        rejection: Rejection,
        on_refusal: Callable[[], None],
    ) -> None:
        """Send `message` back. Call `on_refusal` if the broker does not accept it.

        A message that is being sent back already, because its listener timed out, is not sent a
        second time. Otherwise the group would get two retries of it.
        """
        pending = message in self._rejected
        self._rejected[message] = on_refusal
        if pending:
            return

        attempt = message.reconsume_times + 1

        def on_done(done: asyncio.Future[Outcome]) -> None:
            outcome = done.result()
            self.settled_failures += outcome is not Outcome.KEPT
            self._reports.settle(
                message,
                rejection,
                attempt,
                died=outcome is Outcome.DEAD,
                then=partial(settle, outcome),
            )

        def settle(outcome: Outcome) -> None:
            on_refusal = self._rejected.pop(message)
            if process_queue.dropped or message not in process_queue:
                return
            if outcome is not Outcome.KEPT:
                self._remove(process_queue, [message])
            elif not self._closing:
                on_refusal()

        self._rejections.send(message, rejection).add_done_callback(on_done)

    def _consume_later(
        self, process_queue: ProcessQueue, message: ReceivedMessage, rejection: Rejection
    ) -> None:
        """Pass a rejected message to the listener again after a delay.

        The delay is the one that the listener asked for, or CONSUME_AGAIN_S.
        """
        if rejection.counted:
            message.count_failure()
        delay_s = CONSUME_AGAIN_S if rejection.delay_ms is None else rejection.delay_ms / 1000
        loop = asyncio.get_running_loop()
        loop.call_later(delay_s, self._consume_again, process_queue, message)

    def _consume_again(self, process_queue: ProcessQueue, message: ReceivedMessage) -> None:
        if not self._closing and not process_queue.dropped and message in process_queue:
            self.submit(process_queue, [message])

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(min(self._timeout_s, SWEEP_INTERVAL_S))
            self.sweep()

    def sweep(self) -> None:
        """Send back the messages whose listener has run longer than the consume timeout.

        The later verdict of the listener is ignored. If the broker does not accept a message, the
        next sweep sends it back.
        """
        before_ms = self._clock.monotonic_ms() - int(self._timeout_s * 1000)
        for batch in self._open - self._overdue:
            if not 0 < batch.started_ms <= before_ms or batch.process_queue.dropped:
                continue
            self._overdue.add(batch)
            log.warning("the listener takes more than %.0f s: %s", self._timeout_s, batch.messages)
            text = f"the listener ran for more than {self._timeout_s:.0f} s"
            for message in batch.messages:
                if message in batch.process_queue:
                    rejection = Rejection(CONSUME_TIMEOUT, text, TIMEOUT_DELAY_LEVEL)
                    # Its listener still runs: it must not get the message a second time.
                    on_refusal = partial(self._overdue.discard, batch)
                    self._reject(batch.process_queue, message, rejection, on_refusal)
