"""confluent-kafka, whose work is done in C by librdkafka: one topic of one partition a queue."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from bench.peers.clients.program import ATTEMPTS, BATCH, Client, Handle, See, beside, main
from bench.peers.tally import body as make_body

TIMEOUT_S = 60.0
FETCH = 500
DEAD = "dlq."  # what the name of a topic for dead letters begins with


class Confluent(Client):
    title = "confluent-kafka (C)"
    how = {  # noqa: RUF012
        "send": "produce from one thread, linger.ms=0, as many without an answer as are in flight",
        "batches": "128 calls of produce, then flush; linger.ms=5, the default",
        "drain": "consume(500), a synchronous commit for each",
        "push": "a loop of poll, because there is no push",
        "letters": "share group: release; its own dead-letter topic, at most 3 deliveries",
    }

    async def open(self) -> None:
        common = {"bootstrap.servers": self.address["server"]}
        self._admin = AdminClient(common)
        self._producer = Producer(common | {"acks": "all", "linger.ms": 0})
        self._polled = Producer(common | {"acks": "all", "linger.ms": 0})  # by `_poll`
        self._batches = Producer(common | {"acks": "all", "linger.ms": 5})
        self._ends = threading.Event()
        self._poller: threading.Thread | None = None
        await asyncio.to_thread(self._admin.list_topics, timeout=1)

    async def close(self) -> None:
        self._ends.set()
        if self._poller is not None:
            await asyncio.to_thread(self._poller.join)

    async def create(self, queue: str, **config: str) -> None:
        topic = NewTopic(queue, num_partitions=1, replication_factor=1, config=config)
        [future] = self._admin.create_topics([topic]).values()
        try:
            await asyncio.to_thread(future.result)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    async def publish(self, queue: str, body: bytes) -> None:
        """Send by a thread that waits for answers and passes them to the event loop."""
        if self._poller is None:
            self._poller = threading.Thread(target=self._poll, daemon=True)
            self._poller.start()
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        failures: list[Any] = []

        def on_delivery(error: Any, _: Any) -> None:
            failures.extend([error] if error else [])
            loop.call_soon_threadsafe(done.set)

        self._polled.produce(queue, body, on_delivery=on_delivery)
        await done.wait()
        if failures:
            raise KafkaException(failures[0])

    def _poll(self) -> None:
        while not self._ends.is_set():
            self._polled.poll(0.1)

    async def send(self, queue: str, numbers: Iterator[int], in_flight: int, end: float) -> int:
        return await asyncio.to_thread(self._send, queue, numbers, in_flight, end)

    def _send(self, queue: str, numbers: Iterator[int], in_flight: int, end: float) -> int:
        acknowledged, pending = 0, 0

        def on_delivery(error: Any, _: Any) -> None:
            nonlocal acknowledged, pending
            pending -= 1
            if error:
                raise KafkaException(error)
            acknowledged += 1

        produce, poll = self._producer.produce, self._producer.poll
        while time.perf_counter() < end:
            while pending < in_flight:
                pending += 1
                produce(queue, make_body(next(numbers)), on_delivery=on_delivery)
            poll(1)
        while pending:
            poll(1)
        return acknowledged

    async def send_batches(self, queue: str, numbers: Iterator[int], end: float) -> int:
        return await asyncio.to_thread(self._send_batches, queue, numbers, end)

    def _send_batches(self, queue: str, numbers: Iterator[int], end: float) -> int:
        acknowledged = 0

        def on_delivery(error: Any, _: Any) -> None:
            nonlocal acknowledged
            if error:
                raise KafkaException(error)
            acknowledged += 1

        while time.perf_counter() < end:
            for number in itertools.islice(numbers, BATCH):
                self._batches.produce(queue, make_body(number), on_delivery=on_delivery)
            self._batches.flush()
        return acknowledged

    async def fill(self, queue: str, count: int) -> None:
        def fill() -> None:
            for number in range(count):
                self._batches.produce(queue, make_body(number))
                if number % 1_000 == 999:
                    self._batches.flush()
            self._batches.flush()

        await asyncio.to_thread(fill)

    async def stored(self, queue: str) -> int:
        return await asyncio.to_thread(self._end_of, queue)

    def _end_of(self, queue: str) -> int:
        consumer = self._consumer(queue)
        try:
            bounds = consumer.get_watermark_offsets(TopicPartition(queue, 0), TIMEOUT_S)
            return int(bounds[1])
        finally:
            consumer.close()

    async def unsettled(self, queue: str) -> int:
        def lag() -> int:
            consumer = self._consumer(queue)
            try:
                [committed] = consumer.committed([TopicPartition(queue, 0)], TIMEOUT_S)
                bounds = consumer.get_watermark_offsets(TopicPartition(queue, 0), TIMEOUT_S)
                return int(bounds[1] - max(committed.offset, 0))
            finally:
                consumer.close()

        return await asyncio.to_thread(lag)

    async def drain(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        await asyncio.to_thread(self._drain, queue, see, is_done)

    def _drain(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        consumer = self._consumer(queue)
        consumer.subscribe([queue])
        try:
            while not is_done():
                # It waits for as many as it is asked for: the first alone, then those behind it.
                messages = consumer.consume(1, 1) + consumer.consume(FETCH - 1, 0)
                for message in messages:
                    see(_value(message))
                if messages:
                    consumer.commit(asynchronous=False)
        finally:
            consumer.close()

    @contextlib.asynccontextmanager
    async def pushing(self, queue: str, see: See) -> AsyncIterator[None]:
        ends = threading.Event()

        def loop() -> None:
            consumer = self._consumer(queue)
            consumer.subscribe([queue])
            try:
                while not ends.is_set():
                    message = consumer.poll(0.1)
                    if message is not None:
                        see(_value(message))
                        for each in consumer.consume(FETCH, 0):
                            see(_value(each))
                        consumer.commit(asynchronous=True)
            finally:
                consumer.close()

        async with beside(asyncio.to_thread(loop), ends.set):
            yield

    async def create_failing(self, queue: str) -> None:
        await self.create(queue)
        dead = {"errors.deadletterqueue.group.enable": "true"}
        await self.create(DEAD + queue, **dead)
        await self._set_group(
            queue,
            {
                "share.auto.offset.reset": "earliest",
                "share.delivery.count.limit": str(ATTEMPTS),
                "errors.deadletterqueue.topic.name": DEAD + queue,
                "errors.deadletterqueue.copy.record.enable": "true",
            },
        )

    async def _set_group(self, group: str, config: dict[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
        [future] = self._admin.incremental_alter_configs([resource]).values()
        await asyncio.to_thread(future.result)

    @contextlib.asynccontextmanager
    async def failing(self, queue: str, handle: Handle) -> AsyncIterator[None]:
        ends = threading.Event()

        def loop() -> None:
            consumer = ShareConsumer(
                {
                    "bootstrap.servers": self.address["server"],
                    "group.id": queue,
                    "share.acknowledgement.mode": "explicit",
                }
            )
            consumer.subscribe([queue])
            try:
                while not ends.is_set():
                    messages = list(consumer.poll(0.1))
                    for message in messages:
                        is_good = handle(_value(message))
                        verdict = AcknowledgeType.ACCEPT if is_good else AcknowledgeType.RELEASE
                        consumer.acknowledge(message, verdict)
                    if messages:
                        consumer.commit_sync()
            finally:
                consumer.close()

        async with beside(asyncio.to_thread(loop), ends.set):
            yield

    async def dead_count(self, queue: str) -> int:
        return await self.stored(DEAD + queue)

    async def drain_dead(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        await self.drain(DEAD + queue, see, is_done)

    def _consumer(self, group: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.address["server"],
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )


def _value(message: Any) -> bytes:
    """Raise KafkaException if an answer has an error."""
    if message.error():
        raise KafkaException(message.error())
    value: bytes = message.value()
    return value


if __name__ == "__main__":
    main(Confluent)
