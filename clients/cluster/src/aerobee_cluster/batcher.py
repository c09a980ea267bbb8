"""Combine many small calls into few large ones.

At most one batch is in flight, so items arrive in the order of submission. If no batch is in
flight, an item is sent in the next iteration of the event loop, so a single caller does not wait.
Items submitted while a batch is in flight are queued, and sent together after the reply.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

I = TypeVar("I")  # noqa: E741  # item
O = TypeVar("O")  # noqa: E741  # outcome

MAX_ITEMS = 64
MAX_BYTES = 256 * 1024

# A function that sends the items of a batch. It returns the outcome of each item, in their order: a
# value or an exception. If the function raises, every item of the batch fails with that exception.
SendBatch = Callable[[Sequence[I]], Awaitable[Sequence[O | Exception]]]


@dataclass(slots=True)
class _Submission(Generic[I, O]):
    items: Sequence[I]
    size: int
    # Its result is one outcome after `submit`, and a list of outcomes after `submit_all`.
    future: asyncio.Future[Any]
    is_single: bool


class Batcher(Generic[I, O]):
    """Sends items in batches through `send_batch`.

    A batch has at most `max_items` items and `max_bytes` bytes. A submission that exceeds a limit
    is sent as a batch of its own.
    """

    def __init__(
        self,
        send_batch: SendBatch[I, O],
        *,
        max_items: int = MAX_ITEMS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._send_batch = send_batch
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._queue: deque[_Submission[I, O]] = deque()
        self._sender: asyncio.Task[None] | None = None

    def submit(self, item: I, size: int) -> asyncio.Future[O]:
        """Queue an item of `size` bytes. Return a future for the outcome of the item."""
        future: asyncio.Future[O] = asyncio.get_running_loop().create_future()
        self._queue.append(_Submission((item,), size, future, True))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())
        return future

    def submit_all(
        self, items: Sequence[I], size: int = 0
    ) -> asyncio.Future[Sequence[O | Exception]]:
        """Queue items for the same batch. Return a future for their outcomes, in order.

        `size` is the sum of their bytes, or 0 if only the number of items is limited.
        """
        future: asyncio.Future[Sequence[O | Exception]]
        future = asyncio.get_running_loop().create_future()
        self._queue.append(_Submission(items, size, future, False))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())
        return future

    async def drain(self) -> None:
        """Wait until no item is queued and no batch is in flight."""
        while self._sender is not None:
            await asyncio.wait([self._sender])

    async def close(self) -> None:
        """Cancel the batch in flight and every queued item."""
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
            self._sender = None  # a task that is cancelled before its first step does not
        while self._queue:
            self._queue.popleft().future.cancel()

    async def _send(self) -> None:
        try:
            while self._queue:
                # Wait for one iteration of the event loop, so that items submitted in it join the
                # batch. A single item loses almost no time. This saves the broker about a quarter
                # of its work under load.
                await asyncio.sleep(0)
                batch = self._next_batch()
                if not batch:
                    break
                try:
                    items = [item for submission in batch for item in submission.items]
                    outcomes = await self._send_batch(items)
                    self._resolve(batch, outcomes)
                except Exception as error:  # fails the whole batch
                    for submission in batch:
                        _fail(submission.future, error)
                except asyncio.CancelledError:
                    for submission in batch:
                        submission.future.cancel()
                    raise
        finally:
            self._sender = None

    def _next_batch(self) -> list[_Submission[I, O]]:
        """Remove the next batch from the queue and return it; empty if all were cancelled.

        Cancelled submissions are dropped. Their callers submit them again, so keeping them would
        let the queue grow while a broker hangs.
        """
        batch: list[_Submission[I, O]] = []
        size = count = 0
        while self._queue:
            submission = self._queue[0]
            if not submission.future.cancelled():
                size, count = size + submission.size, count + len(submission.items)
                if batch and (count > self._max_items or size > self._max_bytes):
                    break
                batch.append(submission)
            self._queue.popleft()
        return batch

    @staticmethod
    def _resolve(batch: Sequence[_Submission[I, O]], outcomes: Sequence[O | Exception]) -> None:
        if len(outcomes) != sum(len(submission.items) for submission in batch):
            raise ValueError("there must be an outcome of each item")
        start = 0
        for submission in batch:
            end = start + len(submission.items)
            outcome = outcomes[start] if submission.is_single else outcomes[start:end]
            start = end
            if isinstance(outcome, Exception):
                _fail(submission.future, outcome)
            elif not submission.future.done():  # else its caller was cancelled
                submission.future.set_result(outcome)


class Batchers(dict[str, Batcher[I, O]], Generic[I, O]):
    """The batcher of each broker, by broker name. A batcher is created at first use.

    `send_batch` receives the broker name and the items.
    """

    def __init__(
        self,
        send_batch: Callable[[str, Sequence[I]], Awaitable[Sequence[O | Exception]]],
        *,
        max_items: int = MAX_ITEMS,
    ) -> None:
        super().__init__()
        self._send_batch = send_batch
        self._max_items = max_items

    def __missing__(self, broker_name: str) -> Batcher[I, O]:
        send_batch = partial(self._send_batch, broker_name)
        batcher = self[broker_name] = Batcher(send_batch, max_items=self._max_items)
        return batcher


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
