"""Implement send_batch, which sends any number of messages of any topics in several requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from aerobee_client.errors import PartialSend
from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.send_result import SendResult
from aerobee_client.sending import send_request
from aerobee_client.sending.accumulator import fail
from aerobee_client.sending.budget import Budget
from aerobee_client.sending.order.ordered_sends import OrderedSends
from aerobee_client.sending.order.queue_choice import (
    QueueChoice,
    Selector,
    SendOrdering,
    check_selected,
)
from aerobee_client.sending.sender import Sender
from aerobee_wire.status import MqError

# The maximum number of requests of one batch in flight, unless all go to one queue.
BATCH_WINDOW = 4


class BatchSend:
    """One call of send_batch.

    If a message is invalid, the constructor raises an error that names its index, and nothing is
    sent.
    """

    def __init__(
        self,
        sender: Sender,
        ordered: OrderedSends,
        messages: Sequence[Message],
        choice: QueueChoice,
        timeout_s: float,
        *,
        budget: Budget,
    ) -> None:
        self._sender = sender
        self._budget = budget
        self._ordered = ordered
        self._choice = choice
        self._timeout_s = timeout_s
        self._run = sender.prepare_batch(messages, choice.queue)
        self._in_order = _in_order(messages, choice)
        self._others: Sequence[int] = range(len(messages))
        if self._in_order:
            self._others = sorted(set(self._others).difference(self._in_order))
        self._results: list[SendResult | None] = [None] * len(messages)
        self._failures: list[Exception] = []

    async def deliver(self) -> list[SendResult]:
        """Send the messages and return their results in order.

        Raises PartialSend if some messages were stored and others were not.
        """
        if not self._in_order:
            await self._deliver_runs(self._others)
        else:
            await asyncio.gather(
                self._deliver_in_order(self._in_order), self._deliver_runs(self._others)
            )
        results, failures = self._results, self._failures
        if failures and any(results) and isinstance(failures[0], MqError):
            raise PartialSend(results, failures[0])
        if failures:
            raise failures[0]
        return [result for result in results if result is not None]

    async def _deliver_runs(self, indexes: Sequence[int]) -> None:
        """Send requests of many messages. After a failure, start no further requests."""
        # To keep the order in one queue, send one request after the other.
        window = asyncio.Semaphore(BATCH_WINDOW if self._choice.queue is None else 1)

        async def deliver(run: list[int], size: int) -> None:
            async with window:
                if self._failures:
                    return
                try:
                    stored = await self._deliver_run(run, size)
                except MqError as error:
                    self._failures.append(error)
                else:
                    for index, result in zip(run, stored, strict=True):
                        self._results[index] = result

        runs = send_request.runs(self._run.messages, indexes)
        await asyncio.gather(*(deliver(run, size) for run, size in runs))

    async def _deliver_run(self, indexes: Sequence[int], size: int) -> Sequence[SendResult]:
        """Send one request after its bodies (`size` bytes) and properties fit in the budget."""
        part, timeout_s, count = self._run.part(indexes), self._timeout_s, len(indexes)
        size += sum(map(len, part.properties))
        if not self._budget.try_take(size, count):
            time_s = asyncio.get_running_loop().time
            began_s = time_s()
            await self._budget.take(size, timeout_s, count)
            timeout_s = max(0.0, timeout_s - (time_s() - began_s))
        try:
            return await self._sender.send_run(part, self._choice.queue, timeout_s)
        finally:
            self._budget.give_back(count, size)

    async def _deliver_in_order(self, indexes: Sequence[int]) -> None:
        """Send messages as single sends, each after the earlier messages of the same order."""
        loop, selector = asyncio.get_running_loop(), self._choice.selector
        futures: list[asyncio.Future[SendResult]] = [loop.create_future() for _ in indexes]
        for place, send in enumerate(self._run.part(indexes).sends()):
            own = None if selector is None else _Selecting(selector, indexes[place], futures)
            self._ordered.accept(send, SendOrdering(own), self._timeout_s, futures[place])
        for index, outcome in zip(
            indexes, await asyncio.gather(*futures, return_exceptions=True), strict=True
        ):
            if isinstance(outcome, Exception):
                self._failures.append(outcome)
            elif isinstance(outcome, SendResult):
                self._results[index] = outcome


class _Selecting(NamedTuple):
    """The selector of one message of a batch.

    The queues of all messages are selected before the first one is sent. If a selector raises or
    returns an invalid queue, the whole batch fails.
    """

    selector: Selector
    place: int
    futures: Sequence[asyncio.Future[SendResult]]

    def __call__(self, message: Message, queues: Sequence[MessageQueue]) -> MessageQueue:
        try:
            return check_selected(self.selector(message, queues), message)
        except Exception as error:  # may be any error of the application's selector
            if isinstance(error, MqError):
                error.add_context(f"message {self.place} of the batch, of which nothing was sent")
            for future in self.futures:
                fail(future, error)
            raise


def _in_order(messages: Sequence[Message], choice: QueueChoice) -> list[int]:
    """Return the indexes of messages that keep an order.

    Raises MqError like `QueueChoice.ordering`.
    """
    if choice.selector is None:
        indexes = [index for index, message in enumerate(messages) if message.order_key]
    else:
        indexes = list(range(len(messages)))
    for index in indexes:
        try:
            choice.ordering(messages[index])
        except MqError as error:
            error.add_context(f"message {index} of the batch, of which nothing was sent")
            raise
    return indexes
