"""Report failed deliveries to the log, and to the function `on_error` of the application.

The first failure of a message and its death are warnings. A listener that fails on every message
fails thousands of times a minute, so failures of one cause share one traceback a minute.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from aerobee_client.consuming.send_back import Rejection
from aerobee_client.message import ReceivedMessage
from aerobee_client.observing import application
from aerobee_client.observing.consume_failure import ConsumeFailure, OnError

log = logging.getLogger(__name__)

THROTTLE_S = 60.0


@dataclass(slots=True)
class _Window:
    """The time after a warning in which equal events are only counted."""

    timer: asyncio.TimerHandle
    left_out: int = 0


class FailureReports:
    """Reports the failed deliveries of one consumer. Use it on the event loop.

    `listener` and `grave` are names for the log: those of the listener, and of the place of
    messages that died. `on_error` is called with one failure at a time.
    """

    def __init__(self, listener: str, grave: str, on_error: OnError | None = None) -> None:
        self._listener = listener
        self._grave = grave
        self._on_error = on_error
        self._windows: dict[str, _Window] = {}
        self._turn = asyncio.Lock()
        self._notifying: set[asyncio.Task[None]] = set()

    def log_failure(self, message: ReceivedMessage, rejection: Rejection) -> None:
        """Log a failed delivery, before the broker is notified of it."""
        if rejection.is_verdict:
            return
        first = message.reconsume_times == 0
        log.log(
            logging.WARNING if first and self._is_due(_failure(rejection)) else logging.INFO,
            "the listener %s failed on %r at attempt %d",
            self._listener,
            message,
            message.reconsume_times + 1,
            exc_info=rejection.error,
        )

    def settle(
        self,
        message: ReceivedMessage,
        rejection: Rejection,
        attempt: int,
        *,
        died: bool,
        then: Callable[[], None],
    ) -> None:
        """Report a failed delivery whose consequence is known, and then call `then`.

        `then` waits for `on_error`. So a consumer whose `on_error` is slow pulls less, and the
        number of waiting reports has the limits of the pulled messages.
        """
        if died:
            self._log_death(message, rejection, attempt)
        if self._on_error is None or (rejection.is_verdict and not died):
            then()
            return
        failure = ConsumeFailure(
            message, rejection.error, rejection.reason, rejection.description, attempt, died
        )
        task = asyncio.create_task(self._notify(self._on_error, failure), name="on_error")
        self._notifying.add(task)

        def on_done(done: asyncio.Task[None]) -> None:
            self._notifying.discard(done)
            then()

        task.add_done_callback(on_done)

    async def close(self) -> None:
        """Wait until `on_error` has returned, but not longer than for one call of it."""
        try:
            if self._notifying:
                _, left = await asyncio.wait(self._notifying, timeout=application.TIMEOUT_S)
                if left:
                    log.error("%d failures were not passed to on_error: it hangs", len(left))
        finally:
            late = list(self._notifying)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            for event in list(self._windows):
                self._end_window(event)

    def _log_death(self, message: ReceivedMessage, rejection: Rejection, attempt: int) -> None:
        due = self._is_due(f"died of {_cause(rejection)}")
        error = None if rejection.is_verdict else rejection.error
        if due and error is not None and not self._is_due(_failure(rejection), count=False):
            error = None  # its traceback was logged less than a minute ago
        log.log(
            logging.WARNING if due else logging.INFO,
            "%r died at attempt %d and is now %s: %s: %s",
            message,
            attempt,
            self._grave,
            rejection.reason,
            rejection.description,
            exc_info=error,
        )

    def _is_due(self, event: str, *, count: bool = True) -> bool:
        """Return whether to warn of an event now. If so, equal events are not due for a minute."""
        window = self._windows.get(event)
        if window is not None:
            window.left_out += count
            return False
        end = asyncio.get_running_loop().call_later(THROTTLE_S, partial(self._end_window, event))
        self._windows[event] = _Window(end)
        return True

    def _end_window(self, event: str) -> None:
        window = self._windows.pop(event)
        window.timer.cancel()
        if window.left_out:
            log.warning("%d more messages %s", window.left_out, event)

    async def _notify(self, on_error: OnError, failure: ConsumeFailure) -> None:
        try:
            async with self._turn:
                await application.call_in_time(on_error, failure)
        except TimeoutError:
            log.error(
                "on_error takes more than %.0f s: the consumer continues", application.TIMEOUT_S
            )
        except Exception:
            log.exception("on_error failed on %r", failure.message)


def _failure(rejection: Rejection) -> str:
    return f"failed with {_cause(rejection)}"


def _cause(rejection: Rejection) -> str:
    """Return the type of an exception and the place that raised it, or another reason."""
    traceback = None if rejection.error is None else rejection.error.__traceback__
    if traceback is None:
        return rejection.reason
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{rejection.reason} at {traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
