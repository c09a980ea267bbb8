"""Pass the outcome of a send that was not awaited to its future or callback."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import _base as states
from typing import TypeVar

from aerobee_client.send_result import SendResult

log = logging.getLogger(__name__)

Callback = Callable[[SendResult | None, BaseException | None], None]
F = TypeVar("F", asyncio.Future[SendResult], Future[SendResult])


_OPEN = frozenset({states.PENDING, states.RUNNING})
_CANCELLED = frozenset({states.CANCELLED, states.CANCELLED_AND_NOTIFIED})


class ThreadFuture(Future[SendResult]):
    """A faster `concurrent.futures.Future`, which creates its condition variable on demand.

    Creating the condition variable takes longer than a whole send. Only a thread that waits for the
    future needs it, and most sends use a callback instead. The methods of this class handle the
    common cases and call those of Future for the others. Both use the same lock.
    """

    def __init__(self) -> None:
        # The fields of a Future, without its condition.
        self._lock = threading.RLock()
        self._made: threading.Condition | None = None
        self._state = states.PENDING
        self._result: SendResult | None = None
        self._exception: BaseException | None = None
        self._waiters = []
        self._done_callbacks: list[Callable[[Future[SendResult]], object]] = []

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # made when asked for
        with self._lock:
            if self._made is None:
                self._made = threading.Condition(self._lock)
            return self._made

    def done(self) -> bool:
        return self._state not in _OPEN

    def cancelled(self) -> bool:
        return self._state in _CANCELLED

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._exception if self._state == states.FINISHED else super().exception(timeout)

    def result(self, timeout: float | None = None) -> SendResult:
        if self._state == states.FINISHED and self._result is not None:
            return self._result
        return super().result(timeout)

    def set_running_or_notify_cancel(self) -> bool:
        with self._lock:
            if self._state == states.PENDING:
                self._state = states.RUNNING
                return True
        return super().set_running_or_notify_cancel()

    def set_result(self, result: SendResult) -> None:
        with self._lock:
            # without a condition, no thread waits
            is_direct = self._made is None and self._state in _OPEN
            if is_direct:
                self._result = result
                self._state = states.FINISHED
        if not is_direct:
            super().set_result(result)
            return
        for callback in self._done_callbacks:
            try:
                callback(self)
            except BaseException:  # see report_on_thread
                log.exception("a callback of %r failed", self)

    def add_done_callback(self, fn: Callable[[Future[SendResult]], object]) -> None:
        with self._lock:
            if self._state in _OPEN:
                self._done_callbacks.append(fn)
                return
        super().add_done_callback(fn)


def report(done: asyncio.Future[SendResult] | Future[SendResult], callback: Callback) -> None:
    """Call `callback(result, error)` with the outcome of a finished future."""
    if done.cancelled():
        callback(None, asyncio.CancelledError("the send was cancelled"))
        return
    error = done.exception()
    callback(done.result() if error is None else None, error)


def report_on_thread(done: Future[SendResult], callback: Callback) -> None:
    """Call the callback as `report` does, and log any exception that the callback raises.

    A SystemExit is logged too, because the other sends of the request would otherwise not get an
    outcome.
    """
    try:
        report(done, callback)
    except BaseException:
        log.exception("the callback of a send failed")


def refused(future: F, error: Exception, callback: Callback | None) -> F:
    """Fail the future of a send that an interceptor refused, call the callback, and return it."""
    future.set_exception(error)
    if callback is not None:
        report(future, callback)
    return future
