"""Transactions with producer or broker killed at each step: every one is settled as its producer
meant, which its database says."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_client import (
    Message,
    ReceivedMessage,
    TransactionProducer,
    TransactionResolution,
)
from support.client.programs.shop import (
    QUICK_CHECKS,
    create_topic,
    nothing_open,
    settled,
    stored,
    transacting,
)
from support.client.programs.transacting import GROUP, TOPIC, CancelledOrder, Database
from support.clock.polling import until
from support.processes.service import ServiceProcess, broker_process, namesrv_process


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    with namesrv_process(tmp_path) as namesrv:
        yield namesrv.address


@pytest.fixture
def broker(tmp_path: Path, namesrv: str) -> Iterator[ServiceProcess]:
    with broker_process(tmp_path / "broker", *QUICK_CHECKS, namesrv=namesrv) as broker:
        yield broker


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "database")


@pytest.mark.parametrize("step", ["half", "written", "ended"])
@pytest.mark.parametrize("killed", ["producer", "both"])
async def test_a_second_process_answers_for_a_dead_one(
    *, step: str, killed: str, namesrv: str, broker: ServiceProcess, database: Database
) -> None:
    await create_topic(namesrv)
    with transacting(namesrv, database.path, step) as process:
        assert process.stdout is not None
        assert (await asyncio.to_thread(process.stdout.readline)).strip() == "here"
        if killed == "both":
            await asyncio.to_thread(broker.kill)
    if killed == "both":
        await asyncio.to_thread(broker.start)
    _, visible = await settled(namesrv, [broker], database)
    assert visible == ([] if step == "half" else [step.encode()])


async def test_producers_and_their_broker_are_killed_while_they_work(
    namesrv: str, broker: ServiceProcess, database: Database
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    await create_topic(namesrv)
    for _ in range(2):
        with transacting(namesrv, database.path, "never"):
            await database.grows(50)
            await asyncio.sleep(rng.random() / 5)
            await asyncio.to_thread(broker.kill)
            await asyncio.sleep(rng.random() / 2)
            await asyncio.to_thread(broker.start)
            await database.grows(50)
            await asyncio.sleep(rng.random() / 5)
    await settled(namesrv, [broker], database)


def test_the_plain_class(namesrv: str, broker: ServiceProcess, database: Database) -> None:
    """Blocks and local transactions run in the caller's thread, checks on others."""
    checked_on: list[threading.Thread] = []

    def check(message: ReceivedMessage) -> TransactionResolution:
        checked_on.append(threading.current_thread())
        return database.check(message)

    def execute(message: Message) -> TransactionResolution:
        assert threading.current_thread() is threading.main_thread()
        return TransactionResolution.ROLLBACK

    with TransactionProducer(GROUP, check, namesrv=namesrv) as producer:
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
    assert sorted(asyncio.run(stored([broker]))) == [b"checked", b"committed"]
