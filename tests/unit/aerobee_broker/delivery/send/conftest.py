"""A broker with a topic t of four queues."""

from __future__ import annotations

import pytest

from aerobee_broker.metadata.topics import TopicConfig
from support.broker.harness import Begin, BrokerHarness


@pytest.fixture
async def harness(begin: Begin) -> BrokerHarness:
    harness = await begin(maxMessageSize=4_096)
    await harness.broker.topics.put(TopicConfig("t", 4, 4))
    return harness
