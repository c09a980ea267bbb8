"""The outcome of a send that was started and not awaited, as its callback gets it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from aerobee_client.send_result import SendResult

log = logging.getLogger(__name__)

Callback = Callable[[SendResult | None, BaseException | None], None]
F = TypeVar("F", asyncio.Future[SendResult], Future[SendResult])


def report(done: asyncio.Future[SendResult] | Future[SendResult], callback: Callback) -> None:
    """Calls `callback(result, error)` with the outcome of a future that is done."""
    if done.cancelled():
        callback(None, asyncio.CancelledError("the send was cancelled"))
        return
    error = done.exception()
    callback(done.result() if error is None else None, error)


def report_on_thread(done: Future[SendResult], callback: Callback) -> None:
    """As `report`. What the callback raises is logged, a SystemExit too: it would end the loop of
    the producer, and with it every other send."""
    try:
        report(done, callback)
    except BaseException:
        log.exception("the callback of a send failed")


def refused(future: F, error: Exception, callback: Callback | None) -> F:
    """The future of a send that an interceptor refused."""
    future.set_exception(error)
    if callback is not None:
        report(future, callback)
    return future
