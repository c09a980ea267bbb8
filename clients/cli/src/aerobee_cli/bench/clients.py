"""Send and receive with the classic client: one producer, and one consumer for each group."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

from aerobee_cli.bench.scratch import Scratch

if TYPE_CHECKING:
    from aerobee_client import (
        AsyncProducer,
        AsyncPullConsumer,
        AsyncSimpleConsumer,
        MessageQueue,
    )

PRODUCER_GROUP = "aerobee-bench"
WAIT = timedelta(seconds=1)
POLLED = 1_000  # messages of a poll
LEASED = 32  # messages of a receive: a broker returns no more
LEASING_RECEIVERS = 4  # receives of a group that wait at once


class Pulling:
    """The driver whose groups pull, as classic consumers do. Each group has one member."""

    receivers = 1

    def __init__(self, producer: AsyncProducer, queues: Sequence[MessageQueue]) -> None:
        self._producer = producer
        self._queues = queues
        self._consumers: dict[str, AsyncPullConsumer] = {}

    async def join(self, scratch: Scratch, namesrv: str, stack: AsyncExitStack) -> None:
        """Start the consumers, which `stack` closes. Raises MqError."""
        from aerobee_client import AsyncPullConsumer, ConsumeFromWhere

        for group in scratch.groups:
            consumer = AsyncPullConsumer(
                group, namesrv=namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
            )
            await consumer.subscribe(scratch.topic)
            self._consumers[group] = await stack.enter_async_context(consumer)

    async def send(self, lane: int, body: bytes) -> None:
        from aerobee_client import Message

        queue = self._queues[lane % len(self._queues)]
        await self._producer.send(Message(queue.topic, body), queue=queue)

    async def receive(self, group: str) -> Sequence[bytes]:
        return [message.body for message in await self._consumers[group].poll(POLLED, WAIT)]


class Leasing(Pulling):
    """The driver whose groups lease messages, as the official SDKs do."""

    receivers = LEASING_RECEIVERS

    def __init__(self, producer: AsyncProducer, queues: Sequence[MessageQueue]) -> None:
        super().__init__(producer, queues)
        self._lessees: dict[str, AsyncSimpleConsumer] = {}

    async def join(self, scratch: Scratch, namesrv: str, stack: AsyncExitStack) -> None:
        """Start the consumers, which `stack` closes. Raises MqError."""
        from aerobee_client import AsyncSimpleConsumer, ConsumeFromWhere

        for group in scratch.groups:
            consumer = AsyncSimpleConsumer(
                group, namesrv=namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
            )
            await consumer.subscribe(scratch.topic)
            self._lessees[group] = await stack.enter_async_context(consumer)

    async def receive(self, group: str) -> Sequence[bytes]:
        consumer = self._lessees[group]
        messages = await consumer.receive(LEASED, wait=WAIT)
        bodies = [message.body for message in messages]
        await consumer.ack(messages)
        return bodies
