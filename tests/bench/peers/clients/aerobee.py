"""Aerobee's own client, straight to name server and broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPushConsumer,
    AsyncSimpleConsumer,
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MqError,
    ReceivedMessage,
)
from aerobee_wire.topics import dead_letter_topic
from bench.peers.clients.program import ATTEMPTS, Client, Handle, See, main

FIRST = ConsumeFromWhere.FIRST_OFFSET
LEASE, WAIT = timedelta(seconds=60), timedelta(seconds=1)
RECEIVE, RECEIVERS = 32, 8


class Aerobee(Client):
    title = "aerobee-client"
    how = {  # noqa: RUF012
        "drain": "simple consumer, 8 receivers of 32, one acknowledgement for them",
        "push": "push consumer, a coroutine for each message",
        "batches": "send_batch",
        "letters": "retry delay 1 ms, at most 3 deliveries",
    }

    async def open(self) -> None:
        self._admin = AsyncAdminClient(self.address["namesrv"])
        self._producer = AsyncProducer(namesrv=self.address["namesrv"])
        await self._producer.start()

    async def close(self) -> None:
        await self._producer.close()
        await self._admin.close()

    async def create(self, queue: str) -> None:
        await self._admin.create_topic(queue)

    async def publish(self, queue: str, body: bytes) -> None:
        await self._producer.send(Message(queue, body))

    async def publish_batch(self, queue: str, bodies: list[bytes]) -> None:
        await self._producer.send_batch([Message(queue, body) for body in bodies])

    async def stored(self, queue: str) -> int:
        return sum(each.max_offset for each in await self._admin.topic_status(queue))

    async def unsettled(self, queue: str) -> int:
        return sum(each.lag for each in await self._admin.consume_progress(queue, queue))

    async def drain(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        consumer = AsyncSimpleConsumer(
            queue, namesrv=self.address["namesrv"], consume_from_where=FIRST
        )
        consumer.subscribe(queue)
        received = acknowledged = 0

        async def receive() -> None:
            nonlocal received, acknowledged
            while not is_done():
                messages = await consumer.receive(RECEIVE, LEASE, WAIT)
                received += len(messages)
                for message in messages:
                    see(message.body)
                if messages:
                    await consumer.ack(messages)
                    acknowledged += len(messages)
                    if is_done() and acknowledged == received:
                        self.on_settled()

        async with consumer:
            await asyncio.gather(*(receive() for _ in range(RECEIVERS)))

    @contextlib.asynccontextmanager
    async def pushing(self, queue: str, see: See) -> AsyncIterator[None]:
        async def listen(message: ReceivedMessage) -> None:
            see(message.body)

        consumer = AsyncPushConsumer(
            queue, listen, namesrv=self.address["namesrv"], consume_from_where=FIRST
        )
        consumer.subscribe(queue)
        async with consumer:
            yield

    async def create_failing(self, queue: str) -> None:
        await self.create(queue)
        await self._admin.create_group(
            queue, max_attempts=ATTEMPTS, retry_delays=[timedelta(milliseconds=1)]
        )

    @contextlib.asynccontextmanager
    async def failing(self, queue: str, handle: Handle) -> AsyncIterator[None]:
        async def listen(message: ReceivedMessage) -> ConsumeResult | None:
            return None if handle(message.body) else ConsumeResult.RECONSUME_LATER

        consumer = AsyncPushConsumer(
            queue, listen, namesrv=self.address["namesrv"], consume_from_where=FIRST
        )
        consumer.subscribe(queue)
        async with consumer:
            yield

    async def dead_count(self, queue: str) -> int:
        with contextlib.suppress(MqError):  # without dead letters there is no topic for them
            return await self.stored(dead_letter_topic(queue))
        return 0

    async def drain_dead(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        await self.drain(dead_letter_topic(queue), see, is_done)


if __name__ == "__main__":
    main(Aerobee)
