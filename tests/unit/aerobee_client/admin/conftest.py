"""A cluster in memory: two brokers with the topics of the group "billing", and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aerobee_client import AsyncAdminClient, AsyncProducer
from support.client.dead_letters import DEAD, RETRY
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster


@pytest.fixture
def brokers() -> list[MemoryBroker]:
    brokers = [MemoryBroker("a", "10.0.0.11:10911"), MemoryBroker("b", "10.0.0.12:10911")]
    for broker in brokers:
        broker.create(DEAD, 1)
        broker.create(RETRY, 1)
        broker.create("orders", 4)
    return brokers


@pytest.fixture
def cluster(brokers: list[MemoryBroker]) -> MemoryCluster:
    return MemoryCluster(*brokers)


@pytest.fixture
async def admin(cluster: MemoryCluster) -> AsyncIterator[AsyncAdminClient]:
    async with AsyncAdminClient(NAMESRV, transport=cluster) as admin:
        yield admin


@pytest.fixture
async def producer(cluster: MemoryCluster) -> AsyncIterator[AsyncProducer]:
    async with AsyncProducer(namesrv=NAMESRV, transport=cluster) as producer:
        yield producer
