"""Provide the base classes of the asyncio clients and of the plain classes.

Each plain class runs its asyncio client on a separate loop thread and waits for results. `send =
blocking(AsyncProducer.send)` in the body of a plain class defines a method. The method has the
signature and docstring of the coroutine, for type checkers and for `help()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
)
from functools import partial, update_wrapper, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from aerobee_client.runtime.fork import PROCESS
from aerobee_client.runtime.loop_thread import LoopThread
from aerobee_wire.status import MqError

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Callable[..., Any])


class AsyncClient:
    """Base class of asyncio clients. `async with` closes the client at its end."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        raise NotImplementedError


class StartedClient(AsyncClient):
    """Base class of asyncio clients with a start. `async with` starts and closes the client."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        raise NotImplementedError


class Done(Awaitable[None]):
    """An awaitable that is already done. A caller need not await it."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


C = TypeVar("C", bound=AsyncClient)
S = TypeVar("S", bound=StartedClient)


class Facade(Generic[C]):
    """Base class of plain classes, which use an asyncio client. Any thread may call its methods."""

    def __init__(self, client: C, thread_name: str) -> None:
        self._client = client
        self._loop = LoopThread(thread_name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client and end its thread. May be called more than once.

        Raises:
            MqError: ILLEGAL_OPERATION in a callback, because the call would wait for itself.
        """
        self._close(self._client.close)

    def _iterate(
        self,
        items: AsyncIterator[R],
        lost: Callable[[R | None], None] | None = None,
        *,
        until_closed: bool = False,
    ) -> Iterator[R]:
        """Yield the items of an asynchronous iterator of the client, each on demand.

        `lost` is used as in `LoopThread.run`; it gets None at the end of `items`. If the client is
        closed during the iteration, the iteration ends if `until_closed` is true. Otherwise it
        raises MqError with the code ILLEGAL_OPERATION.
        """

        stepping: asyncio.Task[Any] | None = None

        async def step() -> R | None:
            nonlocal stepping
            stepping = asyncio.current_task()
            return await anext(items, None)

        async def end() -> None:
            # After an interrupt, the step is being cancelled, and still runs the generator.
            if stepping is not None and not stepping.done():
                await asyncio.wait([stepping])
            if isinstance(items, AsyncGenerator):
                await items.aclose()

        until_closed = until_closed and self._loop.is_running()
        try:
            while (item := self._loop.run(step(), lost)) is not None:
                yield item
        except MqError:
            if not until_closed or self._loop.is_running():
                raise
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
    """Base class of plain classes whose client is started before use."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start the loop thread, and the client on its event loop.

        Raises:
            MqError: If the start of the client fails. The code is ILLEGAL_OPERATION in a child of a
                process that has used a client.
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
    """Return a method that runs `coroutine`, a coroutine function of the client, and waits for it.

    The method returns the result of the coroutine. If an interrupt, such as Ctrl-C, keeps the
    result from the caller, `lost` is called on the loop with the client and the result.
    """

    @wraps(coroutine)
    def method(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        client = self._client
        on_lost = None if lost is None else partial(lost, client)
        return self._loop.run(coroutine(client, *args, **kwargs), on_lost)

    return method


def like(original: Callable[..., Any]) -> Callable[[M], M]:
    """Return a decorator that gives a method the signature and docstring of `original`.

    `original` is the method of the asyncio client.
    """

    def decorated(method: M) -> M:
        update_wrapper(method, original)
        return method

    return decorated


def on_loop(
    function: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Facade[Any], P], R]:
    """Return a method that calls `function`, a function of the client that is not a coroutine.

    While the loop runs, the method calls the function on the loop, because only the loop may then
    use the state of the client.
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
    """Return a method that calls `function` as `on_loop` does, and waits for its awaitable.

    If the loop does not run, the awaitable is already done, and the method does not wait.
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
