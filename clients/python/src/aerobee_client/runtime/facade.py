"""Provide the base classes of the asyncio clients, and of the plain classes without asyncio.

Each plain class runs its asyncio client on an event loop in a thread of its own, and waits for the
results.

`send = blocking(AsyncProducer.send)` in the body of a plain class makes a method. It has the
signature and docstring of the coroutine function, for type checkers and `help()`.
"""

from __future__ import annotations

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
    """Base of asyncio clients. `async with` closes the client at the end of the block."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        raise NotImplementedError


class StartedClient(AsyncClient):
    """Base of asyncio clients that are started before use. `async with` starts and closes them."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        raise NotImplementedError


class Done(Awaitable[None]):
    """An awaitable that returns at once. A caller may omit the await."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


C = TypeVar("C", bound=AsyncClient)
S = TypeVar("S", bound=StartedClient)


class Facade(Generic[C]):
    """Base of classes that run an asyncio client for programs without asyncio.

    Any thread may call the methods.
    """

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
            MqError: With the code ILLEGAL_OPERATION in a callback of this client, because `close`
                would wait for the callback.
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

        Args:
            items: The iterator.
            lost: Called with an item that an interrupt kept from the caller; see `LoopThread.run`.
                The argument is None at the end of `items`.
            until_closed: True to end the iteration when the client is closed. False to raise
                MqError with the code ILLEGAL_OPERATION then.
        """

        async def step() -> R | None:
            return await anext(items, None)

        async def end() -> None:
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
    """Base of plain classes that run an asyncio client with a start, such as a producer.

    `with` starts and closes the client.
    """

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start the thread, and the client on it.

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
    """Return a method that runs a coroutine function of the client and returns its result.

    If an interrupt, such as Ctrl-C, keeps a result from the caller, `lost` is called on the loop.
    Its arguments are the client and that result.
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

    While the loop runs, the call is made on the loop, because only the loop may then change the
    state of the client.
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

    While the loop does not run, the method does not wait and returns None.
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
