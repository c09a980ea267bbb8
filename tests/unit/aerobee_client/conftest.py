"""A cluster in memory of one broker, with four queues of the topic "flights"."""

from __future__ import annotations

import pytest

from support.client.memory import MemoryBroker, MemoryCluster
from support.client.producing import TOPIC


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker("a", "10.0.0.11:10911")
    broker.create(TOPIC, 4)
    return broker


@pytest.fixture
def cluster(broker: MemoryBroker) -> MemoryCluster:
    return MemoryCluster(broker)
