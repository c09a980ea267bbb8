"""Brokers whose disk may hang, or fail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.broker.harness import BrokerHarness
from support.clock.virtual_loop import run_ready_tasks
from support.disk.broken_disk import BrokenDisk


@pytest.fixture
def disk() -> BrokenDisk:
    return BrokenDisk()


@pytest.fixture
async def harness(tmp_path: Path, disk: BrokenDisk) -> AsyncIterator[BrokerHarness]:
    """Synchronous flush; b"first" is in topic t. At the end its disk works again."""
    harness = await BrokerHarness.begin(tmp_path, disk=disk)
    await harness.send("t", b"first")
    yield harness
    disk.write_error = disk.sync_error = 0
    harness.flusher.let_go()
    await run_ready_tasks()
    await harness.end()
