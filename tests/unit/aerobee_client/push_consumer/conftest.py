"""Members of the group that consumes the topic "flights"."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from aerobee_client.push_consumer import AsyncPushConsumer
from support.client.consumer_group import GROUP, TOPIC, Join
from support.client.memory import NAMESRV, MemoryCluster


@pytest.fixture
async def join(cluster: MemoryCluster) -> AsyncIterator[Join]:
    """Starts members of the group; all of them leave at the end."""
    async with AsyncExitStack() as stack:

        async def start(
            listener: Any = None, *, expression: str = "*", **settings: Any
        ) -> AsyncPushConsumer:
            consumer = AsyncPushConsumer(
                GROUP, listener, namesrv=NAMESRV, transport=cluster, **settings
            )
            consumer.subscribe(TOPIC, expression)
            return await stack.enter_async_context(consumer)

        yield start
