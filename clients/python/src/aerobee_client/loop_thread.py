"""An asyncio loop in a background thread, for the plain classes. Each object has its own, so that
it may be made after a fork and used from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from aerobee_wire.status import Code, MqError

T = TypeVar("T")


class LoopThread:
    """A daemon thread: it does not keep a program from ending."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            if self._loop is not None:
                return
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._run, args=(self._loop,), name=self._name, daemon=True
            )
            self._thread.start()

    def is_running(self) -> bool:
        return self._loop is not None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs `coroutine` on the loop and waits for its result. Ctrl-C cancels it."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise MqError(
                Code.ILLEGAL_OPERATION,
                f"a blocking call inside the loop of {self._name} would wait for itself: use the "
                "asynchronous class there",
            )
        future = self.submit(coroutine)
        try:
            return future.result()
        except CancelledError:
            if self._loop is None:
                raise self._not_running() from None
            raise
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts `coroutine` on the loop. Raises ILLEGAL_OPERATION when the thread does not run."""
        with self._lock:  # or the loop could end before it takes the coroutine
            if self._loop is None:
                coroutine.close()
                raise self._not_running()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """Ends the loop and joins the thread. May be called twice."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if loop is not None and self._thread is not None:
            self._thread.join()

    def _not_running(self) -> MqError:
        return MqError(
            Code.ILLEGAL_OPERATION,
            f"{self._name} is not running: call start() first, or use it in a with block",
        )

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            with suppress(SystemExit):  # raised by a task, whose result it is too
                loop.run_forever()
            with self._lock:
                self._loop = None
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
