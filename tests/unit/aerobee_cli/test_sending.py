"""`aerobee message send --count`: what is counted, how fast it sends, and how it is interrupted."""

from __future__ import annotations

import io
from concurrent.futures import Future
from typing import Any

import pytest

from aerobee_cli.progress import Progress
from aerobee_cli.sending import ManySends
from aerobee_client import Message, SendResult
from aerobee_wire.status import Code, MqError

MESSAGE = Message("orders", b"x")


class Sender:
    """Answers at once; sends whose number is in `failing` fail, and one raises an interrupt."""

    def __init__(self, failing: dict[int, Exception] | None = None, interrupt: int = -1) -> None:
        self.sent = 0
        self._failing = failing or {}
        self._interrupt = interrupt

    def send_async(self, message: Message) -> Future[SendResult]:
        if self.sent == self._interrupt:
            raise KeyboardInterrupt
        answer: Future[Any] = Future()
        if self.sent in self._failing:
            answer.set_exception(self._failing[self.sent])
        else:
            answer.set_result(None)
        self.sent += 1
        return answer


def run(sender: Sender, count: int, rate: float | None = None) -> tuple[Any, list[float]]:
    now_s, sleeps = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        now_s[0] += seconds

    sends = ManySends(sender, MESSAGE, count=count, rate=rate, now_s=lambda: now_s[0], sleep=sleep)
    return sends.run(Progress(io.StringIO(), lambda: now_s[0])), sleeps


def test_every_send_is_counted() -> None:
    done, sleeps = run(Sender(), 2_500)
    assert (done.sent, done.failed, sleeps) == (2_500, 0, [])


def test_a_rate_spreads_the_sends() -> None:
    done, sleeps = run(Sender(), 5, rate=10)
    assert sleeps == pytest.approx([0.1] * 4) and done.seconds == pytest.approx(0.4)


def test_failures_are_counted_and_the_first_is_kept() -> None:
    first = MqError(Code.SYSTEM_BUSY, "busy")
    done, _ = run(Sender({1: first, 2: MqError(Code.NO_PERMISSION, "no")}), 5)
    assert (done.sent, done.failed, done.error) == (3, 2, first)


def test_a_defect_is_not_counted_as_a_failure() -> None:
    with pytest.raises(ZeroDivisionError):
        run(Sender({0: ZeroDivisionError()}), 2)


def test_an_interrupt_ends_the_sends_and_counts_those_before() -> None:
    done, _ = run(Sender(interrupt=3), 10)
    assert (done.sent, done.is_interrupted) == (3, True)
