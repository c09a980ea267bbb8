"""Processes in one virtual loop: each is killed, paused and gone on with as one.

A process is the context of its tasks and timers. What a killed one was about to do never happens:
no `finally`, no answer, no write. What a paused one was about to do waits for `resume`.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from support.clock.virtual_loop import VirtualLoop

T = TypeVar("T")

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """`number`: of its machine in the network."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_over = False
        self.is_paused = False
        self._waiting: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._context = contextvars.copy_context()
        self._context.run(PROCESS.set, self)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        loop = asyncio.get_running_loop()
        task = loop.create_task(work, context=self._context.copy())
        self._tasks.add(task)  # else nobody may hold it
        task.add_done_callback(self._tasks.discard)
        return task

    def kill(self) -> None:
        self.is_over = True

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_over = self.is_paused = False
        waiting, self._waiting = self._waiting, []
        for run in waiting:
            asyncio.get_running_loop().call_soon(run, context=contextvars.Context())

    def run(self, callback: Callable[..., object], *arguments: object) -> None:
        """Of a callback, in its context."""
        if self.is_paused or self.is_over:
            context = contextvars.copy_context()
            self._waiting.append(lambda: context.run(self.run, callback, *arguments))
        else:
            callback(*arguments)


class ProcessLoop(VirtualLoop):
    """`connect`: what a socket to "host:port" comes to."""

    def __init__(self, connect: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        super().__init__()
        self._connect = connect
        self._processes: list[Process] = []

    def process(self, number: int) -> Process:
        """A new one."""
        process = Process(number)
        self._processes.append(process)
        return process

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        callback, args = _guarded(callback, args, context)
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        callback, args = _guarded(callback, args, context)
        return super().call_at(when, callback, *args, context=context)

    async def create_connection(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        await self._connect(f"{host}:{port}")
        return _Connected(), factory()

    def end(self, task: asyncio.Task[Any]) -> None:
        """Runs `task`, then ends whatever is left of all processes; closes the loop."""
        try:
            self.run_until_complete(task)
        finally:
            self._end_tasks()
            self.close()

    def _end_tasks(self) -> None:
        """Also those of killed processes, which wait for what was never to happen."""
        self.set_exception_handler(lambda loop, context: None)
        for _ in range(200):
            left = asyncio.all_tasks(self)
            for task in left:
                task.cancel()
            for process in self._processes:
                self.call_soon(process.resume, context=contextvars.Context())
            if left:
                self.run_until_complete(asyncio.sleep(0.001))


class _Connected(asyncio.Transport):
    def close(self) -> None:
        """Nobody has read from it."""

    def is_closing(self) -> bool:
        return True


def _guarded(
    callback: Any, args: tuple[Any, ...], context: contextvars.Context | None
) -> tuple[Any, tuple[Any, ...]]:
    process = PROCESS.get() if context is None else context.get(PROCESS)
    return (callback, args) if process is None else (process.run, (callback, *args))
