"""Pull consumers of the topic "flights"; those of the group "g" are its members."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from aerobee_client.pull_consumer import AsyncPullConsumer
from support.client.consumer_group import GROUP, TOPIC, Join
from support.client.memory import NAMESRV, MemoryCluster


@pytest.fixture
async def join(cluster: MemoryCluster) -> AsyncIterator[Join]:
    """Starts members of the group; all of them leave at the end."""
    async with AsyncExitStack() as stack:

        async def start(*, expression: str = "*", **settings: Any) -> AsyncPullConsumer:
            consumer = AsyncPullConsumer(GROUP, namesrv=NAMESRV, transport=cluster, **settings)
            consumer.subscribe(TOPIC, expression)
            return await stack.enter_async_context(consumer)

        yield start


@pytest.fixture
async def reader(cluster: MemoryCluster) -> AsyncIterator[AsyncPullConsumer]:
    """Without a group, and nothing assigned yet."""
    async with AsyncPullConsumer(namesrv=NAMESRV, transport=cluster) as consumer:
        yield consumer
