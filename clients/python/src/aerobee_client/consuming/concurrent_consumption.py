"""Consuming the messages of many queues at a time, in no order: the listener runs, what it consumed
moves the queue's offset, what it refused goes back to the broker.

A message that the broker does not take back is consumed again here after 5 s.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from aerobee_client.clock import Clock
from aerobee_client.consuming.listener import Consume, Verdicts
from aerobee_client.consuming.offset_store import OffsetStore
from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.consuming.runners import Batch, Runner, TaskRunner, ThreadRunner
from aerobee_client.consuming.send_back import Rejection, SendBack
from aerobee_client.message import ReceivedMessage

log = logging.getLogger(__name__)

CONSUME_AGAIN_S = 5.0
TIMEOUT_DELAY_LEVEL = 3  # a message whose listener takes too long comes again after 10 s
SWEEP_INTERVAL_S = 60.0


class ConcurrentConsumption:
    def __init__(
        self,
        consume: Consume,
        offsets: OffsetStore,
        send_back: SendBack,
        clock: Clock,
        *,
        concurrency: int,
        batch_size: int,
        timeout_s: float,
    ) -> None:
        self._offsets = offsets
        self._send_back = send_back
        self._clock = clock
        self._batch_size = batch_size
        self._timeout_s = timeout_s
        runner = TaskRunner if consume.is_coroutine else ThreadRunner
        self._runner: Runner = runner(consume, concurrency, clock, self._done)
        self._open: set[Batch] = set()
        self._overdue: set[Batch] = set()
        # On their way back to the broker, and what to do when it does not take them.
        self._given: dict[ReceivedMessage, Callable[[], None]] = {}
        self._closing = False
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._runner.start()
        self._sweeper = asyncio.create_task(self._sweep_on(), name="consume timeout")

    def runs_on(self, thread: threading.Thread) -> bool:
        """Whether listeners run on `thread`."""
        return thread in self._runner.threads

    def runs_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether listeners run in `task`."""
        return task in self._runner.tasks

    def submit(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """`messages` were put into `process_queue`."""
        for start in range(0, len(messages), self._batch_size):
            batch = Batch(process_queue, list(messages[start : start + self._batch_size]))
            self._open.add(batch)
            self._runner.submit(batch)

    async def close(self, timeout_s: float) -> None:
        """Waits for the listeners that run, and until what they refused is given back."""
        self._closing = True
        try:
            if self._sweeper is not None:
                self._sweeper.cancel()
                await asyncio.gather(self._sweeper, return_exceptions=True)
            if not await self._runner.close(timeout_s):
                log.warning(
                    "listeners still run after %.1f s: their messages come again", timeout_s
                )
        finally:  # also when it is cancelled
            await self._send_back.drained()

    def _done(self, batch: Batch, verdicts: Verdicts | None) -> None:
        self._open.discard(batch)
        self._overdue.discard(batch)
        process_queue = batch.process_queue
        if verdicts is None or process_queue.dropped:
            return  # not consumed, or another member's by now: it is delivered again
        consumed: list[ReceivedMessage] = []
        for message, rejection in zip(batch.messages, verdicts, strict=True):
            if rejection is None:
                consumed.append(message)
            elif message in process_queue:
                refused = partial(self._refused, process_queue, message)
                self._give_back(process_queue, message, rejection, refused)
        if consumed:
            self._settle(process_queue, consumed)

    def _settle(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        self._offsets.advance(process_queue.queue, process_queue.remove(messages))

    def _give_back(
        self,
        process_queue: ProcessQueue,
        message: ReceivedMessage,
        rejection: Rejection,
        refused: Callable[[], None],
    ) -> None:
        """`refused` is called when the broker does not take it. A message that is on its way back
        already, because its listener took too long, is not given a second time: that would be a
        second retry of it."""
        on_its_way = message in self._given
        self._given[message] = refused
        if on_its_way:
            return

        def given(done: asyncio.Future[bool]) -> None:
            refused = self._given.pop(message)
            if process_queue.dropped or message not in process_queue:
                return
            if done.result():
                self._settle(process_queue, [message])
            elif not self._closing:
                refused()

        self._send_back.give(message, rejection).add_done_callback(given)

    def _refused(self, process_queue: ProcessQueue, message: ReceivedMessage) -> None:
        """The listener gets it once more."""
        message.reconsume_times += 1
        loop = asyncio.get_running_loop()
        loop.call_later(CONSUME_AGAIN_S, self._consume_again, process_queue, message)

    def _consume_again(self, process_queue: ProcessQueue, message: ReceivedMessage) -> None:
        if not self._closing and not process_queue.dropped and message in process_queue:
            self.submit(process_queue, [message])

    async def _sweep_on(self) -> None:
        while True:
            await asyncio.sleep(min(self._timeout_s, SWEEP_INTERVAL_S))
            self.sweep()

    def sweep(self) -> None:
        """Gives back the messages whose listener has run for longer than the consume timeout; what
        it answers later no longer counts. What the broker does not take, the next sweep gives back.
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
                    rejection = Rejection("ConsumeTimeout", text, TIMEOUT_DELAY_LEVEL)
                    # Its listener still runs, so it is not consumed again here meanwhile.
                    again = partial(self._overdue.discard, batch)
                    self._give_back(batch.process_queue, message, rejection, again)
