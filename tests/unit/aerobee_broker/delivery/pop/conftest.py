"""A broker with one topic of one queue and one group, and a consumer of it that pops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.broker.harness import BrokerHarness
from support.broker.pop_consumer import PopConsumer
from support.broker.pop_restarts import begin


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    harness = await begin(tmp_path)
    yield harness
    await harness.end()


@pytest.fixture
def consumer(harness: BrokerHarness) -> PopConsumer:
    return PopConsumer(harness)
