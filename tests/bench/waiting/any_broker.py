"""From a send to the receive that waits: a topic on two brokers against one on a single broker.

Real processes, one client that names the brokers in turn as SDKs do, one message at a time, in one
run: both topics take turns. `python -m bench.waiting.any_broker` in `tests/`; not a row of
`make bench`.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import grpc
from aerobee.broker.v1 import admin_pb2
from aerobee.namesrv.v1.namesrv_pb2 import TopicConfig
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from support.processes.service import namesrv_and_brokers, proxy_process
from support.stubs import Stub

ROUNDS = 300
PAUSE_S = 0.02  # until the receive waits
TARGET = 1.2
BROKERS = ("broker-a", "broker-b")
METADATA = (("x-mq-client-id", "bench@1@0@a"),)


class Topic:
    """A topic, and a receive that waits for it whenever no message is under way."""

    def __init__(self, stub: Stub, name: str, brokers: tuple[str, ...]) -> None:
        self._stub = stub
        self._resource = d.Resource(name=name)
        self._brokers = itertools.cycle(brokers)
        self._numbers = itertools.count()
        self.elapsed_ms: list[float] = []

    async def round(self) -> None:
        receiving = asyncio.create_task(self._receive())
        await asyncio.sleep(PAUSE_S)
        began = time.perf_counter()
        await self._send()
        self.elapsed_ms.append((await receiving - began) * 1_000)

    async def _send(self) -> None:
        system = d.SystemProperties(message_id=f"01{next(self._numbers):032X}")
        message = d.Message(topic=self._resource, body=b"x", system_properties=system)
        request = s.SendMessageRequest(messages=[message])
        answer = await self._stub.SendMessage(request, metadata=METADATA)
        if answer.status.code != d.Code.OK:
            raise RuntimeError(answer.status.message)

    async def _receive(self) -> float:
        """When a message was there. It is acknowledged."""
        group = d.Resource(name="bench")
        request = s.ReceiveMessageRequest(
            group=group,
            message_queue=d.MessageQueue(
                topic=self._resource, broker=d.Broker(name=next(self._brokers)), id=-1
            ),
            batch_size=32,
        )
        request.invisible_duration.seconds = 60
        request.long_polling_timeout.seconds = 20
        handles, there = [], 0.0
        async for answer in self._stub.ReceiveMessage(request, metadata=METADATA):
            if answer.HasField("message"):
                there = there or time.perf_counter()
                handles.append(answer.message.system_properties.receipt_handle)
        if not handles:
            raise RuntimeError("no message came")
        ack = s.AckMessageRequest(group=group, topic=self._resource)
        for handle in handles:
            ack.entries.add(receipt_handle=handle)
        await self._stub.AckMessage(ack, metadata=METADATA)
        return there


async def measure(proxy: str, addresses: dict[str, str]) -> None:
    async with grpc.aio.insecure_channel(proxy) as channel:
        stub = Stub(s, channel)
        topics = []
        for name, brokers in (("single", BROKERS[:1]), ("double", BROKERS)):
            config = TopicConfig(topic=name, read_queue_count=4, write_queue_count=4, permission=6)
            for broker in brokers:
                async with grpc.aio.insecure_channel(addresses[broker]) as to_broker:
                    admin = Stub(admin_pb2, to_broker)
                    await admin.PutTopic(admin_pb2.PutTopicRequest(topic=config))
            topics.append(Topic(stub, name, brokers))
        for _ in range(ROUNDS // 10):  # warms up
            for topic in topics:
                await topic.round()
        for topic in topics:
            topic.elapsed_ms.clear()
        for _ in range(ROUNDS):
            for topic in topics:
                await topic.round()
    one, two = (statistics.median(topic.elapsed_ms) for topic in topics)
    print(f"one broker {one:.2f} ms, two {two:.2f} ms: {two / one:.2f}, at most {TARGET}")


def main() -> None:
    with ExitStack() as stack:
        enter = stack.enter_context
        data = Path(enter(tempfile.TemporaryDirectory()))
        namesrv, brokers = enter(namesrv_and_brokers(data, names=BROKERS))
        proxy = enter(proxy_process(namesrv.address))
        addresses = {name: broker.address for name, broker in brokers.items()}
        asyncio.run(measure(proxy.address, addresses))


if __name__ == "__main__":
    main()
