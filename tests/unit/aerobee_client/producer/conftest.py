"""Another broker than that of the cluster, and a producer with the default settings."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aerobee_client.producer import AsyncProducer
from support.client.memory import MemoryBroker, MemoryCluster
from support.client.producing import TOPIC, producer


@pytest.fixture
def other() -> MemoryBroker:
    broker = MemoryBroker("b", "10.0.0.12:10911")
    broker.create(TOPIC, 4)
    return broker


@pytest.fixture
async def sender(cluster: MemoryCluster) -> AsyncIterator[AsyncProducer]:
    async with producer(cluster) as sender:
        yield sender
