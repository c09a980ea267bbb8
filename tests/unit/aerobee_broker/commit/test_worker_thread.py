"""The worker thread: order, results, failures, and its end.

On a real loop, since the virtual one has no threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import pytest

from aerobee_broker.commit.worker_thread import WorkerThread

T = TypeVar("T")


@pytest.fixture
def thread() -> Iterator[WorkerThread]:
    thread = WorkerThread("worker")
    yield thread
    thread.close()


async def done(thread: WorkerThread, job: Callable[[], T]) -> T:
    return await thread(job)


def test_jobs_run_on_the_thread_in_order(thread: WorkerThread) -> None:
    ran: list[tuple[int, str]] = []

    def note(number: int) -> None:
        ran.append((number, threading.current_thread().name))

    async def give() -> None:
        await [thread(partial(note, number)) for number in range(20)][-1]

    asyncio.run(give())
    assert ran == [(number, "worker") for number in range(20)]


def test_results_and_errors_are_returned(thread: WorkerThread) -> None:
    def fails() -> None:
        raise OSError(5, "broken")

    assert asyncio.run(done(thread, lambda: 7)) == 7
    with pytest.raises(OSError):
        asyncio.run(done(thread, fails))
    assert asyncio.run(done(thread, lambda: 8)) == 8, "a failure does not end the thread"


def test_cancelling_the_wait_does_not_stop_the_job(thread: WorkerThread) -> None:
    go, ran = threading.Event(), threading.Event()

    def work() -> None:
        go.wait()
        ran.set()

    async def give_up() -> None:
        job = asyncio.ensure_future(thread(work))
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        go.set()
        assert await thread(ran.is_set)

    asyncio.run(give_up())


def test_close_waits_for_the_jobs_and_takes_no_more() -> None:
    thread = WorkerThread("worker")
    ran: list[int] = []

    async def close() -> None:
        jobs = [thread(partial(ran.append, number)) for number in range(5)]
        thread.close()
        assert ran == [0, 1, 2, 3, 4]
        await asyncio.gather(*jobs)
        with pytest.raises(RuntimeError):
            thread(lambda: 1)

    asyncio.run(close())


def test_a_result_for_a_closed_loop_is_dropped(thread: WorkerThread) -> None:
    go = threading.Event()

    async def leave_it() -> None:
        thread(go.wait)

    asyncio.run(leave_it())
    go.set()
    assert asyncio.run(done(thread, lambda: 7)) == 7
