"""Provide what the asyncio clients share, and the base of the plain classes.

Each plain class runs its asyncio client on a loop thread of its own and waits for results.

`send = blocking(AsyncProducer.send)` in the body of a plain class makes a method that has the
coroutine's signature and docstring, for type checkers and for `help()`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
)
from concurrent.futures import CancelledError, Future
from contextvars import Context
from functools import partial, update_wrapper, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, TypeVarTuple

from aerobee_client.runtime.fork import PROCESS
from aerobee_client.runtime.thread_call import ThreadCall
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)

GRPC_MODULE = "grpc._cython.cygrpc"  # the module of the callbacks that grpc.aio passes to a loop

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")
M = TypeVar("M", bound=Callable[..., Any])


class _Loop(asyncio.SelectorEventLoop):
    """A loop that ignores reports of gRPC about cancelled calls after it was closed.

    gRPC makes such reports in the loop of another client, which would log the RuntimeError.
    """

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if callback.__module__ != GRPC_MODULE:
                raise
            dropped = asyncio.Handle(callback, args, self, context)
            dropped.cancel()
            return dropped


class LoopThread:
    """An event loop in a daemon thread, which does not keep the program from ending.

    Each facade has its own, so that it may be used from any thread. Where the fork rule forbids
    clients, it refuses everything except `stop`.
    """

    def __init__(self, name: str) -> None:
        PROCESS.check()
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        PROCESS.use()  # before any lock: in a child process it may stay taken forever
        with self._lock:
            if self._loop is not None:
                return
            self._loop = _Loop()
            self._thread = threading.Thread(
                target=self._run, args=(self._loop,), name=self._name, daemon=True
            )
            self._thread.start()

    def is_running(self) -> bool:
        return self._loop is not None

    def run(self, coroutine: Coroutine[Any, Any, R], lost: Callable[[R], None] | None = None) -> R:
        """Run `coroutine` on the loop and return its result.

        An interrupt, such as Ctrl-C, cancels the coroutine. If it has a result by then, `lost` is
        called with that on the loop.
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
            del call  # the traceback would keep it, and it keeps the exception
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
        """Start `coroutine` on the loop. Raises ILLEGAL_OPERATION if the thread does not run."""
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
        """Return whether the caller is the thread of the loop, which must not block."""
        return threading.current_thread() is self._thread

    def check_thread(self) -> None:
        """Raise ILLEGAL_OPERATION in the thread of the loop."""
        if self.is_own_thread():
            raise MqError(
                Code.ILLEGAL_OPERATION,
                f"a blocking call inside the loop of {self._name}, as in a callback or a coroutine "
                "that it runs, would wait for itself: use the asynchronous class, or call from "
                "another thread",
            )

    def stop(self) -> None:
        """End the loop and join the thread. May be called twice.

        In a forked child, which lacks the thread, it does nothing.
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
        return MqError(
            Code.ILLEGAL_OPERATION,
            f"{self._name} is not running: call start() first, or use it in a with block",
        )

    def _is_ended_by_an_exit(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Run the loop. Return whether a SystemExit or KeyboardInterrupt ended it.

        Code of the application in a callback or task may raise these, which end any loop. The
        caller then runs the loop again, because other calls wait, and this thread must not end the
        program.
        """
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            log.exception("%s goes on", self._name)
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


class AsyncClient:
    """Base of asyncio clients. `async with` closes it at the end."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        raise NotImplementedError


class StartedClient(AsyncClient):
    """Base of asyncio clients with a start. `async with` starts and closes it."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        raise NotImplementedError


class Done(Awaitable[None]):
    """An awaitable that is done. A caller need not await it."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


C = TypeVar("C", bound=AsyncClient)
S = TypeVar("S", bound=StartedClient)


class Facade(Generic[C]):
    """A plain class over `client`. Any thread may call it."""

    def __init__(self, client: C, thread_name: str) -> None:
        self._client = client
        self._loop = LoopThread(thread_name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client and end its thread. May be called twice.

        Raises:
            MqError: ILLEGAL_OPERATION in a callback, which would wait for itself.
        """
        self._close(self._client.close)

    def _iterate(
        self, items: AsyncIterator[R], lost: Callable[[R | None], None] | None = None
    ) -> Iterator[R]:
        """Yield the items of the client, each when the caller asks for it.

        `lost`: see `LoopThread.run`. None is passed at the end of `items`.
        """

        async def step() -> R | None:
            return await anext(items, None)

        async def end() -> None:
            if isinstance(items, AsyncGenerator):
                await items.aclose()

        try:
            while (item := self._loop.run(step(), lost)) is not None:
                yield item
        finally:
            if self._loop.is_running():
                self._loop.run(end())

    def _close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._loop.is_running() and not PROCESS.is_child:  # in a child, the parent closes it
            self._loop.check_thread()
            try:
                self._loop.run(close())
            finally:
                self._loop.stop()


class StartedFacade(Facade[S]):
    """A plain class over a client that is started before use."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start the thread, and the client on it.

        Raises:
            MqError: The errors of the client's start, and ILLEGAL_OPERATION in a child of a process
                that has used a client.
        """
        self._loop.check_thread()
        self._loop.start()
        try:
            self._loop.run(self._client.start())
        except BaseException:
            self._loop.stop()
            raise


def blocking(
    coroutine: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
    lost: Callable[[Any, R], None] | None = None,
) -> Callable[Concatenate[Facade[Any], P], R]:
    """Return a method that runs `coroutine`, a coroutine function of the client.

    The method returns the result of the coroutine. `lost` is called on the loop with the client and
    a result that an interrupt, such as Ctrl-C, kept from the caller.
    """

    @wraps(coroutine)
    def method(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        client = self._client
        on_lost = None if lost is None else partial(lost, client)
        return self._loop.run(coroutine(client, *args, **kwargs), on_lost)

    return method


def like(original: Callable[..., Any]) -> Callable[[M], M]:
    """Give a method of a plain class the signature and docstring of the client's method."""

    def decorated(method: M) -> M:
        update_wrapper(method, original)
        return method

    return decorated


def on_loop(
    function: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Facade[Any], P], R]:
    """Return a method that calls `function`, a plain function of the client.

    While the loop runs, the method calls it on the loop, because the state of the client then
    belongs to the loop.
    """

    @wraps(function)
    def method(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not self._loop.is_running():
            return function(self._client, *args, **kwargs)

        async def call() -> R:
            return function(self._client, *args, **kwargs)

        return self._loop.run(call())

    return method


def settled(
    function: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[Facade[Any], P], R | None]:
    """Return a method that calls `function` as `on_loop` does, and waits for the awaitable.

    While the loop does not run, the awaitable is done, and the method does not wait.
    """

    @wraps(function)
    def method(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R | None:
        if not self._loop.is_running():
            function(self._client, *args, **kwargs)
            return None

        async def call() -> R:
            return await function(self._client, *args, **kwargs)

        return self._loop.run(call())

    return method
