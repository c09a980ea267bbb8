"""The official SDK of RocketMQ for Python, through the proxy. It cannot create topics."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from rocketmq.v5.exception.client_exception import InternalErrorException

from bench.peers.clients.program import Client, Handle, See, main
from bench.peers.clients.stored import stored

REQUEST_TIMEOUT_S = 10
RECEIVE, INVISIBLE_S, WAIT_S = 32, 60, 1
RECEIVERS = 8


class RocketMq(Client):
    title = "official SDK"
    drained = 5_000
    how = {  # noqa: RUF012
        "send": "send_async",
        "drain": "simple consumer, 8 threads that receive 32 and acknowledge each",
        "push": "push consumer of 20 threads",
        "letters": "push consumer, at most 3 deliveries, a delay of 1 ms by the group's policy",
    }

    async def open(self) -> None:
        self._received = self._acknowledged = 0
        self._configuration = ClientConfiguration(
            self.address["proxy"], Credentials(), "", REQUEST_TIMEOUT_S
        )
        self._producer = Producer(self._configuration, ())
        await asyncio.to_thread(self._producer.startup)

    async def close(self) -> None:
        try:
            await asyncio.to_thread(self._producer.shutdown)
        except Exception:  # it is not up, or the server is gone
            traceback.print_exc()

    async def create(self, queue: str) -> None:
        pass

    async def publish(self, queue: str, body: bytes) -> None:
        message = Message()
        message.topic, message.body = queue, body
        await asyncio.wrap_future(self._producer.send_async(message))

    async def stored(self, queue: str) -> int:
        """Count the messages in the files of consume queues: no call of the SDK counts them."""
        return stored(Path(self.address["store"]), queue)

    async def unsettled(self, queue: str) -> int:
        """Count the messages whose acknowledgement was not confirmed."""
        return self._received - self._acknowledged

    async def drain(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        consumer = SimpleConsumer(self._configuration, queue, {queue: FilterExpression()}, WAIT_S)
        await asyncio.to_thread(consumer.startup)
        lock, before = threading.Lock(), self._received

        def receive() -> None:
            while not is_done():
                try:
                    messages = consumer.receive(RECEIVE, INVISIBLE_S) or []
                except InternalErrorException:  # its settings are not there yet: it does not wait
                    if self._received > before:
                        raise
                    time.sleep(0.1)
                    continue
                with lock:
                    self._received += len(messages)
                    for message in messages:
                        see(message.body)
                for message in messages:
                    consumer.ack(message)
                with lock:
                    self._acknowledged += len(messages)
                    if is_done() and self._acknowledged == self._received:
                        self.on_settled()

        await asyncio.gather(*(asyncio.to_thread(receive) for _ in range(RECEIVERS)))
        await asyncio.to_thread(consumer.shutdown)

    @contextlib.asynccontextmanager
    async def pushing(self, queue: str, see: See) -> AsyncIterator[None]:
        def handle(body: bytes) -> bool:
            see(body)
            return True

        async with self.failing(queue, handle):
            yield

    @contextlib.asynccontextmanager
    async def failing(self, queue: str, handle: Handle) -> AsyncIterator[None]:
        lock = threading.Lock()

        class Listener(MessageListener):  # type: ignore[misc]
            def consume(self, message: Any) -> Any:
                with lock:
                    is_good = handle(message.body)
                return ConsumeResult.SUCCESS if is_good else ConsumeResult.FAILURE

        consumer = PushConsumer(self._configuration, queue, Listener(), {queue: FilterExpression()})
        await asyncio.to_thread(consumer.startup)
        yield
        await asyncio.to_thread(consumer.shutdown)

    async def dead_count(self, queue: str) -> int:
        return await self.stored(f"%DLQ%{queue}")

    async def drain_dead(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        await self.drain(f"%DLQ%{queue}", see, is_done)


if __name__ == "__main__":
    main(RocketMq)
