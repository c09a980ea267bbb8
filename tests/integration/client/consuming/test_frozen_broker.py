"""One of two brokers is frozen by SIGSTOP: consumers without a listener go on with the other one,
each call about the frozen one fails by itself, and what was begun is ended after the thaw."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncSimpleConsumer,
    ConsumeFromWhere,
    LeasedMessage,
    Message,
    MessageQueue,
    MqError,
)
from aerobee_wire.status import Code
from support.clock.polling import until
from support.processes.service import ServiceProcess, namesrv_and_brokers

TOPIC, COUNT = "partly-frozen", 40
ALIVE, FROZEN = NAMES = ("broker-a", "broker-b")
FIRST = ConsumeFromWhere.FIRST_OFFSET
LEASE = timedelta(minutes=10)
ABSENT = {Code.REQUEST_TIMEOUT, Code.BROKER_UNREACHABLE}
HANGS_S = 120.0  # then a call is taken to hang


class Group:
    """Consumers of a topic with one queue on each broker, which has COUNT messages there; and the
    broker to freeze."""

    def __init__(
        self,
        broker: ServiceProcess,
        producer: AsyncProducer,
        pulling: AsyncPullConsumer,
        leasing: AsyncSimpleConsumer,
    ) -> None:
        self.broker = broker
        self.producer = producer
        self.pulling = pulling
        self.leasing = leasing

    async def pull(self, count: int) -> list[str]:
        """The brokers of the next messages."""
        found: list[str] = []
        while len(found) < count:
            found += [message.broker_name for message in await self.pulling.poll()]
        return found

    async def lease(self, count: int) -> list[LeasedMessage]:
        found: list[LeasedMessage] = []
        while len(found) < count:
            found += await self.leasing.receive(32, LEASE)
        return found


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    with namesrv_and_brokers(tmp_path, names=NAMES) as (namesrv, brokers):
        async with AsyncExitStack() as clients:
            address = namesrv.address
            admin = await clients.enter_async_context(AsyncAdminClient(address))
            await admin.create_topic(TOPIC, queues=1)
            group = Group(
                brokers[FROZEN],
                AsyncProducer(namesrv=address),
                AsyncPullConsumer("frozen-pull", namesrv=address, consume_from_where=FIRST),
                AsyncSimpleConsumer(
                    "frozen-pop",
                    namesrv=address,
                    consume_from_where=FIRST,
                    request_timeout=timedelta(seconds=2),
                ),
            )
            group.pulling.subscribe(TOPIC)
            group.leasing.subscribe(TOPIC)
            for client in (group.producer, group.pulling, group.leasing):
                await clients.enter_async_context(client)
            for name in NAMES:
                messages = [Message(TOPIC, b"x")] * COUNT
                await group.producer.send_batch(messages, queue=MessageQueue(TOPIC, name, 0))
            try:
                yield group
            finally:
                group.broker.send_signal(signal.SIGCONT)


async def test_each_call_about_a_frozen_broker_fails_by_itself(group: Group) -> None:
    pulling, leasing = group.pulling, group.leasing
    assert sorted(await group.pull(2 * COUNT)) == [ALIVE] * COUNT + [FROZEN] * COUNT
    leased = await group.lease(2 * COUNT)
    of = {name: [each for each in leased if each.broker_name == name] for name in NAMES}
    assert len(of[FROZEN]) == COUNT
    group.broker.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(HANGS_S):
        assert await pulling.poll(timeout=timedelta(seconds=1)) == []
        for call in (
            pulling.end_offsets(),
            pulling.committed(),
            pulling.commit(),
            leasing.ack(of[FROZEN]),
            leasing.dead_letter(of[FROZEN][0], "too late"),
            leasing.change_invisible_duration(of[FROZEN][1], LEASE),
        ):
            with pytest.raises(MqError, check=lambda error: error.code in ABSENT):
                await call
        await leasing.ack(of[ALIVE])
        sent = [Message(TOPIC, b"later")] * 5
        await group.producer.send_batch(sent, queue=MessageQueue(TOPIC, ALIVE, 0))
        assert await group.pull(5) == [ALIVE] * 5
        later = await group.lease(5)
        assert {each.broker_name for each in later} == {ALIVE}
        await leasing.ack(later)
    group.broker.send_signal(signal.SIGCONT)

    async def committed() -> bool:
        try:
            done = await pulling.commit()
        except MqError as error:
            if error.code not in ABSENT:
                raise
            return False
        return len(done) == 2

    await until(committed, timeout_s=HANGS_S)
    found = {queue.broker_name: offset for queue, offset in (await pulling.committed()).items()}
    assert found == {ALIVE: COUNT + 5, FROZEN: COUNT}
    assert leasing.statistics().failed_requests + pulling.statistics().failed_requests > 0
