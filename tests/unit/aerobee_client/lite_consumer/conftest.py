"""Lite consumers over real brokers; on a loop with virtual time."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from support.clock.virtual_loop import VirtualLoop
from support.lite.classic_client import LiteLeasing


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], AbstractEventLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture
async def leasing(tmp_path: Path) -> AsyncIterator[LiteLeasing]:
    """One broker, "a"; a group of the model Shared."""
    leasing = await LiteLeasing.ready(tmp_path)
    yield leasing
    await leasing.end()


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[LiteLeasing]:
    """Two brokers, "a" and "b"; a group of the model Shared and a quota of 5."""
    leasing = await LiteLeasing.ready(tmp_path, "a", "b", quota=5)
    yield leasing
    await leasing.end()


@pytest.fixture
async def exclusive(tmp_path: Path) -> AsyncIterator[LiteLeasing]:
    """Two brokers, "a" and "b"; a group of the model Exclusive."""
    leasing = await LiteLeasing.ready(tmp_path, "a", "b", model="Exclusive")
    yield leasing
    await leasing.end()
