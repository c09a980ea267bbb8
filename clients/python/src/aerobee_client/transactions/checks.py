"""Check-back: a broker asks what became of a transaction that nobody has ended, and the program's
`check` answers.

Four checks run at a time, on threads or (a coroutine function) in tasks, and 2,000 wait. Beyond, or
when `check` raises, the answer is that it is not known: nothing is sent, and the broker asks again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Set
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, cast

from aerobee.broker.v1 import client_pb2

from aerobee_client.message import ReceivedMessage
from aerobee_client.send_result import TransactionResolution
from aerobee_client.transactions.ends import TransactionEnds
from aerobee_client.transactions.half_message import WIRE_RESOLUTIONS, HalfMessage
from aerobee_wire.status import Code

log = logging.getLogger(__name__)

CONCURRENCY = 4
MAX_WAITING = 2_000

Check = Callable[[ReceivedMessage], TransactionResolution | Awaitable[TransactionResolution]]


class _Question(NamedTuple):
    half: HalfMessage
    message: ReceivedMessage


class TransactionChecks:
    """`running`: the ids of transactions whose blocks run in this process, which will end them
    themselves. `timeout_s`: for an answer to reach the broker."""

    def __init__(
        self, check: Check, ends: TransactionEnds, running: Set[str], timeout_s: float
    ) -> None:
        self.dropped = 0  # for want of room
        self._check = check
        self._ends = ends
        self._running = running
        self._timeout_s = timeout_s
        self._waiting: deque[_Question] = deque()
        self._asked: set[HalfMessage] = set()  # waiting, or being checked
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: ThreadPoolExecutor | None = None
        if not is_coroutine(check):
            self._threads = ThreadPoolExecutor(CONCURRENCY, "transaction check")

    def ask(self, broker_name: str, check: client_pb2.TransactionCheck) -> None:
        """A broker asks."""
        message = ReceivedMessage(check.message, broker_name)
        half = HalfMessage(message.topic, broker_name, check.transaction_id, check.queue_offset)
        if half in self._asked or check.transaction_id in self._running:
            return
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            log.warning("a check was not answered: %d wait already: %s", MAX_WAITING, message)
            return
        self._asked.add(half)
        self._waiting.append(_Question(half, message))
        if len(self._tasks) < CONCURRENCY:
            task = asyncio.get_running_loop().create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends without the answers of checks that run: the broker asks somebody else."""
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        while self._waiting:
            question = self._waiting.popleft()
            try:
                await self._answer(question)
            finally:
                self._asked.discard(question.half)

    async def _answer(self, question: _Question) -> None:
        try:
            resolution = await self._resolution_of(question.message)
        except Exception:
            log.exception("the check of %s failed: the broker will ask again", question.message)
            return
        if resolution in WIRE_RESOLUTIONS:
            ending = self._ends.end(question.half, resolution, self._timeout_s)
            ending.add_done_callback(_log_failure)

    async def _resolution_of(self, message: ReceivedMessage) -> TransactionResolution:
        if self._threads is None:
            answer = await cast("Awaitable[object]", self._check(message))
        else:
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._threads, self._check, message)
        return checked(answer, "check")


def checked(answer: object, what: str) -> TransactionResolution:
    """The answer of the program's function. Raises TypeError."""
    if not isinstance(answer, TransactionResolution):
        raise TypeError(
            f"{what} returned {type(answer).__name__}: it returns a TransactionResolution, "
            "UNKNOWN when it cannot tell"
        )
    return answer


def is_coroutine(function: Callable[..., object]) -> bool:
    """Whether calling it makes a coroutine: also an object with an asynchronous `__call__`."""
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _log_failure(done: asyncio.Future[None]) -> None:
    if done.cancelled() or (error := done.exception()) is None:
        return
    ended = getattr(error, "code", None) is Code.INVALID_TRANSACTION_ID
    log.log(logging.DEBUG if ended else logging.WARNING, "a check was not answered: %s", error)
