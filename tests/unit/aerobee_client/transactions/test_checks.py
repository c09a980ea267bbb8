"""Check-back: brokers in memory ask, the program's function answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aerobee.broker.v1 import client_pb2, message_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.send_result import TransactionResolution
from aerobee_client.transaction_producer import AsyncTransactionProducer
from aerobee_client.transactions import checks
from aerobee_client.transactions.checks import Check, TransactionChecks
from aerobee_client.transactions.ends import TransactionEnds
from support.client.answers import HalfMessages
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.client.producing import TOPIC
from support.clock.polling import until

COMMIT, ROLLBACK, UNKNOWN = TransactionResolution


@pytest.fixture
def halves(cluster: MemoryCluster) -> HalfMessages:
    return HalfMessages(cluster)


@asynccontextmanager
async def producing(
    cluster: MemoryCluster, check: Check
) -> AsyncIterator[AsyncTransactionProducer]:
    async with AsyncTransactionProducer("p", check, namesrv=NAMESRV, transport=cluster) as each:
        yield each


async def leave_open(cluster: MemoryCluster, count: int) -> None:
    """Half messages "0", "1", … of a producer that is gone."""
    async with producing(cluster, lambda message: UNKNOWN) as producer:
        for number in range(count):
            async with producer.transaction(Message(TOPIC, b"%d" % number, keys="k")) as tx:
                tx.unknown()


async def watched(broker: MemoryBroker) -> None:
    """A producer answers without having sent anything: it watches all brokers of the cluster."""
    await until(lambda: broker.watchers)


def parity(message: ReceivedMessage) -> TransactionResolution:
    return ROLLBACK if int(message.body) % 2 else COMMIT


async def async_parity(message: ReceivedMessage) -> TransactionResolution:
    return parity(message)


@pytest.mark.parametrize("check", [parity, async_parity])
async def test_a_producer_answers_for_one_that_is_gone(
    cluster: MemoryCluster, broker: MemoryBroker, halves: HalfMessages, check: Check
) -> None:
    await leave_open(cluster, 6)
    async with producing(cluster, check):
        await watched(broker)
        halves.ask(broker)
        await until(lambda: not halves.open)
    assert sorted(message.body for message in broker.messages(TOPIC)) == [b"0", b"2", b"4"]


async def test_a_check_sees_the_message_and_its_broker(
    cluster: MemoryCluster, broker: MemoryBroker, halves: HalfMessages
) -> None:
    await leave_open(cluster, 1)
    seen: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> TransactionResolution:
        seen.append(message)
        return COMMIT

    async with producing(cluster, check):
        await watched(broker)
        halves.ask(broker)
        await until(lambda: not halves.open)
    (message,) = seen
    assert (message.topic, message.keys, message.broker_name) == (TOPIC, ("k",), "a")
    assert message.message_id == broker.messages(TOPIC)[0].unique_message_id


def leave(message: ReceivedMessage) -> TransactionResolution:
    raise SystemExit(3)


async def cancelled(message: ReceivedMessage) -> TransactionResolution:
    inner: asyncio.Future[TransactionResolution] = asyncio.get_running_loop().create_future()
    inner.cancel()
    return await inner


@pytest.mark.parametrize(
    "answer", [lambda message: UNKNOWN, lambda message: None, parity, leave, cancelled]
)
async def test_what_is_not_known_is_asked_again(
    cluster: MemoryCluster,
    broker: MemoryBroker,
    halves: HalfMessages,
    answer: Callable[[ReceivedMessage], Any],
) -> None:
    """It is unknown, no answer at all, or fails: `parity` needs a number."""
    async with (
        producing(cluster, lambda message: UNKNOWN) as producer,
        producer.transaction(Message(TOPIC, b"x")) as tx,
    ):
        tx.unknown()
    asked = 0

    def check(message: ReceivedMessage) -> Any:
        nonlocal asked
        asked += 1
        return answer(message) if asked < 3 else COMMIT

    async def check_async(message: ReceivedMessage) -> Any:
        found = check(message)
        return COMMIT if found is COMMIT else await found

    async with producing(cluster, check_async if answer is cancelled else check):
        await watched(broker)
        for number in range(1, 4):
            assert halves.open
            halves.ask(broker)
            await until(lambda number=number: asked == number)  # type: ignore[misc]
        await until(lambda: not halves.open)


async def test_four_checks_run_at_a_time_and_some_wait(
    cluster: MemoryCluster,
    broker: MemoryBroker,
    halves: HalfMessages,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "MAX_WAITING", 10)
    await leave_open(cluster, 20)
    most = running = 0
    go_on = asyncio.Event()

    async def check(message: ReceivedMessage) -> TransactionResolution:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1
        return COMMIT

    async with producing(cluster, check):
        await watched(broker)
        halves.ask(broker)
        await until(lambda: running == 4)
        halves.ask(broker)  # those that wait are not asked about twice; 4 have room now
        await asyncio.sleep(0.01)
        go_on.set()
        await until(lambda: len(halves.open) == 6)
        halves.ask(broker)
        await until(lambda: not halves.open)
    assert most == 4
    assert len(broker.messages(TOPIC)) == 20


async def test_a_question_of_the_turn_in_which_all_checks_end_is_answered(
    cluster: MemoryCluster,
) -> None:
    """The tasks of those checks are over by then, and nobody else would take it."""
    go_on = asyncio.Event()
    seen: list[bytes] = []

    async def check(message: ReceivedMessage) -> TransactionResolution:
        await go_on.wait()
        seen.append(message.body)
        return UNKNOWN

    def ask(number: int) -> None:
        stored = message_pb2.StoredMessage(topic=TOPIC, body=b"%d" % number)
        asked.ask(
            "a",
            client_pb2.TransactionCheck(
                transaction_id=str(number), queue_offset=number, message=stored
            ),
        )

    instance = ClientInstance(NAMESRV, transport=cluster)
    asked = TransactionChecks(check, TransactionEnds(instance, "p"), set(), 1.0)
    for number in range(checks.CONCURRENCY):
        ask(number)
    await asyncio.sleep(0)  # all of them wait
    go_on.set()
    asyncio.get_running_loop().call_soon(ask, checks.CONCURRENCY)
    await until(lambda: len(seen) == checks.CONCURRENCY + 1)
    await asked.close()


async def test_a_transaction_whose_block_runs_is_not_asked_about(
    cluster: MemoryCluster, broker: MemoryBroker, halves: HalfMessages
) -> None:
    def check(message: ReceivedMessage) -> TransactionResolution:
        return ROLLBACK  # its program has not committed yet

    async with producing(cluster, check) as producer:
        await watched(broker)
        async with producer.transaction(Message(TOPIC, b"x")):
            halves.ask(broker)
            await asyncio.sleep(0.05)
        assert len(broker.messages(TOPIC)) == 1
