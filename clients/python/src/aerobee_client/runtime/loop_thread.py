"""Run coroutines on the event loop of another thread, and wait for their results.

An interrupt, such as Ctrl-C, may end the wait at any moment: before the coroutine begins, while it
runs, or when it has its result. The loop then cancels the coroutine. A result that the waiting
thread did not get is passed to `lost`, so that no result disappears.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

from aerobee_client.runtime.fork import PROCESS
from aerobee_wire.status import MqError, illegal_operation

log = logging.getLogger(__name__)

R = TypeVar("R")


class ThreadCall(Generic[R]):
    """A call of a coroutine from another thread.

    The calling thread uses `wait`, and the event loop calls all other methods.
    """

    def __init__(
        self, coroutine: Coroutine[Any, Any, R], lost: Callable[[R], None] | None = None
    ) -> None:
        self._coroutine = coroutine
        self._lost = lost
        self._task: asyncio.Task[R] | None = None
        self._abandoned = False
        self.is_over = False
        # A plain lock, not a Future: an interrupted `Future.result` waits for a condition and may
        # raise RuntimeError instead of the KeyboardInterrupt.
        self._waiting = threading.Lock()
        self._waiting.acquire()

    @property
    def has_failed(self) -> bool:
        """True if the coroutine has ended with an error or was cancelled."""
        return self.is_over and self._task is not None and not _has_result(self._task)

    def start(self) -> None:
        if not self._abandoned:
            self._task = asyncio.get_running_loop().create_task(self._coroutine)
            self._task.add_done_callback(self._done)

    def abandon(self) -> None:
        """Cancel the coroutine, because the thread no longer waits.

        May be called more than once, and before `start`.
        """
        if self._abandoned:
            return
        self._abandoned = True
        if self._task is None:
            self._coroutine.close()
        elif self.is_over:
            self._pass_on()
        else:
            self._task.cancel()

    def wait(self) -> R:
        """Return the result of the coroutine, or raise its error."""
        self._waiting.acquire()
        assert self._task is not None
        try:
            return self._task.result()
        except BaseException:
            del self  # it and the traceback would keep each other alive
            raise

    def _done(self, _: asyncio.Task[R]) -> None:
        self.is_over = True
        if self._abandoned:
            self._pass_on()
        self._waiting.release()

    def _pass_on(self) -> None:
        if self._lost is not None and self._task is not None and _has_result(self._task):
            self._lost(self._task.result())


def _has_result(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and task.exception() is None


class LoopThread:
    """An event loop in a daemon thread, which does not keep the program alive.

    Each plain client has a loop thread of its own, so that any thread may use the client. In a
    forked child where clients are forbidden, all methods except `stop` raise MqError.
    """

    def __init__(self, name: str) -> None:
        PROCESS.check()
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        PROCESS.use()  # before any lock, because a lock may stay locked forever in a child process
        with self._lock:
            if self._loop is not None:
                return
            self._loop = asyncio.SelectorEventLoop()
            self._thread = threading.Thread(
                target=self._run, args=(self._loop,), name=self._name, daemon=True
            )
            self._thread.start()

    def is_running(self) -> bool:
        return self._loop is not None

    def run(self, coroutine: Coroutine[Any, Any, R], lost: Callable[[R], None] | None = None) -> R:
        """Run `coroutine` on the loop and return its result.

        An interrupt, such as Ctrl-C, cancels the coroutine. If the coroutine already has a result,
        `lost` is called with it on the loop.
        """
        call = ThreadCall(coroutine, lost)
        try:
            self.check_thread()
            self._begin(call)
            return call.wait()
        except asyncio.CancelledError:
            if self._loop is None:
                raise self._not_running() from None
            raise CancelledError from None
        except BaseException:
            self._abandon(call)
            del call  # it and the traceback would keep each other alive
            raise

    def _begin(self, call: ThreadCall[Any]) -> None:
        PROCESS.check()
        with self._lock:  # otherwise the loop could end before it accepts the call
            if self._loop is None:
                raise self._not_running()
            self._loop.call_soon_threadsafe(call.start)

    def _abandon(self, call: ThreadCall[Any]) -> None:
        if call.has_failed:
            return
        with self._lock:
            if self._loop is None or self.is_own_thread() or PROCESS.is_child:
                call.abandon()
            else:
                self._loop.call_soon_threadsafe(call.abandon)

    def submit(self, coroutine: Coroutine[Any, Any, R]) -> Future[R]:
        """Start `coroutine` on the loop, and return a future of its result.

        Raises MqError with the code ILLEGAL_OPERATION if the thread does not run.
        """
        if PROCESS.is_child:
            coroutine.close()
            PROCESS.check()
        with self._lock:  # otherwise the loop could end before it accepts the coroutine
            if self._loop is None:
                coroutine.close()
                raise self._not_running()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[[], None]) -> None:
        """Schedule `function` on the loop. Do nothing if the thread does not run."""
        with self._lock:
            if self._loop is not None and not PROCESS.is_child:
                self._loop.call_soon_threadsafe(function)

    def is_own_thread(self) -> bool:
        """Return whether the calling thread is the thread of the loop, which must not block."""
        return threading.current_thread() is self._thread

    def check_thread(self) -> None:
        """Raise MqError with the code ILLEGAL_OPERATION in the thread of the loop."""
        if self.is_own_thread():
            raise illegal_operation(
                f"a blocking call inside the loop of {self._name}, as in a callback or a coroutine "
                "that it runs, would wait for itself: use the asynchronous class, or call from "
                "another thread"
            )

    def stop(self) -> None:
        """End the loop and join the thread. May be called more than once.

        In a forked child, which does not have the thread, the call does nothing.
        """
        if PROCESS.is_child:
            return
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if loop is not None and self._thread is not None:
            self._thread.join()

    def _not_running(self) -> MqError:
        return illegal_operation(
            f"{self._name} is not running: call start() first, or use it in a with block"
        )

    def _is_ended_by_an_exit(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Run the loop until it ends. Return whether a SystemExit or KeyboardInterrupt ended it.

        Code of the application in a callback or task may raise these exceptions, which end any
        loop. The caller then runs the loop again, because other calls wait, and this thread must
        not end the program.
        """
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            log.exception("%s continues", self._name)
            return True
        return False

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while self._is_ended_by_an_exit(loop):
                pass
            with self._lock:
                self._loop = None
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
