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
        return loop.create_task(work, context=self._context.copy())

    def hold(self, task: asyncio.Task[Any]) -> None:
        """Nobody else may, once it is killed."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def kill(self) -> None:
        self.is_over = True

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_over = self.is_paused = False
        waiting, self._waiting = self._waiting, []
        for run in waiting:
            asyncio.get_running_loop().call_soon(run, context=contextvars.Context())

    def run(self, callback: Callback) -> None:
        """In its context."""
        if self.is_paused or self.is_over:
            context = contextvars.copy_context()
            self._waiting.append(lambda: context.run(self.run, callback))
        else:
            callback()


class Callback:
    """What a loop was asked to call, unless its handle is cancelled meanwhile."""

    def __init__(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments
        self._handle: asyncio.Handle | None = None

    def of(self, handle: asyncio.Handle) -> None:
        self._handle = handle

    def __call__(self) -> None:
        if self._handle is None or not self._handle.cancelled():
            self._function(*self._arguments)


class ProcessLoop(VirtualLoop):
    """`connect`: what a socket to "host:port" comes to."""

    def __init__(self, connect: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        super().__init__()
        self._connect = connect
        self._processes: list[Process] = []
        self.set_task_factory(_make_task)

    def process(self, number: int) -> Process:
        """A new one."""
        process = Process(number)
        self._processes.append(process)
        return process

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        process = _process_of(context)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        called = Callback(callback, args)
        handle = super().call_soon(process.run, called, context=context)
        called.of(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        process = _process_of(context)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        called = Callback(callback, args)
        handle = super().call_at(when, process.run, called, context=context)
        called.of(handle)
        return handle

    async def create_connection(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        await self._connect(f"{host}:{port}")
        return _Connected(), factory()

    def end(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work`, then ends whatever is left of all processes; closes the loop."""
        try:
            self.run_until_complete(work)
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
            self.run_until_complete(asyncio.sleep(0.001))
            if not left and not asyncio.all_tasks(self):
                return


class _Connected(asyncio.Transport):
    def close(self) -> None:
        """Nobody has read from it."""

    def is_closing(self) -> bool:
        return True


def _make_task(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(work, loop=loop, **named)
    process = _process_of(named.get("context"))
    if process is not None:
        process.hold(task)
    return task


def _process_of(context: contextvars.Context | None) -> Process | None:
    return PROCESS.get() if context is None else context.get(PROCESS)
