"""Simple consumers over real brokers; on a loop with virtual time."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from support.client.leasing import Leasing
from support.clock.virtual_loop import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], AbstractEventLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture
async def leasing(tmp_path: Path) -> AsyncIterator[Leasing]:
    """One broker, "a"."""
    leasing = await Leasing.begin(tmp_path)
    yield leasing
    await leasing.end()


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Leasing]:
    """Two brokers, "a" and "b"."""
    leasing = await Leasing.begin(tmp_path, "a", "b")
    yield leasing
    await leasing.end()
