"""aio-pika: one quorum queue a queue, with publisher confirms."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import aio_pika
from aio_pika import DeliveryMode, Message

from bench.peers.clients.program import ATTEMPTS, Client, Handle, See, main

PREFETCH = 1_000
QUORUM = {"x-queue-type": "quorum"}
DEAD = "dead"


class RabbitMq(Client):
    title = "aio-pika"
    drained = 20_000
    how = {  # noqa: RUF012
        "drain": "basic.consume, prefetch 1,000, one acknowledgement for 128 messages",
        "push": "basic.consume with a callback, an acknowledgement for each message",
        "letters": "x-delivery-limit 2, dead-letter-strategy at-least-once",
    }

    def __init__(self, address: dict[str, Any]) -> None:
        super().__init__(address)
        self._listening: set[asyncio.Task[Any]] = set()  # those that have not settled yet

    async def open(self) -> None:
        self._connection = await aio_pika.connect(self.address["server"])
        self._channel = await self._connection.channel(publisher_confirms=True)
        await self._channel.set_qos(prefetch_count=PREFETCH)

    async def close(self) -> None:
        if hasattr(self, "_connection"):
            await self._connection.close()

    async def create(self, queue: str) -> None:
        await self._channel.declare_queue(queue, durable=True, arguments=QUORUM)

    async def publish(self, queue: str, body: bytes) -> None:
        message = Message(body, delivery_mode=DeliveryMode.PERSISTENT)
        await self._channel.default_exchange.publish(message, routing_key=queue)

    async def stored(self, queue: str) -> int:
        return await self._ready(queue)

    async def unsettled(self, queue: str) -> int:
        """Return the messages that a server would deliver when the connections are closed.

        A listener may still write its acknowledgement, which a closed connection would lose.
        """
        while self._listening:
            await asyncio.wait(self._listening)
        await self.close()
        await self.open()
        return await self._ready(queue)

    async def drain(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        source = await self._channel.get_queue(queue)
        received, last = 0, None
        async with source.iterator() as messages:
            async for message in messages:
                see(message.body)
                received, last = received + 1, message
                if received % 128 == 0 or is_done():
                    await message.ack(multiple=True)
                    last = None
                if is_done():
                    break
        if last is not None:
            await last.ack(multiple=True)

    @contextlib.asynccontextmanager
    async def pushing(self, queue: str, see: See) -> AsyncIterator[None]:
        async def listen(message: Any) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._listening.add(task)
            task.add_done_callback(self._listening.discard)
            see(message.body)
            await message.ack()

        async with self._subscribed(queue, listen):
            yield

    async def create_failing(self, queue: str) -> None:
        await self.create(queue + DEAD)
        arguments = QUORUM | {
            "x-delivery-limit": ATTEMPTS - 1,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": queue + DEAD,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
        await self._channel.declare_queue(queue, durable=True, arguments=arguments)

    @contextlib.asynccontextmanager
    async def failing(self, queue: str, handle: Handle) -> AsyncIterator[None]:
        async def listen(message: Any) -> None:
            if handle(message.body):
                await message.ack()
            else:
                await message.nack(requeue=True)

        async with self._subscribed(queue, listen):
            yield

    async def dead_count(self, queue: str) -> int:
        return await self._ready(queue + DEAD)

    async def drain_dead(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        await self.drain(queue + DEAD, see, is_done)

    @contextlib.asynccontextmanager
    async def _subscribed(self, queue: str, listen: Callable[[Any], Any]) -> AsyncIterator[None]:
        channel = await self._connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        source = await channel.get_queue(queue)
        await source.consume(listen)
        yield
        await channel.close()

    async def _ready(self, queue: str) -> int:
        found = await self._channel.declare_queue(queue, passive=True)
        return int(found.declaration_result.message_count or 0)


if __name__ == "__main__":
    main(RabbitMq)
