"""The plain classes: each runs its asyncio client on a loop thread of its own and waits for
results.

`send = blocking(AsyncProducer.send)` in the body of a plain class makes a method of it that has the
coroutine's signature and docstring, for type checkers and for `help()`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from aerobee_client.loop_thread import LoopThread

P = ParamSpec("P")
R = TypeVar("R")


class AsyncClient(Protocol):
    async def close(self) -> None: ...


class StartedClient(AsyncClient, Protocol):
    async def start(self) -> None: ...


C = TypeVar("C", bound=AsyncClient)
S = TypeVar("S", bound=StartedClient)


class Facade(Generic[C]):
    """A plain class over `client`. Any thread may call it."""

    def __init__(self, client: C, thread_name: str) -> None:
        self._client = client
        self._loop = LoopThread(thread_name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the client and ends its thread. May be called twice."""
        self._close(self._client.close)

    def _close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._loop.is_running():
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
        """Starts the thread, and the client on it. Raises what the start of the client raises."""
        self._loop.start()
        try:
            self._loop.run(self._client.start())
        except BaseException:
            self._loop.stop()
            raise


def blocking(
    coroutine: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Facade[Any], P], R]:
    """A method that runs `coroutine`, a coroutine function of the client, and returns its
    result."""

    @wraps(coroutine)
    def method(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.run(coroutine(self._client, *args, **kwargs))

    return method


def on_loop(
    function: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Facade[Any], P], R]:
    """A method that calls `function`, a plain function of the client: on the loop while that runs,
    because the state of the client then belongs to it."""

    @wraps(function)
    def method(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not self._loop.is_running():
            return function(self._client, *args, **kwargs)

        async def call() -> R:
            return function(self._client, *args, **kwargs)

        return self._loop.run(call())

    return method
