"""Call a proxy by the lean client of bench/load.py, which does as little work as possible.

Aerobee's proxy and Apache's get the same calls, so only the servers differ.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_client import AsyncAdminClient
from bench import load
from bench.load import SERVICE
from bench.peers.clients.program import Client, See, main
from bench.peers.clients.stored import stored
from bench.peers.tally import body as make_body
from support.stubs import Stub

RECEIVE = 32
INVISIBLE_S, WAIT_S, TIMEOUT_S = 60, 1, 30.0
QUEUES = 8
PRODUCER, CONSUMER = (
    (
        ("x-mq-client-id", f"bench@1@0@{who}"),
        ("x-mq-language", "PYTHON"),
        ("x-mq-protocol", "v2"),
        ("x-mq-client-version", "5.1.2"),
    )
    for who in ("producer", "consumer")
)


class LeanV2(Client):
    title = "lean v2 client"
    drained = 20_000
    prefix = "v2_"
    how = {"drain": "receive 32, one acknowledgement for them"}  # noqa: RUF012

    def __init__(self, address: dict[str, Any]) -> None:
        super().__init__(address)
        self._proxy = str(address["proxy"])
        host, _, port = self._proxy.rpartition(":")
        self._endpoints = d.Endpoints(
            scheme=d.AddressScheme.IPv4, addresses=[d.Address(host=host, port=int(port))]
        )
        self._received = self._acknowledged = 0
        self._unique = itertools.count()

    async def open(self) -> None:
        self._producer = load.Client(self._proxy, PRODUCER, TIMEOUT_S)
        self._consumer = load.Client(self._proxy, CONSUMER, TIMEOUT_S)
        self._settings = grpc.insecure_channel(self._proxy)
        self._streams: list[Any] = []

    async def close(self) -> None:
        self._settings.close()

    async def create(self, queue: str) -> None:
        """Create a topic, and send settings. The broker of Apache has the topics already."""
        if "namesrv" in self.address:
            async with AsyncAdminClient(self.address["namesrv"]) as admin:
                await admin.create_topic(queue, queues=QUEUES)
        name = d.Resource(name=queue)
        filters = d.FilterExpression(type=d.FilterType.TAG, expression="*")
        subscription = d.Subscription(
            group=name, subscriptions=[d.SubscriptionEntry(topic=name, expression=filters)]
        )
        await self._introduce(
            PRODUCER,
            d.Settings(client_type=d.ClientType.PRODUCER, publishing=d.Publishing(topics=[name])),
        )
        await self._introduce(
            CONSUMER,
            d.Settings(client_type=d.ClientType.SIMPLE_CONSUMER, subscription=subscription),
        )

    async def _introduce(self, client: tuple[tuple[str, str], ...], settings: d.Settings) -> None:
        """Send settings on a stream that stays open."""
        settings.access_point.CopyFrom(self._endpoints)
        commands = _Open(s.TelemetryCommand(settings=settings))
        stub = Stub(s, self._settings)
        stream = stub.Telemetry(commands, metadata=client)
        await asyncio.to_thread(next, stream)
        self._streams.append((commands, stream))

    async def publish(self, queue: str, body: bytes) -> None:
        bodies = iter([body])
        self._producer.run(lambda: self._send(queue, next(bodies)), 1, lambda: False)

    async def send(self, queue: str, numbers: Iterator[int], in_flight: int, end: float) -> int:
        return self._producer.run(
            lambda: self._send(queue, make_body(next(numbers))),
            in_flight,
            lambda: time.perf_counter() < end,
        )

    async def fill(self, queue: str, count: int) -> None:
        numbers = itertools.count()
        in_flight = min(64, count)
        left = count - in_flight

        def goes_on() -> bool:
            nonlocal left
            left -= 1
            return left >= 0

        self._producer.run(lambda: self._send(queue, make_body(next(numbers))), in_flight, goes_on)

    async def _send(self, queue: str, body: bytes) -> int:
        number = next(self._unique)
        system = d.SystemProperties(
            message_id=f"01{number:032X}",
            message_type=d.MessageType.NORMAL,
            born_host="bench",
            queue_id=number % QUEUES,
        )
        system.born_timestamp.GetCurrentTime()
        message = d.Message(topic=d.Resource(name=queue), body=body, system_properties=system)
        request = s.SendMessageRequest(messages=[message]).SerializeToString()
        answer = await self._producer.unary(SERVICE + "SendMessage", request)
        _check(s.SendMessageResponse.FromString(answer).status)
        return 1

    async def stored(self, queue: str) -> int:
        if "store" in self.address:
            return stored(Path(self.address["store"]), queue)
        async with AsyncAdminClient(self.address["namesrv"]) as admin:
            return sum(each.max_offset for each in await admin.topic_status(queue))

    async def unsettled(self, queue: str) -> int:
        return self._received - self._acknowledged

    async def drain(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        in_flight = int(queue.rpartition("_")[2]) if queue[-1].isdigit() else 8
        topic = group = d.Resource(name=queue)
        request = s.QueryRouteRequest(topic=topic, endpoints=self._endpoints)
        routes: list[s.QueryRouteResponse] = []

        async def route() -> int:
            answer = await self._consumer.unary(SERVICE + "QueryRoute", request.SerializeToString())
            routes.append(s.QueryRouteResponse.FromString(answer))
            _check(routes[0].status)
            return 0

        self._consumer.run(route, 1, lambda: False)
        receive = s.ReceiveMessageRequest(
            group=group, message_queue=routes[0].message_queues[0], batch_size=RECEIVE
        )
        receive.filter_expression.type = d.FilterType.TAG
        receive.filter_expression.expression = "*"
        receive.invisible_duration.seconds = INVISIBLE_S
        receive.long_polling_timeout.seconds = WAIT_S
        wanted = receive.SerializeToString()

        async def batch() -> int:
            stream = await self._consumer.stream(SERVICE + "ReceiveMessage", wanted)
            entries = []
            for one in map(s.ReceiveMessageResponse.FromString, stream):
                if one.WhichOneof("content") == "status":
                    if one.status.code != d.Code.MESSAGE_NOT_FOUND:
                        _check(one.status)
                elif one.WhichOneof("content") == "message":
                    see(one.message.body)
                    system = one.message.system_properties
                    entries.append(
                        s.AckMessageEntry(
                            message_id=system.message_id, receipt_handle=system.receipt_handle
                        )
                    )
            if entries:
                self._received += len(entries)
                ack = s.AckMessageRequest(group=group, topic=topic, entries=entries)
                answer = await self._consumer.unary(SERVICE + "AckMessage", ack.SerializeToString())
                _check(s.AckMessageResponse.FromString(answer).status)
                self._acknowledged += len(entries)
                if is_done() and self._acknowledged == self._received:
                    self.on_settled()
            return len(entries)

        self._consumer.run(batch, in_flight, lambda: not is_done())


class _Open:
    """Send one command, and keep the stream open."""

    def __init__(self, command: s.TelemetryCommand) -> None:
        self._commands: list[s.TelemetryCommand] = [command]

    def __iter__(self) -> _Open:
        return self

    def __next__(self) -> s.TelemetryCommand:
        while not self._commands:
            time.sleep(3_600)
        return self._commands.pop()


def _check(status: d.Status) -> None:
    if status.code != d.Code.OK:
        raise RuntimeError(f"{d.Code.Name(status.code)}: {status.message}")


if __name__ == "__main__":
    main(LeanV2)
