"""Answer the checks of brokers: the program's `check` decides about an open transaction.

Up to four checks run at the same time, on threads or, for a coroutine function, in tasks. Up to
2,000 checks wait. If more arrive or `check` raises, the client does not answer, and the broker asks
again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Set
from contextlib import suppress
from typing import NamedTuple, cast

from aerobee.broker.v1 import client_pb2

from aerobee_client.message import ReceivedMessage
from aerobee_client.send_result import TransactionResolution
from aerobee_client.transactions.ends import WIRE_RESOLUTIONS, HalfMessage, TransactionEnds
from aerobee_wire.status import Code

log = logging.getLogger(__name__)

CONCURRENCY = 4
MAX_WAITING = 2_000

Check = Callable[[ReceivedMessage], TransactionResolution | Awaitable[TransactionResolution]]


class _Question(NamedTuple):
    half: HalfMessage
    message: ReceivedMessage


class TransactionChecks:
    """The checks of one producer.

    `running` holds the ids of transactions whose blocks run in this process and will end them.
    `timeout_s` is the time limit for an answer to reach the broker.
    """

    def __init__(
        self, check: Check, ends: TransactionEnds, running: Set[str], timeout_s: float
    ) -> None:
        self.dropped = 0  # checks that were dropped because the queue was full
        self._check = check
        self._ends = ends
        self._running = running
        self._timeout_s = timeout_s
        self._waiting: deque[_Question] = deque()
        self._asked: set[HalfMessage] = set()  # checks that wait or run
        self._tasks: set[asyncio.Task[None]] = set()
        self._workers = 0  # tasks that will look for another question
        self._is_coroutine = is_coroutine(check)

    def ask(self, broker_name: str, check: client_pb2.TransactionCheck) -> None:
        """Queue a check of a broker."""
        message = ReceivedMessage(check.message, broker_name)
        half = HalfMessage(
            message.topic,
            broker_name,
            check.transaction_id,
            check.queue_offset,
            message.tag,
            message.keys,
        )
        if half in self._asked or check.transaction_id in self._running:
            return
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            log.warning("a check was not answered: %d wait already: %s", MAX_WAITING, message)
            return
        self._asked.add(half)
        self._waiting.append(_Question(half, message))
        if self._workers < CONCURRENCY:
            self._workers += 1
            task = asyncio.get_running_loop().create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop without waiting for running checks, because the broker will ask another producer."""
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        try:
            while self._waiting:
                question = self._waiting.popleft()
                try:
                    await self._answer(question)
                finally:
                    self._asked.discard(question.half)
        finally:
            self._workers -= 1

    async def _answer(self, question: _Question) -> None:
        try:
            resolution = await self._resolution_of(question.message)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            _log_failed_check(question.message)  # a task inside the check was cancelled
            return
        except Exception:
            _log_failed_check(question.message)
            return
        if resolution in WIRE_RESOLUTIONS:
            ending = self._ends.end(question.half, resolution, self._timeout_s, from_check=True)
            ending.add_done_callback(_log_failure)

    async def _resolution_of(self, message: ReceivedMessage) -> TransactionResolution:
        if self._is_coroutine:
            answer = await cast("Awaitable[object]", self._check(message))
        else:
            answer = await _on_a_thread(self._check, message)
        return checked(answer, "check")


async def _on_a_thread(check: Check, message: ReceivedMessage) -> object:
    """Run `check` in a daemon thread and return its result.

    A check that never returns therefore does not keep the program alive.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[object] = loop.create_future()

    def settle(answer: object, failure: _CheckFailed | None) -> None:
        if future.done():
            return  # the producer is closed
        if failure is None:
            future.set_result(answer)
        else:
            future.set_exception(failure)

    def run() -> None:
        answer: object = None
        failure: _CheckFailed | None = None
        try:
            answer = _called(check, message)
        except _CheckFailed as error:
            failure = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, answer, failure)

    threading.Thread(target=run, name="transaction check", daemon=True).start()
    return await future


class _CheckFailed(Exception):
    """Raised if the program's `check` raises. `__cause__` is the error of the check."""


def _called(check: Check, message: ReceivedMessage) -> object:
    """Call the check. Convert every exception to _CheckFailed.

    This includes SystemExit, which would otherwise end the event loop.
    """
    try:
        return check(message)
    except BaseException as error:
        raise _CheckFailed(type(error).__name__) from error


def _log_failed_check(message: ReceivedMessage) -> None:
    log.exception("the check of %s failed: the broker will ask again", message)


def checked(answer: object, what: str) -> TransactionResolution:
    """Return the result of the program's function after a check of its type.

    Raises TypeError if it is not a TransactionResolution.
    """
    if not isinstance(answer, TransactionResolution):
        raise TypeError(
            f"{what} returned {type(answer).__name__}: it returns a TransactionResolution, "
            "UNKNOWN if it does not know"
        )
    return answer


def is_coroutine(function: Callable[..., object]) -> bool:
    """Return whether `function` is a coroutine function or an object with an async `__call__`."""
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _log_failure(done: asyncio.Future[None]) -> None:
    if done.cancelled() or (error := done.exception()) is None:
        return
    ended = getattr(error, "code", None) is Code.INVALID_TRANSACTION_ID
    log.log(logging.DEBUG if ended else logging.WARNING, "a check was not answered: %s", error)
