"""Send one message many times, for `aerobee message send --count`."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from aerobee_cli.progress import Progress
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import Message, SendResult

# Sends that wait for their answers. More would only take memory.
MAX_PENDING = 1_000


class Sender(Protocol):
    def send_async(self, message: Message) -> Future[SendResult]: ...


@dataclass(slots=True)
class Sent:
    """The result of a run. `error` is the first failure, or None."""

    sent: int = 0
    failed: int = 0
    seconds: float = 0.0
    error: MqError | None = None
    is_interrupted: bool = False


class ManySends:
    """Sends `message` up to `count` times, at most `rate` times a second (None: no limit)."""

    def __init__(
        self,
        sender: Sender,
        message: Message,
        *,
        count: int,
        rate: float | None,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sender = sender
        self._message = message
        self._count = count
        self._rate = rate
        self._now_s = now_s
        self._sleep = sleep
        self._pending: set[Future[SendResult]] = set()
        self._done = Sent()

    def run(self, progress: Progress) -> Sent:
        """Send the messages and wait for all answers. Ctrl-C ends it early."""
        began_s = self._now_s()
        try:
            for number in range(self._count):
                self._pace(number, began_s)
                self._pending.add(self._sender.send_async(self._message))
                self._collect(progress)
        except KeyboardInterrupt:
            self._done.is_interrupted = True
        while self._pending:
            self._count_done(wait(self._pending, return_when="FIRST_COMPLETED").done)
        self._done.seconds = self._now_s() - began_s
        return self._done

    def _pace(self, number: int, began_s: float) -> None:
        if self._rate is not None:
            early_s = began_s + number / self._rate - self._now_s()
            if early_s > 0:
                self._sleep(early_s)

    def _collect(self, progress: Progress) -> None:
        if len(self._pending) >= MAX_PENDING:
            wait(self._pending, return_when="FIRST_COMPLETED")
        self._count_done({future for future in self._pending if future.done()})
        finished = self._done.sent + self._done.failed
        progress.update(looked_at=finished, total=self._count, sent=self._done.sent)

    def _count_done(self, futures: set[Future[SendResult]]) -> None:
        self._pending -= futures
        for future in futures:
            error = future.exception()
            if error is None:
                self._done.sent += 1
            elif isinstance(error, MqError):
                self._done.failed += 1
                self._done.error = self._done.error or error
            else:
                raise error
