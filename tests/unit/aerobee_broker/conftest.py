"""Asynchronous tests of the broker run on a loop whose time is made up. A broker for them."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from support.broker.harness import BrokerHarness
from support.clock.virtual_loop import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], AbstractEventLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    harness = await BrokerHarness.begin(tmp_path)
    yield harness
    await harness.end()
