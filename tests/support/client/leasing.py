"""Simple consumers of the group "g" over real brokers, in one loop with virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from aerobee_broker.metadata.topics import TopicConfig
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.simple_consumer import AsyncSimpleConsumer
from aerobee_wire import properties
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import Code, MqError
from support.broker.harness import BrokerHarness
from support.broker.in_process import InProcess
from support.clock.virtual_loop import LoopClock

TOPIC, GROUP = "flights", "g"
NAMESRV = "10.0.0.9:9876"
LEASE = timedelta(seconds=10)
NO_WAIT = timedelta(0)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


class Brokers(InProcess):
    """`lost`: RPC → how many of its answers are lost, although the broker has carried it out."""

    def __init__(self, brokers: Mapping[str, BrokerHarness]) -> None:
        super().__init__(brokers)
        self.lost: Counter[str] = Counter()
        self.requests: list[tuple[str, Any]] = []

    async def call(
        self, address: str, rpc: Rpc[Any, Any], request: Any, *, timeout_s: float
    ) -> Any:
        self.requests.append((rpc.method, request))
        answer = await super().call(address, rpc, request, timeout_s=timeout_s)
        if self.lost[rpc.method]:
            self.lost[rpc.method] -= 1
            raise MqError(Code.BROKER_UNREACHABLE, "the answer is lost")
        return answer

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.requests)

    def of(self, method: str) -> list[Any]:
        return [request for name, request in self.requests if name == method]


class Leasing:
    """Begin with `await Leasing.begin(path)`: TOPIC has two queues on each broker."""

    def __init__(self, brokers: Mapping[str, BrokerHarness]) -> None:
        self.brokers = brokers
        self.transport = Brokers(brokers)
        self.stack = AsyncExitStack()

    @classmethod
    async def begin(cls, path: Path, *names: str, **options: Any) -> Leasing:
        brokers = {
            name: await BrokerHarness.begin(path / name, brokerName=name, **options)
            for name in names or ("a",)
        }
        leasing = cls(brokers)
        leasing.topic(TOPIC, queues=2)
        return leasing

    async def end(self) -> None:
        await self.stack.aclose()
        for broker in self.brokers.values():
            await broker.end()
        assert not self.transport.defects

    def topic(self, name: str, *, queues: int = 1, message_type: str = "NORMAL") -> None:
        attributes = {"message.type": message_type}
        for broker in self.brokers.values():
            broker.tables.topics.put(TopicConfig(name, queues, queues, attributes=attributes))

    def consumer(self, *topics: str, expression: str = "*", **settings: Any) -> AsyncSimpleConsumer:
        """Of TOPIC, unless others are named; to be started."""
        consumer = AsyncSimpleConsumer(
            GROUP, namesrv=NAMESRV, transport=self.transport, clock=LoopClock(), **settings
        )
        for topic in topics or (TOPIC,):
            consumer.subscribe(topic, expression)
        return consumer

    async def started(self, *topics: str, **settings: Any) -> AsyncSimpleConsumer:
        """Closed at the end of the test."""
        return await self.stack.enter_async_context(self.consumer(*topics, **settings))

    async def send(
        self,
        *bodies: bytes,
        to: str = "a",
        topic: str = TOPIC,
        message_group: str = "",
        queue_id: int = 0,
        **names: str,
    ) -> None:
        """Messages to one queue of one broker."""
        given = {properties.SHARDING_KEY: message_group, **names}
        kept = {name: value for name, value in given.items() if value}
        await self.brokers[to].send(topic, *bodies, queue_id=queue_id, properties=kept)


def bodies(messages: Iterable[LeasedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def deliveries(messages: Iterable[LeasedMessage]) -> list[tuple[bytes, int]]:
    """Body and delivery attempt of each."""
    return [(message.body, message.delivery_attempt) for message in messages]
