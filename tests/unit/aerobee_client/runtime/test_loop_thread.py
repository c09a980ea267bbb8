"""Calls of plain classes that an interrupt ends: what a call has brought is not lost."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading

import pytest

from aerobee_client.runtime.facade import AsyncClient, Facade, blocking
from aerobee_client.runtime.loop_thread import LoopThread
from aerobee_wire.status import Code, MqError
from support.codes import raises_code
from support.interrupts import interrupted_at


def interrupt() -> None:
    """As Ctrl-C: end the wait of the main thread."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


FILES = ("runtime/facade.py", "runtime/loop_thread.py")


class Numbers(AsyncClient):
    """Each call brings the next number."""

    def __init__(self) -> None:
        self.brought: list[int] = []
        self.lost: list[int] = []

    async def bring(self, turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        self.brought.append(len(self.brought))
        return self.brought[-1]

    async def settle(self) -> None: ...

    async def close(self) -> None: ...


class PlainNumbers(Facade[Numbers]):
    def __init__(self) -> None:
        self.numbers = Numbers()
        super().__init__(self.numbers, "test loop")
        self._loop.start()

    bring = blocking(Numbers.bring, lambda client, number: client.lost.append(number))
    settle = blocking(Numbers.settle)


@pytest.mark.parametrize("turns", [0, 3])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_interrupted_call_returns_its_result_or_passes_it_on(turns: int) -> None:
    got: list[int] = []
    with PlainNumbers() as plain:
        for line in itertools.count():
            with interrupted_at(line, *FILES) as places:
                try:
                    got.append(plain.bring(turns))
                except KeyboardInterrupt:
                    assert places
            plain.settle()
            numbers = plain.numbers
            assert sorted(got + numbers.lost) == numbers.brought, places
            if not places:
                break
    assert line > 15 and numbers.lost and got == [numbers.brought[-1]]


def test_interrupted_wait_cancels_the_coroutine() -> None:
    ended = threading.Event()

    async def wait() -> None:
        interrupt()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    loop = LoopThread("test loop")
    loop.start()
    with pytest.raises(KeyboardInterrupt):
        loop.run(wait())
    assert ended.wait(10)
    loop.stop()


def test_result_of_a_coroutine_that_ignores_its_cancellation_is_passed_on() -> None:
    lost: list[int] = []
    passed_on = threading.Event()

    async def wait() -> int:
        interrupt()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            return 7
        return 8

    def take(number: int) -> None:
        lost.append(number)
        passed_on.set()

    loop = LoopThread("test loop")
    loop.start()
    with pytest.raises(KeyboardInterrupt):
        loop.run(wait(), take)
    assert passed_on.wait(10) and lost == [7]
    loop.stop()


def test_failure_of_a_call_is_raised_and_not_passed_on() -> None:
    lost: list[int] = []

    async def fail() -> int:
        raise MqError(Code.INVALID_PARAMETER, "refused")

    loop = LoopThread("test loop")
    loop.start()
    with raises_code(Code.INVALID_PARAMETER):
        loop.run(fail(), lost.append)
    loop.stop()
    assert not lost
