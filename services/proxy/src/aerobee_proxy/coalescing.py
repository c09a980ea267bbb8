"""Many small calls made into few large ones, clocked by the replies. Knows no transport.

While nothing is under way an item leaves in the next turn of the loop, so that a lone caller waits
for nobody; what comes meanwhile leaves together when the reply is there. One batch is under way at
a time, so items arrive in the order they came in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

I = TypeVar("I")  # noqa: E741  # item
O = TypeVar("O")  # noqa: E741  # outcome

MAX_ITEMS = 64
MAX_BYTES = 256 * 1024

# The outcome of each item, in their order: a value, or the exception of that item. Raising fails
# every item alike.
SendBatch = Callable[[Sequence[I]], Awaitable[Sequence[O | Exception]]]


@dataclass(slots=True)
class _Waiting(Generic[I, O]):
    item: I
    size: int
    outcome: asyncio.Future[O]


class Coalescer(Generic[I, O]):
    """`send_batch` gets at most 64 items or 256 KB; an item that is larger goes alone."""

    def __init__(self, send_batch: SendBatch[I, O]) -> None:
        self._send_batch = send_batch
        self._line: deque[_Waiting[I, O]] = deque()
        self._sender: asyncio.Task[None] | None = None

    async def put(self, item: I, size: int) -> O:
        """The outcome of the item, once the batch that it left with is answered."""
        return await self.place(item, size)

    def place(self, item: I, size: int) -> asyncio.Future[O]:
        """Like `put`, without waiting: items of one caller keep their order."""
        outcome: asyncio.Future[O] = asyncio.get_running_loop().create_future()
        self._line.append(_Waiting(item, size, outcome))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())
        return outcome

    async def close(self) -> None:
        """Gives up what is under way and in line."""
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
        while self._line:
            self._line.popleft().outcome.cancel()

    async def _send(self) -> None:
        try:
            while self._line:
                # One turn of the loop: what is ready by now comes along, and a lone item loses
                # nothing by it. Spares the broker about a quarter of its work under load.
                await asyncio.sleep(0)
                batch = self._take()
                try:
                    outcomes = await self._send_batch([one.item for one in batch])
                except Exception as error:  # told to every caller of this batch
                    outcomes = [error] * len(batch)
                except asyncio.CancelledError:
                    for one in batch:
                        one.outcome.cancel()
                    raise
                for one, outcome in zip(batch, outcomes, strict=True):
                    _settle(one.outcome, outcome)
        finally:
            self._sender = None

    def _take(self) -> list[_Waiting[I, O]]:
        first = self._line.popleft()
        batch, size = [first], first.size
        while self._line and len(batch) < MAX_ITEMS and size + self._line[0].size <= MAX_BYTES:
            size += self._line[0].size
            batch.append(self._line.popleft())
        return batch


def _settle(future: asyncio.Future[O], outcome: O | Exception) -> None:
    if future.done():  # its caller left
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
