"""The client while servers die and restart: no acknowledged message is lost, no call hangs."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPushConsumer,
    BrokerUnreachable,
    Message,
    MqError,
    ReceivedMessage,
)
from aerobee_wire.status import Code
from support.clock.polling import TIMEOUT_S, until
from support.processes.service import ServiceProcess, named_broker, namesrv_process

PATIENT = timedelta(seconds=60)
TOPIC = "flights"


class Suite:
    """A name server and any number of brokers, started on entry."""

    def __init__(self, data: Path, *broker_names: str) -> None:
        self._stack = ExitStack()
        self._data = data
        self.namesrv = namesrv_process(data)
        self._stack.enter_context(self.namesrv)
        self.brokers = {name: self._start(name) for name in broker_names}

    def _start(self, name: str) -> ServiceProcess:
        return self._stack.enter_context(
            named_broker(self._data, name, namesrv=self.namesrv.address)
        )

    def stop(self) -> None:
        self._stack.close()


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[Suite]:
    suite = Suite(tmp_path, "broker-a")
    yield suite
    suite.stop()


async def revive(process: ServiceProcess) -> None:
    """kill -9, and a start on the same port."""
    await asyncio.to_thread(process.kill)
    await asyncio.to_thread(process.start)


async def test_sends_to_a_frozen_broker_end_at_their_deadline(suite: Suite) -> None:
    """More accumulated sends than there is room for. When the broker goes on, there is room."""
    broker = suite.brokers["broker-a"]
    timeout = timedelta(seconds=1)
    async with AsyncAdminClient(suite.namesrv.address) as admin:
        await admin.create_topic(TOPIC)
    async with AsyncProducer(
        namesrv=suite.namesrv.address, max_pending_messages=500, send_timeout=timeout
    ) as producer:
        await producer.send(Message(TOPIC, b"first"), timeout=PATIENT)
        broker.send_signal(signal.SIGSTOP)
        # The last ones wait for room, and their deadlines are before those that make room.
        sends = [producer.send(Message(TOPIC, b"frozen")) for _ in range(1_000)]
        sends += [
            producer.send(Message(TOPIC, b"frozen"), timeout=timeout / 2) for _ in range(1_000)
        ]
        async with asyncio.timeout(TIMEOUT_S):
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
        codes = Counter(getattr(outcome, "code", None) for outcome in outcomes)
        broker.send_signal(signal.SIGCONT)
        await producer.send(Message(TOPIC, b"thawed"), timeout=PATIENT)
    assert set(codes) <= {Code.REQUEST_TIMEOUT, Code.BROKER_UNREACHABLE, Code.FLOW_CONTROL}
    assert codes[Code.FLOW_CONTROL], "there was room for a quarter of them"


async def test_acknowledged_messages_survive_a_killed_broker(suite: Suite) -> None:
    """P1, P2, P7: producer and consumer go on while the broker is killed three times."""
    address = suite.namesrv.address
    broker = suite.brokers["broker-a"]
    acknowledged: list[bytes] = []
    seen: list[bytes] = []
    stop = asyncio.Event()

    async def produce(producer: AsyncProducer) -> None:
        number = 0
        while not stop.is_set():
            bodies = [b"%d" % n for n in range(number, number + 50)]
            number += 50
            await producer.send_batch([Message(TOPIC, body) for body in bodies])
            acknowledged.extend(bodies)

    consumer = AsyncPushConsumer("g", lambda m: seen.append(m.body), namesrv=address)
    consumer.subscribe(TOPIC)
    async with AsyncProducer("p", namesrv=address, send_timeout=PATIENT) as producer, consumer:
        producing = asyncio.create_task(produce(producer))
        for _ in range(3):
            before = len(acknowledged)
            await until(lambda before=before: len(acknowledged) > before + 500)  # type: ignore[misc]
            await revive(broker)
        before = len(acknowledged)
        await until(lambda: len(acknowledged) > before + 500)
        stop.set()
        await producing
        await until(lambda: set(acknowledged) <= set(seen))
    assert set(seen) == set(acknowledged)  # a batch that was retried is the same messages


async def test_failures_survive_a_killed_broker(suite: Suite) -> None:
    """P5 with kill -9 between the attempts: each failing message is dead-lettered once."""
    address = suite.namesrv.address
    broker = suite.brokers["broker-a"]
    attempts: Counter[bytes] = Counter()

    def listen(message: ReceivedMessage) -> None:
        attempts[message.body] += 1
        raise ValueError("always")

    async with AsyncAdminClient(address) as admin:
        await admin.create_group("g", max_attempts=3, retry_delays=[timedelta(seconds=1)])
        async with AsyncProducer("p", namesrv=address) as producer:
            await producer.send_batch([Message(TOPIC, b"%d" % n) for n in range(20)])
        consumer = AsyncPushConsumer("g", listen, namesrv=address)
        consumer.subscribe(TOPIC)
        async with consumer:
            await until(lambda: len(attempts) == 20)
            await revive(broker)
            await until(lambda: _dead(admin, 20), retry_on=(MqError,))
    assert min(attempts.values()) >= 3


async def _dead(admin: AsyncAdminClient, count: int) -> bool:
    browsed = await admin.browse("%DLQ%g", "broker-a", 0, 0, max_messages=100)
    bodies = Counter(message.body for message in browsed.messages())
    return len(bodies) == count


async def test_offsets_outlive_a_broker_that_is_stopped(suite: Suite) -> None:
    address = suite.namesrv.address
    seen: list[bytes] = []

    async def consume_until(count: int) -> None:
        consumer = AsyncPushConsumer("g", lambda m: seen.append(m.body), namesrv=address)
        consumer.subscribe(TOPIC)
        async with consumer:
            await until(lambda: len(seen) >= count)

    async with AsyncProducer("p", namesrv=address, send_timeout=PATIENT) as producer:
        await producer.send_batch([Message(TOPIC, b"%d" % n) for n in range(100)])
        await consume_until(100)
        await asyncio.to_thread(suite.brokers["broker-a"].restart)
        await producer.send(Message(TOPIC, b"new"))
        await consume_until(101)
    assert seen[100:] == [b"new"]


async def test_clients_work_while_the_name_server_restarts(suite: Suite) -> None:
    address = suite.namesrv.address
    seen: list[bytes] = []
    consumer = AsyncPushConsumer("g", lambda m: seen.append(m.body), namesrv=address)
    consumer.subscribe(TOPIC)
    async with AsyncProducer("p", namesrv=address) as producer, consumer:
        await producer.send(Message(TOPIC, b"before"))
        await until(lambda: seen == [b"before"])
        await asyncio.to_thread(suite.namesrv.kill)
        await producer.send(Message(TOPIC, b"during"))
        await until(lambda: seen[1:] == [b"during"])
        await asyncio.to_thread(suite.namesrv.start)
        await producer.send(Message(TOPIC, b"after"))
        await until(lambda: seen[2:] == [b"after"])
        await until(
            lambda: producer.send(Message("another", b"x")), retry_on=(MqError,), timeout_s=40
        )


async def test_the_other_broker_takes_over(tmp_path: Path) -> None:
    suite = Suite(tmp_path, "broker-a", "broker-b")
    address = suite.namesrv.address
    seen: list[bytes] = []
    try:
        consumer = AsyncPushConsumer("g", lambda m: seen.append(m.body), namesrv=address)
        consumer.subscribe(TOPIC)
        async with AsyncAdminClient(address) as admin, AsyncProducer("p", namesrv=address) as p:
            await admin.create_topic(TOPIC, queues=2)
            async with consumer:
                sent = [b"%d" % n for n in range(20)]
                results = [await p.send(Message(TOPIC, body)) for body in sent[:10]]
                assert {result.queue.broker_name for result in results} == set(suite.brokers)
                await asyncio.to_thread(suite.brokers["broker-a"].kill)
                results = [await p.send(Message(TOPIC, body)) for body in sent[10:]]
                assert {result.queue.broker_name for result in results} == {"broker-b"}
                await asyncio.to_thread(suite.brokers["broker-a"].start)
                await until(lambda: set(seen) == set(sent), timeout_s=60)
    finally:
        suite.stop()


async def test_send_to_a_dead_broker_names_it(suite: Suite) -> None:
    address = suite.namesrv.address
    broker = suite.brokers["broker-a"]
    async with AsyncProducer("p", namesrv=address, send_timeout=timedelta(seconds=1)) as producer:
        await producer.send(Message(TOPIC, b"x"))
        where = broker.address
        await asyncio.to_thread(broker.kill)
        with pytest.raises(BrokerUnreachable) as caught:
            await producer.send(Message(TOPIC, b"x"))
    assert where in caught.value.message
