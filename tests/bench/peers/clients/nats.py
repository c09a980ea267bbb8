"""nats-py: one stream and one durable consumer a queue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import nats
from nats.errors import TimeoutError as NoMessage
from nats.js.api import AckPolicy, ConsumerConfig, StorageType

from bench.peers.clients.program import ATTEMPTS, Client, Handle, See, main

FETCH = 256
DEAD = "dead"  # what a queue's name ends with
NO_LIMIT = -1


class Nats(Client):
    title = "nats-py"
    how = {  # noqa: RUF012
        "drain": "pull consumer, fetches of 256, an acknowledgement for each message",
        "push": "push consumer with a callback, an acknowledgement for each message",
        "batches": "publish_async, 128 futures awaited together",
        "letters": "nak; at the third delivery the client publishes to another stream, then term",
    }

    async def open(self) -> None:
        self._connection = await nats.connect(self.address["server"], max_reconnect_attempts=0)
        self._stream = self._connection.jetstream(publish_async_max_pending=4_096)

    async def close(self) -> None:
        if hasattr(self, "_connection"):
            await self._connection.close()

    async def create(self, queue: str) -> None:
        await self._stream.add_stream(name=queue, subjects=[queue], storage=StorageType.FILE)

    async def publish(self, queue: str, body: bytes) -> None:
        await self._stream.publish(queue, body)

    async def publish_batch(self, queue: str, bodies: list[bytes]) -> None:
        futures = [await self._stream.publish_async(queue, body) for body in bodies]
        await asyncio.gather(*futures)

    async def stored(self, queue: str) -> int:
        return int((await self._stream.stream_info(queue)).state.messages)

    async def unsettled(self, queue: str) -> int:
        found = await self._stream.consumer_info(queue, queue)
        return int((found.num_pending or 0) + (found.num_ack_pending or 0))

    async def drain(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        consumer = await self._stream.pull_subscribe(queue, durable=queue, config=_config())
        while not is_done():
            with contextlib.suppress(NoMessage):
                for message in await consumer.fetch(FETCH, timeout=1):
                    see(message.data)
                    await message.ack()
        await self._connection.flush()

    @contextlib.asynccontextmanager
    async def pushing(self, queue: str, see: See) -> AsyncIterator[None]:
        async def listen(message: Any) -> None:
            see(message.data)
            await message.ack()

        async with self._subscribed(queue, listen):
            yield

    async def create_failing(self, queue: str) -> None:
        await self.create(queue)
        await self.create(queue + DEAD)

    @contextlib.asynccontextmanager
    async def failing(self, queue: str, handle: Handle) -> AsyncIterator[None]:
        async def listen(message: Any) -> None:
            if handle(message.data):
                await message.ack()
            elif message.metadata.num_delivered < ATTEMPTS:
                await message.nak()
            else:
                await self.publish(queue + DEAD, message.data)
                await message.term()

        async with self._subscribed(queue, listen):
            yield

    async def dead_count(self, queue: str) -> int:
        return await self.stored(queue + DEAD)

    async def drain_dead(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        await self.drain(queue + DEAD, see, is_done)

    @contextlib.asynccontextmanager
    async def _subscribed(self, queue: str, listen: Callable[[Any], Any]) -> AsyncIterator[None]:
        subscription = await self._stream.subscribe(
            queue, durable=queue, cb=listen, manual_ack=True, config=_config(),
            pending_msgs_limit=NO_LIMIT, pending_bytes_limit=NO_LIMIT,
        )  # fmt: skip
        yield
        await subscription.unsubscribe()


def _config() -> Any:
    return ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=10_000, ack_wait=60)


if __name__ == "__main__":
    main(Nats)
