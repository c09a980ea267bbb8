"""Combine many small calls to one peer into few large ones, clocked by its answers.

While no request is in flight, items leave at the end of the event loop turn, so that a lone caller
does not wait. Items that arrive while a request is in flight leave together after its answer. This
module uses no transport.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

I = TypeVar("I")  # noqa: E741  # item
O = TypeVar("O")  # noqa: E741  # outcome

# Sends the items of a request and returns the outcome of each, in order. If it raises, every item
# fails with that exception.
SendBatch = Callable[[Sequence[I]], Awaitable[Sequence[O]]]


class _Submission(NamedTuple, Generic[I, O]):
    items: Sequence[I]
    future: asyncio.Future[Sequence[O]]


class Batcher(Generic[I, O]):
    """Sends items in batches.

    `send` gets at most `max_items`; a larger submission is a request by itself.
    """

    def __init__(self, send: SendBatch[I, O], max_items: int) -> None:
        self._send = send
        self._max_items = max_items
        self._waiting: deque[_Submission[I, O]] = deque()
        self._sender: asyncio.Task[None] | None = None

    def submit(self, items: Sequence[I]) -> asyncio.Future[Sequence[O]]:
        """Queue items for one request. Items whose future is cancelled before that do not leave."""
        future: asyncio.Future[Sequence[O]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Submission(items, future))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_all())
        return future

    async def drain(self) -> None:
        """Wait until no item waits and no request is in flight."""
        while self._sender is not None:
            await asyncio.wait([self._sender])

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # items that become ready in this turn join
                batch = self._next()
                try:
                    outcomes = await self._send([item for one in batch for item in one.items])
                except Exception as error:
                    for one in batch:
                        if not one.future.done():
                            one.future.set_exception(error)
                else:
                    start = 0
                    for one in batch:
                        end = start + len(one.items)
                        if not one.future.done():
                            one.future.set_result(outcomes[start:end])
                        start = end
        finally:
            self._sender = None

    def _next(self) -> list[_Submission[I, O]]:
        batch: list[_Submission[I, O]] = []
        count = 0
        while self._waiting:
            one = self._waiting[0]
            if not one.future.done():
                count += len(one.items)
                if batch and count > self._max_items:
                    break
                batch.append(one)
            self._waiting.popleft()
        return batch
