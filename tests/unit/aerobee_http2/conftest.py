"""Asynchronous tests of the cluster library run on a loop with virtual time."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping

from support.clock.virtual_loop import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], AbstractEventLoop]]:
    return {"virtual": VirtualLoop}
