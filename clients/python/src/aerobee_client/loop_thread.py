"""An asyncio loop in a background thread, for the synchronous classes. Each object has its own, so
that one may be made after a fork and used from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from aerobee_wire.status import Code, MqError

T = TypeVar("T")


class LoopThread:
    """A daemon thread: a program that forgets to close still ends."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
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
        """Runs it on the loop and waits. An interrupt (Ctrl-C) cancels it."""
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
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts it on the loop. Raises ILLEGAL_OPERATION when the thread does not run."""
        if self._loop is None:
            coroutine.close()
            raise MqError(
                Code.ILLEGAL_OPERATION,
                f"{self._name} is not running: call start() first, or use it in a with block",
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """Ends the loop and joins the thread. May be called twice."""
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
