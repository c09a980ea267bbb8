"""A broker without sockets and threads: the whole wiring over a real store in a directory.

What the product does off the loop happens on the spot, unless a test holds the flusher.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from aerobee_broker.broker import Broker
from aerobee_broker.cluster.identity import Identity
from aerobee_broker.commit.commit import ALONE, Replicas
from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.delivery.send.send import SendMessage, SendResult
from aerobee_broker.disk import Disk, RealDisk
from aerobee_broker.metadata.runtime_config import RuntimeConfig
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.store.format import THIS_BUILD, Build, FormatFile
from aerobee_broker.traces import BrokerTraces
from aerobee_broker.wiring.environment import Environment
from aerobee_broker.wiring.store import open_store
from aerobee_broker.wiring.tables import Tables
from aerobee_chassis.clock import Clock
from aerobee_chassis.lifecycle import Lifecycle
from aerobee_chassis.metrics.series import Registry
from aerobee_wire.message_id import pack_host
from aerobee_wire.record import Record, iter_records
from support.clock.virtual_loop import LoopClock

T = TypeVar("T")

STORE_HOST = "10.0.0.1:10911"
BORN_HOST = pack_host("10.0.0.7:4711")
SMALL: dict[str, Any] = {
    "mappedFileSizeCommitLog": 8 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 1_000,
}


class InlineWorker:
    """A Worker that runs on the spot. While `held`, it waits to be let go, or fails."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.calls = 0

    def hold(self) -> None:
        self.open.clear()

    def let_go(self) -> None:
        self.open.set()

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        return self._run(function)

    async def _run(self, function: Callable[[], T]) -> T:
        self.calls += 1
        await self.open.wait()
        return function()


class PromptWorker(InlineWorker):
    """Ends a held job within `let_go`, as a thread that ends it in that iteration of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        if self.open.is_set():
            return super().__call__(function)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._held.append((function, future))
        return future

    def let_go(self) -> None:
        super().let_go()
        held, self._held = self._held, []
        for function, future in held:
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)


class BrokerHarness:
    """`options` are keys of broker.conf. Unit tests start and end it by fixture `begin`."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        disk: Disk,
        options: dict[str, Any],
        flusher: InlineWorker,
        *,
        replicas: Replicas = ALONE,
        journalled: bool = False,
        build: Build = THIS_BUILD,
        traces: BrokerTraces | None = None,
    ) -> None:
        self.options = BrokerOptions.from_values(
            {**SMALL, "brokerName": "broker-a", "storePathRootDir": path, **options}
        )
        self.clock = clock
        self.flusher = flusher
        self.announced: list[list[str]] = []
        self.unreachable: list[str] = []
        self.spread: list[TopicConfig] = []
        self.metrics = BrokerMetrics(Registry())
        writer = InlineWorker()
        self.config = RuntimeConfig(self.options, disk, path, writer)
        self.config.load()
        environment = Environment(
            config=self.config,
            clock=clock,
            disk=disk,
            path=path,
            flusher=self.flusher,
            writer=writer,
            rng=random.Random(1),
            metrics=self.metrics,
            format=FormatFile(disk, path, build),
            traces=traces,
        )
        self.in_flight = environment.in_flight
        self.store = open_store(environment, STORE_HOST)
        self.tables = Tables(environment, replicated=journalled)
        identity = Identity(
            cluster="DefaultCluster",
            broker_name=options.get("brokerName", "broker-a"),
            broker_id=0,
            address="10.0.0.1:10911",
            store_host=STORE_HOST,
            version="0",
            start_timestamp_ms=clock.now_ms(),
        )
        self.broker = Broker(
            environment,
            self.store,
            self.tables,
            identity,
            announce=self._announce,
            spread=self._spread,
            replicas=replicas,
        )
        self.lifecycle = Lifecycle()
        self._ended = False

    @classmethod
    async def begin(
        cls,
        path: Path,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        flusher: InlineWorker | None = None,
        replicas: Replicas = ALONE,
        journalled: bool = False,
        build: Build = THIS_BUILD,
        traces: BrokerTraces | None = None,
        **options: Any,
    ) -> BrokerHarness:
        clock, disk, flusher = clock or LoopClock(), disk or RealDisk(), flusher or InlineWorker()
        harness = cls(
            path / "store",
            clock,
            disk,
            options,
            flusher,
            replicas=replicas,
            journalled=journalled,
            build=build,
            traces=traces,
        )
        if journalled:  # what a replica does before it has a role
            harness.tables.restore()
        await harness.lifecycle.start(*harness.broker.components())
        return harness

    async def end(self) -> None:
        """A clean stop, in the product's order; nothing if it has ended."""
        if self._ended:
            return
        self._ended = True
        self.broker.end_long_calls()
        await self.lifecycle.stop()
        self.store.close()

    async def _announce(self) -> list[str]:
        self.announced.append(sorted(config.topic for config in self.tables.topics.all()))
        return self.unreachable

    async def _spread(self, config: TopicConfig) -> None:
        self.spread.append(config)

    # ---- shorthands ----

    async def group(self, name: str, **fields: Any) -> SubscriptionGroup:
        group = SubscriptionGroup(name, **fields)
        await self.broker.groups.put(group)
        return group

    async def send(self, topic: str, *bodies: bytes, **fields: Any) -> list[SendResult]:
        return await self.broker.sending.sender.send(
            [message(topic, body, **fields) for body in bodies]
        )

    async def read(
        self, topic: str, queue_id: int = 0, queue_offset: int = 0, **fields: Any
    ) -> list[Record]:
        """Messages of a queue, without a group."""
        pull = PullRequest(
            "", topic, queue_id, queue_offset, browse=True, max_messages=1_000, **fields
        )
        result, _ = await self.broker.consuming.pull.pull(pull)
        return list(iter_records(result.records))

    async def bodies(self, topic: str, queue_ids: Sequence[int] = (0,)) -> list[bytes]:
        return [record.body for queue in queue_ids for record in await self.read(topic, queue)]


# Starts the broker, or ends it and starts it again: `await begin(enableX=True)`.
Begin = Callable[..., Awaitable[BrokerHarness]]


def message(topic: str, body: bytes, queue_id: int | None = 0, **fields: Any) -> SendMessage:
    properties = dict(fields.pop("properties", {}))
    return SendMessage(topic, body, properties, queue_id, born_host=BORN_HOST, **fields)
