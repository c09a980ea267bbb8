"""aiokafka, a client of Kafka in Python: one topic of one partition a queue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, for_code

from bench.peers.clients.program import Client, See, beside, main

MOST = 500
BATCH_BYTES = 1 << 20  # as librdkafka has it
ALREADY_EXISTS = 36


class Kafka(Client):
    title = "aiokafka"
    prefix = "aio_"
    how = {  # noqa: RUF012
        "batches": "create_batch and send_batch",
        "drain": "getmany of 500, a commit for each",
        "push": "a loop of getmany, because there is no push",
    }

    async def open(self) -> None:
        server = self.address["server"]
        self._admin = AIOKafkaAdminClient(bootstrap_servers=server)
        self._producer = AIOKafkaProducer(
            bootstrap_servers=server, acks="all", max_batch_size=BATCH_BYTES
        )
        await self._admin.start()
        await self._producer.start()

    async def close(self) -> None:
        with contextlib.suppress(KafkaError):
            await self._producer.stop()
            await self._admin.close()

    async def create(self, queue: str) -> None:
        topic = NewTopic(queue, num_partitions=1, replication_factor=1)
        answer = await self._admin.create_topics([topic])
        for _, code, *_ in answer.topic_errors:
            if code not in (0, ALREADY_EXISTS):
                raise for_code(code)

    async def publish(self, queue: str, body: bytes) -> None:
        await self._producer.send_and_wait(queue, body)

    async def publish_batch(self, queue: str, bodies: list[bytes]) -> None:
        batch = self._producer.create_batch()
        for body in bodies:
            if batch.append(key=None, value=body, timestamp=None) is None:
                raise RuntimeError("the batch is larger than max_batch_size")
        await (await self._producer.send_batch(batch, queue, partition=0))

    async def stored(self, queue: str) -> int:
        async with self._consumer(queue) as consumer:
            place = TopicPartition(queue, 0)
            return int((await consumer.end_offsets([place]))[place])

    async def unsettled(self, queue: str) -> int:
        async with self._consumer(queue) as consumer:
            place = TopicPartition(queue, 0)
            end = (await consumer.end_offsets([place]))[place]
            return int(end - (await consumer.committed(place) or 0))

    async def drain(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        async with self._consumer(queue) as consumer:
            consumer.subscribe([queue])
            while not is_done():
                found = await consumer.getmany(timeout_ms=1_000, max_records=MOST)
                for records in found.values():
                    for record in records:
                        see(record.value)
                if found:
                    await consumer.commit()

    @contextlib.asynccontextmanager
    async def pushing(self, queue: str, see: See) -> AsyncIterator[None]:
        ended = asyncio.Event()
        async with beside(self.drain(queue, see, ended.is_set), ended.set):
            yield

    def _consumer(self, group: str) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=self.address["server"], group_id=group,
            auto_offset_reset="earliest", enable_auto_commit=False,
        )  # fmt: skip


if __name__ == "__main__":
    main(Kafka)
