"""A broker with a topic t of four queues."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_broker.metadata.topics import TopicConfig
from support.broker.harness import BrokerHarness


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    harness = await BrokerHarness.begin(tmp_path, maxMessageSize=4_096)
    await harness.broker.topics.put(TopicConfig("t", 4, 4))
    yield harness
    await harness.end()
