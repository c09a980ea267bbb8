"""The life of a service: its components start in order and stop in reverse.

Knows no component by name, and no signals: those are `process`.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack

from aerobee_chassis.errors import StartError


class Component:
    """A part of a service that is started and stopped. Inherit from it, and override the steps that
    the part needs.
    """

    def restore(self) -> None:
        """Fills its memory from what is on the disk, before any component starts. May block."""

    def restore_slices(self) -> Iterable[None]:
        """What `start` of a service calls: `restore`, or in its place steps, between which the loop
        does other things. No component has started until all are restored."""
        self.restore()
        return ()

    async def start(self) -> None:
        """Begins its work. Raises StartError."""

    async def stop(self) -> None:
        """Ends its work. Called once, also after a `start` that failed."""


class Step(Component):
    """Single functions as a component."""

    def __init__(
        self,
        *,
        restore: Callable[[], None] | None = None,
        start: Callable[[], None] | None = None,
        stop: Callable[[], Awaitable[None] | None] | None = None,
    ) -> None:
        self._restore = restore
        self._start = start
        self._stop = stop

    def restore(self) -> None:
        if self._restore is not None:
            self._restore()

    async def start(self) -> None:
        if self._start is not None:
            self._start()

    async def stop(self) -> None:
        stopping = self._stop() if self._stop is not None else None
        if inspect.isawaitable(stopping):
            await stopping


class Lifecycle:
    """The components of a service that run now."""

    def __init__(self) -> None:
        self._stops = AsyncExitStack()

    async def start(self, *components: Component) -> None:
        """Restores all, then starts one after the other. May be called again, with more components.

        Raises what a component raises: `stop` then ends those that were started.
        """
        for component in components:
            for _ in component.restore_slices():
                await asyncio.sleep(0)
        for component in components:
            self._stops.push_async_callback(component.stop)
            await component.start()

    async def stop(self) -> None:
        """Stops in reverse what was started. One that fails does not keep the others; raises the
        last failure.
        """
        await self._stops.aclose()


class App(ABC):
    """A service as a process runs it: `_start_components` says what it is made of."""

    def __init__(self) -> None:
        self.lifecycle = Lifecycle()
        # Between the end of `start` and the begin of `stop`. Other threads may read it.
        self.serving = False
        # Of the log line `ready`: at least `address`, the "host:port". Empty before it is started.
        self.ready_fields: Mapping[str, object] = {}
        self._failure: StartError | None = None
        self._failed = asyncio.Event()

    @property
    def address(self) -> str:
        return str(self.ready_fields["address"])

    def fail(self, error: StartError) -> None:
        """End the process: what it found after its start keeps it from going on."""
        self._failure = self._failure or error
        self._failed.set()

    async def until_failed(self) -> None:
        """Wait for `fail`, and raise its error."""
        await self._failed.wait()
        assert self._failure is not None, "`fail` has set it"
        raise self._failure

    async def start(self) -> None:
        """Serves when it returns. Raises StartError."""
        self.ready_fields = await self._start_components()
        self.serving = True

    async def stop(self) -> None:
        """To be called once, also after a failed start."""
        self.serving = False
        await self.lifecycle.stop()

    @abstractmethod
    async def _start_components(self) -> Mapping[str, object]:
        """Starts everything on `lifecycle`; returns the ready fields. Raises StartError."""
