"""Members that join, leave and are cut off, brokers that die, calls that are lost; by seed, on a
virtual clock.

No offset is committed beyond what was consumed or sent back, and in the end all is consumed. In a
group that consumes in order, no message is begun before those in front of it are done, and no two
listeners of one queue run at once but where a lock broke.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import pytest

from aerobee_client.cluster import client_instance
from aerobee_client.errors import BrokerUnreachable, RequestTimeout
from aerobee_client.message import ReceivedMessage
from aerobee_client.options.consumer import ConsumeFromWhere
from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import MqError
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.clock.virtual_loop import LoopClock, VirtualLoop

TOPIC = "flights"
GROUP = "g"
QUEUES = 3
CLIENT_TIMEOUT_S = 120  # after which a broker unregisters a silent client
LONG_ENOUGH_S = 2_000
LAST_PAUSE_S = 60

Position = tuple[str, str, int, int]  # broker, topic, queue id, queue offset


class FaultyCluster(MemoryCluster):
    """Loses requests and responses, is slow, ends long polls and unregisters silent clients, until
    it is `calm`. Checks every committed offset."""

    def __init__(self, rng: random.Random, *brokers: MemoryBroker) -> None:
        super().__init__(*brokers)
        self.calm = False
        # Consumed, or sent back.
        self.done: set[Position] = set()
        # Offsets committed beyond that. (An error raised here would go to the client.)
        self.beyond: set[Position] = set()
        self._rng = rng
        self._faults = rng.choice([0, 0.02, 0.1])
        self._beats: dict[tuple[str, str], float] = {}

    async def call(
        self, address: str, rpc: Rpc[Any, Any], request: Any, *, timeout_s: float
    ) -> Any:
        luck = 1.0 if self.calm else self._rng.random()
        if luck < self._faults:
            raise BrokerUnreachable(address, "the request was lost")
        if luck < 2 * self._faults:
            await asyncio.sleep(timeout_s)
            raise RequestTimeout(address, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await self._be_slow()
                answer = await super().call(address, rpc, request, timeout_s=timeout_s)
                await self._be_slow()
        except TimeoutError:
            raise RequestTimeout(address, timeout_s) from None
        if luck < 3 * self._faults:
            raise BrokerUnreachable(address, "the answer was lost")
        return answer

    async def _be_slow(self) -> None:
        await asyncio.sleep(0 if self.calm else self._rng.choice([0, 0, 0.001, 0.5]))

    def unregister_silent_clients(self) -> None:
        now = asyncio.get_running_loop().time()
        for broker in self.brokers.values():
            for client_id in list(broker.clients):
                if now - self._beats[broker.name, client_id] > CLIENT_TIMEOUT_S:
                    self._forget(broker, client_id)

    def _check(self, broker: MemoryBroker, topic: str, queue_id: int, queue_offset: int) -> None:
        below = {(broker.name, topic, queue_id, offset) for offset in range(queue_offset)}
        self.beyond |= below - self.done

    def _Heartbeat(self, broker: MemoryBroker, request: Any) -> Any:
        self._beats[broker.name, request.client_id] = asyncio.get_running_loop().time()
        return super()._Heartbeat(broker, request)

    def _UpdateConsumerOffsets(self, broker: MemoryBroker, request: Any) -> Any:
        for committed in request.offsets:
            self._check(broker, committed.topic, committed.queue_id, committed.queue_offset)
        return super()._UpdateConsumerOffsets(broker, request)

    async def _Pull(self, broker: MemoryBroker, request: Any) -> Any:
        if request.HasField("commit_offset"):
            self._check(broker, request.topic, request.queue_id, request.commit_offset)
        try:
            async with asyncio.timeout(request.suspend_timeout_ms / 1000 + 0.001):
                return await super()._Pull(broker, request)
        except TimeoutError:
            request.suspend_timeout_ms = 0
            return await super()._Pull(broker, request)

    async def _SendBack(self, broker: MemoryBroker, request: Any) -> Any:
        places = {
            record.physical_offset: (broker.name, topic, record.queue_id, record.queue_offset)
            for topic in broker.topics
            for record in broker.messages(topic)
        }
        response = await super()._SendBack(broker, request)
        for entry, result in zip(request.entries, response.results, strict=True):
            if not result.code:
                self.done.add(places[entry.physical_offset])
        return response


class History:
    """One run of a group. `sent`, `consumed`: bodies."""

    def __init__(self, seed: int, *, orderly: bool) -> None:
        self.orderly = orderly
        # Broker, topic and queue id → what listens to it: the locks that broke before it began.
        self.listening: dict[tuple[str, str, int], list[int]] = {}
        # What the listeners of a group in order were to be spared.
        self.disorder: list[str] = []
        self.rng = random.Random(seed)
        self.brokers = [MemoryBroker(name, f"10.0.0.1{name}:10911") for name in "12"]
        for broker in self.brokers:
            broker.create(TOPIC, QUEUES)
            broker.max_reconsume_times = 1_000_000
        self.cluster = FaultyCluster(self.rng, *self.brokers)
        self.clock = LoopClock()
        self.members: list[AsyncPushConsumer] = []
        self.sent: set[bytes] = set()
        self.consumed: set[bytes] = set()

    async def listen(self, message: ReceivedMessage) -> None:
        if not self.orderly:
            await self.consume(message)
            return
        broker = next(broker for broker in self.brokers if broker.name == message.broker_name)
        key = (GROUP, message.stored_topic, message.queue_id)
        queue = (broker.name, message.stored_topic, message.queue_id)
        in_front = {(*queue, offset) for offset in range(message.queue_offset)}
        if in_front - self.cluster.done:
            self.disorder.append(f"{message!r} before those in front of it")
        broke = sum(broken == key for broken, _ in broker.locks.broken)
        others = self.listening.setdefault(queue, [])
        if any(before == broke for before in others):
            self.disorder.append(f"{message!r} while another listener runs")
        others.append(broke)
        try:
            await self.consume(message)
        finally:
            others.remove(broke)

    async def consume(self, message: ReceivedMessage) -> None:
        if not self.cluster.calm:
            await asyncio.sleep(self.rng.choice([0, 0, 0.01, 0.3, 2, 20]))
            if self.rng.random() < 0.2:
                raise ValueError("not this time")
        topic, queue_id = message.stored_topic, message.queue_id
        self.cluster.done.add((message.broker_name, topic, queue_id, message.queue_offset))
        self.consumed.add(message.body)

    async def send(self) -> None:
        for _ in range(self.rng.randrange(10)):
            body = b"%d" % len(self.sent)
            self.rng.choice(self.brokers).append(TOPIC, self.rng.randrange(QUEUES), body, b"")
            self.sent.add(body)
        for broker in self.brokers:
            await broker.wake()

    async def join(self) -> None:
        in_order: dict[str, Any] = {}
        if self.orderly:
            suspend_time = timedelta(seconds=self.rng.choice([0.01, 1, 30]))
            in_order = {"orderly": True, "suspend_time": suspend_time}
            for broker in self.brokers:
                broker.max_reconsume_times = self.rng.choice([0, 2, 1_000])
        member = AsyncPushConsumer(
            GROUP,
            self.listen,
            namesrv=NAMESRV,
            transport=self.cluster,
            clock=self.clock,
            concurrency=self.rng.choice([1, 4, 20]),
            pull_batch_size=self.rng.choice([1, 8, 128]),
            pull_threshold_for_queue=self.rng.choice([1, 10, 1_000]),
            consume_timeout=timedelta(seconds=self.rng.choice([5, 900])),
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            **in_order,
        )
        member.subscribe(TOPIC)
        try:
            await member.start()
        except MqError:
            return
        self.members.append(member)

    async def leave(self) -> None:
        member = self.members.pop(self.rng.randrange(len(self.members)))
        closing = asyncio.create_task(member.close(timedelta(seconds=self.rng.choice([0, 1, 30]))))
        if self.rng.random() < 0.4:
            await asyncio.sleep(self.rng.choice([0, 0.01, 1]))
            closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)

    async def something(self) -> None:
        kind = self.rng.choice(["join", "leave", "kill", "namesrv", "nothing"])
        broker = self.rng.choice(self.brokers)
        if kind == "join" and len(self.members) < 4:
            await self.join()
        elif kind == "leave" and self.members:
            await self.leave()
        elif kind == "kill" and broker.address in self.cluster.down:
            self.cluster.revive(broker)
        elif kind == "kill":
            await self.cluster.kill(broker)
        elif kind == "namesrv":
            self.cluster.down ^= {NAMESRV}

    def dead_lettered(self) -> set[bytes]:
        dead = f"%DLQ%{GROUP}"
        return {record.body for broker in self.brokers for record in broker.messages(dead)}

    async def play(self) -> None:
        for _ in range(self.rng.randrange(15, 40)):
            await self.send()
            await self.something()
            await asyncio.sleep(self.rng.choice([0.01, 0.3, 3, 12, 40]))
        self.cluster.calm = True
        self.cluster.down.clear()
        while not self.members:
            await self.join()
        async with asyncio.timeout(LONG_ENOUGH_S):
            while not self.consumed | self.dead_lettered() >= self.sent:
                self.cluster.unregister_silent_clients()
                await asyncio.sleep(1)
        await asyncio.sleep(LAST_PAUSE_S)  # duplicates are consumed too
        for member in self.members:
            await member.close()
        await asyncio.sleep(CLIENT_TIMEOUT_S)
        self.cluster.unregister_silent_clients()


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_every_message_is_consumed_and_no_offset_passes_one(
    seed: int, orderly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def life() -> None:
        history = History(seed, orderly=orderly)
        ids = history.rng
        monkeypatch.setattr(client_instance, "new_client_id", lambda _: f"c{ids.getrandbits(64)}")
        await history.play()
        offsets = [
            offset
            for broker in history.brokers
            for (_, topic, _), offset in broker.offsets.items()
            if topic == TOPIC
        ]
        assert not history.disorder
        assert not history.cluster.beyond
        assert sum(offsets) == len(history.sent)
        assert not any(broker.clients for broker in history.brokers)
        assert len(asyncio.all_tasks()) == 1

    random.seed(seed)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(life())
