"""Asynchronous tests of the broker run on a loop whose time is made up. A broker for them."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.broker.harness import Begin, BrokerHarness
from support.clock.virtual_loop import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], AbstractEventLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    """Starts a broker; again: ends it, and starts one on the same directory (or another) with the
    same clock. The last one is ended after the test.
    """
    harness: BrokerHarness | None = None

    async def start(path: Path = tmp_path, **given: Any) -> BrokerHarness:
        nonlocal harness
        if harness is not None:
            await harness.end()
            given = {"clock": harness.clock, **given}
        harness = await BrokerHarness.begin(path, **given)
        return harness

    yield start
    if harness is not None:
        await harness.end()


@pytest.fixture
async def harness(begin: Begin) -> BrokerHarness:
    return await begin()
