"""Hundreds of concurrent long polls: a message wakes only the one that it is for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from support.broker.calls import BrokerCaller
from support.clock.polling import until
from support.processes.service import namesrv_and_broker, proxy_process
from support.proxy.client import METADATA
from support.stubs import Stub

TOPICS, GROUPS = 10, 20
TopicAndGroup = tuple[int, int]  # by their numbers


def receive(pair: TopicAndGroup, broker_name: str) -> s.ReceiveMessageRequest:
    """A receive of the messages of a topic with the tag of the group."""
    topic, group = pair
    request = s.ReceiveMessageRequest(
        group=d.Resource(name=f"parked{group}"),
        message_queue=d.MessageQueue(
            topic=d.Resource(name=f"parked{topic}"), broker=d.Broker(name=broker_name)
        ),
        batch_size=1,
        filter_expression=d.FilterExpression(type=d.FilterType.TAG, expression=f"tag{group}"),
    )
    request.invisible_duration.seconds = 600
    request.long_polling_timeout.seconds = 20
    return request


def send(pair: TopicAndGroup) -> s.SendMessageRequest:
    topic, group = pair
    system = d.SystemProperties(message_id=f"{topic}-{group}", tag=f"tag{group}")
    message = d.Message(
        topic=d.Resource(name=f"parked{topic}"), body=b"x", system_properties=system
    )
    return s.SendMessageRequest(messages=[message])


class Receives:
    """Long polls, each repeated when it ends without a message."""

    def __init__(self, stub: Stub, broker_name: str) -> None:
        self._stub = stub
        self._broker_name = broker_name
        self.got: list[tuple[TopicAndGroup, str]] = []
        self._tasks: list[asyncio.Task[None]] = []

    def park(self, pair: TopicAndGroup) -> None:
        self._tasks.append(asyncio.create_task(self._receive(pair)))

    async def _receive(self, pair: TopicAndGroup) -> None:
        request = receive(pair, self._broker_name)
        while True:
            async for answer in self._stub.ReceiveMessage(request, metadata=METADATA):
                if answer.HasField("message"):
                    system = answer.message.system_properties
                    self.got.append((pair, system.message_id))
                    return

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_message_wakes_only_its_receiver(tmp_path: Path) -> None:
    with namesrv_and_broker(tmp_path) as (namesrv, broker), proxy_process(namesrv.address) as proxy:
        async with (
            grpc.aio.insecure_channel(proxy.address) as channel,
            BrokerCaller(broker.address) as caller,
        ):
            await parking(Stub(s, channel), caller)
        assert not proxy.events("rpc_failed") and not proxy.events("handler_failed")


async def parking(stub: Stub, broker: BrokerCaller) -> None:
    endpoints = d.Endpoints(
        scheme=d.AddressScheme.IPv4, addresses=[d.Address(host="127.0.0.1", port=8081)]
    )
    for topic in range(TOPICS):
        route = s.QueryRouteRequest(topic=d.Resource(name=f"parked{topic}"), endpoints=endpoints)
        answer = await stub.QueryRoute(route, metadata=METADATA)
    receives = Receives(stub, answer.message_queues[0].broker.name)
    pairs = [(topic, group) for topic in range(TOPICS) for group in range(GROUPS)]
    for pair in pairs:
        receives.park(pair)

    async def waiting(count: int) -> bool:
        return bool((await broker.status()).parked_pops == count)

    await until(lambda: waiting(len(pairs)), "all of them to wait", timeout_s=60)
    for number, pair in enumerate(pairs[::37], start=1):
        await stub.SendMessage(send(pair), metadata=METADATA)
        await until(lambda: len(receives.got) >= number, "one to wake")  # noqa: B023
        assert receives.got[-1] == (pair, f"{pair[0]}-{pair[1]}")
    assert len(receives.got) == len(pairs[::37]), "nobody else woke"
    await receives.leave()

    await until(lambda: waiting(0), "nobody to wait any more", timeout_s=60)
