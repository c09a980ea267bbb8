"""Lite consumers of the classic client over real brokers, in one loop with virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from aerobee_client.lite_simple_consumer import AsyncLiteSimpleConsumer
from support.broker.harness import BrokerHarness
from support.client.leasing import NAMESRV, Leasing
from support.clock.virtual_loop import LoopClock
from support.lite.broker_client import GROUP, PARENT, bind, make_parent, send_lite


class LiteLeasing(Leasing):
    """Begin with `await LiteLeasing.ready(path)`: PARENT has two queues on each broker, and GROUP
    is bound to it."""

    @classmethod
    async def ready(cls, path: Path, *names: str, **settings: Any) -> Self:
        """`settings`: those of `bind`."""
        leasing = await cls.begin(path, *names)
        for harness in leasing.brokers.values():
            await make_parent(harness)
            await bind(harness, **settings)
        assert isinstance(leasing, cls)
        return leasing

    def lite_consumer(self, group: str = GROUP, **settings: Any) -> AsyncLiteSimpleConsumer:
        """To be started."""
        return AsyncLiteSimpleConsumer(
            group, PARENT, namesrv=NAMESRV, transport=self.transport, clock=LoopClock(), **settings
        )

    async def lite_started(self, *lite_topics: str, **settings: Any) -> AsyncLiteSimpleConsumer:
        """Closed at the end of the test."""
        consumer = await self.stack.enter_async_context(self.lite_consumer(**settings))
        if lite_topics:
            await consumer.subscribe_lite(*lite_topics)
        return consumer

    async def send_lite(self, name: str, *bodies: bytes, to: str = "a", queue_id: int = 0) -> None:
        await send_lite(self.brokers[to], name, *bodies, queue_id=queue_id)

    def held(self) -> dict[str, set[str]]:
        """By broker, the lite topics of all clients of GROUP."""
        return {name: _held(harness) for name, harness in self.brokers.items()}


def _held(harness: BrokerHarness) -> set[str]:
    clients = harness.broker.lite.dispatch.subscriptions
    return {name for client in clients for name in client.names.values()}
