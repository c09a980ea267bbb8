"""Two brokers in memory, each with four queues of the topic "flights"."""

from __future__ import annotations

import pytest

from support.client.memory_cluster import MemoryBroker
from support.client.producing import TOPIC


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker("a", "10.0.0.11:10911")
    broker.create(TOPIC, 4)
    return broker


@pytest.fixture
def other() -> MemoryBroker:
    broker = MemoryBroker("b", "10.0.0.12:10911")
    broker.create(TOPIC, 4)
    return broker
