"""Tests of a load run on a loop whose time is made up."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping

from support.clock.virtual_loop import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], AbstractEventLoop]]:
    return {"virtual": VirtualLoop}
