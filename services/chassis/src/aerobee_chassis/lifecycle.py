"""Start the components of a service in order, and stop them in reverse order.

This module does not know specific components. `process` handles signals.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack

from aerobee_chassis.errors import StartError


class Component:
    """A part of a service that is started and stopped.

    Subclasses override the steps that they need.
    """

    def restore(self) -> None:
        """Load the state from disk, before any component starts. May block."""

    def restore_slices(self) -> Iterable[None]:
        """Restore the state in steps, between which the event loop does other work.

        `Lifecycle.start` calls this. By default, it calls `restore` as a single step. Components
        start after all components are restored.
        """
        self.restore()
        return ()

    async def start(self) -> None:
        """Start working. Raises StartError."""

    async def stop(self) -> None:
        """Stop working. This is called once, also if `start` failed."""


class Step(Component):
    """A component that consists of single functions."""

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
    """Start and stop the components of a service."""

    def __init__(self) -> None:
        self._stops = AsyncExitStack()

    async def start(self, *components: Component) -> None:
        """Restore all components, and then start them one after the other.

        May be called again with more components. Raises the exception of a component. After that,
        `stop` stops the components that were started.
        """
        for component in components:
            for _ in component.restore_slices():
                await asyncio.sleep(0)
        for component in components:
            self._stops.push_async_callback(component.stop)
            await component.start()

    async def stop(self) -> None:
        """Stop the started components in reverse order.

        If one fails, the others are still stopped. Raises the last failure.
        """
        await self._stops.aclose()


class App(ABC):
    """A service that a process runs. `_start_components` creates its components."""

    def __init__(self) -> None:
        self.lifecycle = Lifecycle()
        # True from the end of `start` until the beginning of `stop`. Other threads may read it.
        self.serving = False
        self.drained = False  # True from the end of `drain`. Other threads may read it.
        # The fields of the log line `ready`: at least `address`, the "host:port". Empty before the
        # start.
        self.ready_fields: Mapping[str, object] = {}
        self._failure: StartError | None = None
        self._failed = asyncio.Event()

    @property
    def address(self) -> str:
        return str(self.ready_fields["address"])

    def fail(self, error: StartError) -> None:
        """End the process because of an error after the start."""
        self._failure = self._failure or error
        self._failed.set()

    async def until_failed(self) -> None:
        """Wait for `fail`, and raise its error."""
        await self._failed.wait()
        assert self._failure is not None, "`fail` has set it"
        raise self._failure

    async def start(self) -> None:
        """Start the service. It is serving when this returns. Raises StartError."""
        self.ready_fields = await self._start_components()
        self.serving = True

    async def drain(self) -> None:
        """Move clients to other processes. Return when they have moved, ready to be stopped.

        By default, there is nothing to wait for: clients notice the stop. Subclasses wait first.
        """
        self.serving = False
        self.drained = True

    async def stop(self) -> None:
        """Stop the service. Call it once, also after a failed start."""
        self.serving = False
        await self.lifecycle.stop()

    @abstractmethod
    async def _start_components(self) -> Mapping[str, object]:
        """Start all components with `lifecycle`, and return the ready fields. Raises StartError."""
