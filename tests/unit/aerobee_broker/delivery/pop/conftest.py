"""A broker with one topic of one queue and one group, and a consumer of it that pops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.broker.harness import BrokerHarness
from support.broker.pop_consumer import PopConsumer
from support.broker.pop_restarts import begin


@pytest.fixture
async def consumer(tmp_path: Path) -> AsyncIterator[PopConsumer]:
    consumer = PopConsumer(await begin(tmp_path))
    yield consumer
    await consumer.harness.end()


@pytest.fixture
def harness(consumer: PopConsumer) -> BrokerHarness:
    """The broker that the consumer begins with."""
    return consumer.harness
