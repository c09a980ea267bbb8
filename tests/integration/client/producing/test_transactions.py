"""Transactions with producer or broker killed at each step: every one is settled as its producer
meant, which its database says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_client import (
    AsyncAdminClient,
    AsyncTransactionProducer,
    Message,
    ReceivedMessage,
    TransactionProducer,
    TransactionResolution,
)
from aerobee_wire import topics
from support.broker.calls import BrokerCaller
from support.client.programs.transacting import GROUP, TOPIC, CancelledOrder, Database
from support.clock.polling import until
from support.processes.service import ServiceProcess, broker_process, namesrv_process

TESTS = Path(__file__).parents[3]
QUICK = ("--set=transactionTimeOut=500", "--set=transactionCheckInterval=500")


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[ServiceProcess]:
    with namesrv_process(tmp_path) as namesrv:
        yield namesrv


@pytest.fixture
def broker(tmp_path: Path, namesrv: ServiceProcess) -> Iterator[ServiceProcess]:
    with broker_process(tmp_path / "broker", *QUICK, namesrv=namesrv.address) as broker:
        yield broker


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "database")


@contextlib.contextmanager
def transacting(
    namesrv: ServiceProcess, tmp_path: Path, step: str
) -> Iterator[subprocess.Popen[str]]:
    """The process of support.client.programs.transacting; killed at the end."""
    module = "support.client.programs.transacting"
    command = [sys.executable, "-m", module, namesrv.address, str(tmp_path / "database"), step]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def stored(broker: ServiceProcess, topic: str) -> list[bytes]:
    """The bodies of all messages of a topic."""
    async with BrokerCaller(broker.address) as caller:
        queues = range(1) if topic == topics.HALF_TOPIC else range(4)
        return [each.body for queue in queues for each in await caller.read(topic, queue)]


async def open_transactions(namesrv: ServiceProcess) -> int:
    async with AsyncAdminClient(namesrv.address) as admin:
        backlog = await admin.broker_backlog("broker-a")
        return sum(backlog.half_messages.values())


async def settled(namesrv: ServiceProcess, broker: ServiceProcess, database: Database) -> None:
    """A second process answers for the one that is gone; until nothing is open."""
    async with AsyncTransactionProducer(GROUP, database.check, namesrv=namesrv.address):
        await until(lambda: nothing_open(namesrv), "every transaction has ended", timeout_s=40)
    halves = set(await stored(broker, topics.HALF_TOPIC))
    visible = await stored(broker, TOPIC)
    assert set(visible) == database.rows() & halves
    assert database.rows() <= halves


async def nothing_open(namesrv: ServiceProcess) -> bool:
    return await open_transactions(namesrv) == 0


@pytest.mark.parametrize("step", ["half", "written", "ended"])
@pytest.mark.parametrize("killed", ["producer", "both"])
async def test_a_second_process_answers_for_a_dead_one(
    *,
    step: str,
    killed: str,
    namesrv: ServiceProcess,
    broker: ServiceProcess,
    tmp_path: Path,
    database: Database,
) -> None:
    async with AsyncAdminClient(namesrv.address) as admin:
        await admin.create_topic(TOPIC, queues=4)
    with transacting(namesrv, tmp_path, step) as process:
        assert process.stdout is not None
        assert (await asyncio.to_thread(process.stdout.readline)).strip() == "here"
        if killed == "both":
            await asyncio.to_thread(broker.kill)
    if killed == "both":
        await asyncio.to_thread(broker.start)
    await settled(namesrv, broker, database)
    expected = [] if step == "half" else [step.encode()]
    assert await stored(broker, TOPIC) == expected


async def test_producers_and_their_broker_are_killed_while_they_work(
    namesrv: ServiceProcess, broker: ServiceProcess, tmp_path: Path, database: Database
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    async with AsyncAdminClient(namesrv.address) as admin:
        await admin.create_topic(TOPIC, queues=4)
    for _ in range(3):
        before = len(database.rows())
        with transacting(namesrv, tmp_path, "never"):
            await until(lambda: len(database.rows()) > before + 50)  # noqa: B023
            await asyncio.sleep(rng.random() / 5)
            await asyncio.to_thread(broker.kill)
            await asyncio.sleep(rng.random() / 2)
            await asyncio.to_thread(broker.start)
            again = len(database.rows())
            await until(lambda: len(database.rows()) > again + 50)  # noqa: B023
            await asyncio.sleep(rng.random() / 5)
    await settled(namesrv, broker, database)
    visible = await stored(broker, TOPIC)
    halves = await stored(broker, topics.HALF_TOPIC)
    # A half message whose answer was lost is sent again: then there are two of one message id.
    assert len(visible) - len(set(visible)) <= len(halves) - len(set(halves))


def test_the_plain_class(
    namesrv: ServiceProcess, broker: ServiceProcess, database: Database
) -> None:
    """Blocks and local transactions run in the caller's thread, checks on others."""
    checked_on: list[threading.Thread] = []

    def check(message: ReceivedMessage) -> TransactionResolution:
        checked_on.append(threading.current_thread())
        return database.check(message)

    def execute(message: Message) -> TransactionResolution:
        assert threading.current_thread() is threading.main_thread()
        return TransactionResolution.ROLLBACK

    with TransactionProducer(GROUP, check, namesrv=namesrv.address) as producer:
        with producer.transaction(Message(TOPIC, b"committed")) as tx:
            database.insert(b"committed")
        assert tx.result.transaction_id == tx.message_id
        for error in (CancelledOrder, KeyboardInterrupt):
            with pytest.raises(error), producer.transaction(Message(TOPIC, b"rolled back")):
                raise error
        sent = producer.send_in_transaction(Message(TOPIC, b"rolled back"), execute)
        assert sent.resolution is TransactionResolution.ROLLBACK
        with producer.transaction(Message(TOPIC, b"checked")) as tx:
            database.insert(b"checked")
            tx.unknown()
        asyncio.run(until(lambda: nothing_open(namesrv)))
    assert checked_on and threading.main_thread() not in checked_on
    assert sorted(asyncio.run(stored(broker, TOPIC))) == [b"checked", b"committed"]
