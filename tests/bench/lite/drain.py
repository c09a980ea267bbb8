"""10,000 lite topics of one client with a message each: how soon it has them all.

Real processes, by the public protocol. The client subscribes to all, then the messages are sent,
500 in a request; it receives and acknowledges, one request after the other, all the while.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence

import grpc
from aerobee.broker.v1 import admin_pb2
from aerobee.namesrv.v1 import namesrv_pb2
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from bench.measure import Result
from bench.servers.echo import OPTIONS
from bench.startup import started, up
from support.stubs import Stub

NAMES = 10_000
SENT_AT_ONCE = 500
LIMIT_S = 10.0
PARENT, GROUP = d.Resource(name="sessions"), d.Resource(name="agents")
METADATA = (("x-mq-client-id", "bench@1@0@a"),)


async def prepare(broker: str) -> None:
    """Makes the parent, and a group of it without a quota."""
    async with grpc.aio.insecure_channel(broker, options=OPTIONS) as channel:
        admin = Stub(admin_pb2, channel)
        topic = namesrv_pb2.TopicConfig(
            topic=PARENT.name,
            read_queue_count=4,
            write_queue_count=4,
            permission=6,
            attributes={"message.type": "LITE"},
        )
        await admin.PutTopic(admin_pb2.PutTopicRequest(topic=topic))
        attributes = {"lite.bind.topic": PARENT.name, "lite.sub.client.quota": "-1"}
        group = admin_pb2.GroupConfig(
            consumer_group=GROUP.name, consume_enable=True, attributes=attributes
        )
        await admin.PutGroup(admin_pb2.PutGroupRequest(group=group))


class LiteClient:
    """Receives and acknowledges."""

    def __init__(self, stub: Stub, broker_name: str) -> None:
        self._stub = stub
        self._broker = d.Broker(name=broker_name)
        self._closed = asyncio.Event()
        self.found: list[str] = []

    async def open(self, names: Sequence[str]) -> None:
        """Subscribes. Raises RuntimeError when it is refused."""
        stream = self._stub.Telemetry(self._settings(), metadata=METADATA)
        await stream.read()
        request = s.SyncLiteSubscriptionRequest(
            action=d.LiteSubscriptionAction.COMPLETE_ADD,
            topic=PARENT,
            group=GROUP,
            lite_topic_set=names,
        )
        answer = await self._stub.SyncLiteSubscription(request, metadata=METADATA)
        check(answer.status)

    def close(self) -> None:
        self._closed.set()

    async def receive(self) -> None:
        """One receive, and the acknowledgement of what it brought."""
        request = s.ReceiveMessageRequest(
            group=GROUP,
            message_queue=d.MessageQueue(topic=PARENT, id=-1, broker=self._broker),
            batch_size=32,
        )
        request.invisible_duration.seconds = 60
        request.long_polling_timeout.seconds = 5
        entries = []
        async for answer in self._stub.ReceiveMessage(request, metadata=METADATA):
            if answer.HasField("message"):
                system = answer.message.system_properties
                self.found.append(system.lite_topic)
                entries.append(
                    s.AckMessageEntry(
                        message_id=system.message_id, receipt_handle=system.receipt_handle
                    )
                )
        if entries:
            acks = s.AckMessageRequest(group=GROUP, topic=PARENT, entries=entries)
            check((await self._stub.AckMessage(acks, metadata=METADATA)).status)

    async def _settings(self) -> AsyncIterator[s.TelemetryCommand]:
        subscription = d.Subscription(
            group=GROUP, subscriptions=[d.SubscriptionEntry(topic=PARENT)]
        )
        settings = d.Settings(client_type="LITE_PUSH_CONSUMER", subscription=subscription)
        yield s.TelemetryCommand(settings=settings)
        await self._closed.wait()


async def broker_name(stub: Stub, proxy: str) -> str:
    host, _, port = proxy.rpartition(":")
    endpoints = d.Endpoints(
        scheme=d.AddressScheme.IPv4, addresses=[d.Address(host=host, port=int(port))]
    )
    request = s.QueryRouteRequest(topic=PARENT, endpoints=endpoints)
    answer = await stub.QueryRoute(request, metadata=METADATA)
    check(answer.status)
    return str(answer.message_queues[0].broker.name)


def check(status: d.Status) -> None:
    if status.code != d.Code.OK:
        raise RuntimeError(status.message)


async def send(stub: Stub, names: Sequence[str]) -> None:
    for first in range(0, len(names), SENT_AT_ONCE):
        messages = [
            d.Message(
                topic=PARENT,
                body=b"x",
                system_properties=d.SystemProperties(message_id=f"ID-{name}", lite_topic=name),
            )
            for name in names[first : first + SENT_AT_ONCE]
        ]
        request = s.SendMessageRequest(messages=messages)
        check((await stub.SendMessage(request, metadata=METADATA)).status)


async def drained_s(stub: Stub, client: LiteClient) -> float:
    """Seconds from the first send until the client had all. Raises RuntimeError when it got any
    of them twice."""
    names = [f"device-{number}" for number in range(NAMES)]
    await client.open(names)
    began = time.perf_counter()
    sending = asyncio.create_task(send(stub, names))
    while len(client.found) < NAMES:
        await client.receive()
    took = time.perf_counter() - began
    await sending
    if sorted(client.found) != sorted(names):
        raise RuntimeError(f"{len(client.found) - len({*client.found})} came twice")
    return took


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory() as data:
        async with started("-m", "aerobee_cli", *up(data)) as (_, line):
            addresses = dict(item.split("=") for item in line.split()[1:])
            await prepare(addresses["broker"])
            async with grpc.aio.insecure_channel(addresses["proxy"], options=OPTIONS) as channel:
                stub = Stub(s, channel)
                client = LiteClient(stub, await broker_name(stub, addresses["proxy"]))
                took = await drained_s(stub, client)
                client.close()
    note = f"one message in each of {NAMES:,} lite topics of one client; baseline: the limit"
    return [Result("lite_drain_10k_s", "s", took, LIMIT_S, took / LIMIT_S, 1.0, note)]


if __name__ == "__main__":
    print(asyncio.run(results()), file=sys.stderr)
