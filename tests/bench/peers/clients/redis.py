"""redis-py: one stream and one group a queue. Several messages in flight are one pipeline."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import ConnectionError as NotConnected

from bench.peers.clients.program import Client, See, beside, main
from bench.peers.tally import body as make_body

READ = 256
CONNECTIONS = 1_100
FIELD = b"b"


class RedisStreams(Client):
    title = "redis-py, pipelines"
    how = {  # noqa: RUF012
        "send": "as many XADD as are in flight in one pipeline, and the next after its end",
        "batches": "pipelines of 128 XADD",
        "drain": "XREADGROUP of 256, one XACK for them",
        "push": "a loop of XREADGROUP, because there is no push",
    }

    async def open(self) -> None:
        pool = BlockingConnectionPool(
            host="127.0.0.1", port=self.address["port"], max_connections=CONNECTIONS, timeout=60
        )
        self._redis: Any = Redis.from_pool(pool)
        await self._redis.ping()

    async def close(self) -> None:
        with contextlib.suppress(NotConnected):
            await self._redis.aclose()

    async def create(self, queue: str) -> None:
        if not await self._redis.exists(queue):
            await self._redis.xgroup_create(queue, queue, id="0", mkstream=True)

    async def publish(self, queue: str, body: bytes) -> None:
        await self._redis.xadd(queue, {FIELD: body})

    async def publish_batch(self, queue: str, bodies: list[bytes]) -> None:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for body in bodies:
                pipeline.xadd(queue, {FIELD: body})
            await pipeline.execute()

    async def send(self, queue: str, numbers: Iterator[int], in_flight: int, end: float) -> int:
        if in_flight == 1:
            return await super().send(queue, numbers, in_flight, end)
        acknowledged = 0
        while time.perf_counter() < end:
            await self.publish_batch(queue, [make_body(next(numbers)) for _ in range(in_flight)])
            acknowledged += in_flight
        return acknowledged

    async def fill(self, queue: str, count: int) -> None:
        for begin in range(0, count, 128):
            numbers = range(begin, min(begin + 128, count))
            await self.publish_batch(queue, [make_body(number) for number in numbers])

    async def stored(self, queue: str) -> int:
        return int(await self._redis.xlen(queue))

    async def unsettled(self, queue: str) -> int:
        [group] = await self._redis.xinfo_groups(queue)
        return int(group["pending"]) + int(group["lag"])

    async def drain(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        while not is_done():
            streams = await self._redis.xreadgroup(
                queue, "bench", {queue: ">"}, count=READ, block=1_000
            )
            for messages in _messages(streams):
                for _, fields in messages:
                    see(fields[FIELD])
                await self._redis.xack(queue, queue, *(name for name, _ in messages))

    @contextlib.asynccontextmanager
    async def pushing(self, queue: str, see: See) -> AsyncIterator[None]:
        ended = asyncio.Event()
        async with beside(self.drain(queue, see, ended.is_set), ended.set):
            yield


def _messages(streams: Any) -> list[Any]:
    """Return the messages by stream, in either form of the protocol."""
    if isinstance(streams, dict):
        return [messages for parts in streams.values() for messages in parts]
    return [messages for _, messages in streams or []]


if __name__ == "__main__":
    main(RedisStreams)
