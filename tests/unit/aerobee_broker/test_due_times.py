"""When time alone makes something happen: what a test that moves time goes to."""

from __future__ import annotations

import asyncio

from aerobee_broker.broker import TRANSACTION_ROUND_MS
from support.broker.delayed import delayed, timed
from support.broker.harness import BrokerHarness
from support.broker.pop_consumer import PopConsumer
from support.broker.transactions import end, half

TIMEOUT_MS = 6_000  # transactionTimeOut


async def test_nothing_is_due_in_a_broker_where_nothing_waits(harness: BrokerHarness) -> None:
    await harness.send("t", b"7")
    assert harness.broker.due_in_ms() is None


async def test_the_first_delayed_message_is_due(harness: BrokerHarness) -> None:
    await timed(harness, b"far ahead", 86_400_000)
    assert harness.broker.due_in_ms() == 86_400_000
    await delayed(harness, b"in 10 s", 3)
    assert harness.broker.due_in_ms() == 10_000
    await asyncio.sleep(4)
    assert harness.broker.due_in_ms() == 6_000
    await asyncio.sleep(6.1)
    assert await harness.bodies("t") == [b"in 10 s"]
    assert harness.broker.due_in_ms() == 86_400_000 - 10_100


async def test_the_end_of_a_lease_is_due(harness: BrokerHarness) -> None:
    consumer = PopConsumer(harness)
    await consumer.put(b"7")
    await consumer.pop(invisible_ms=30_000)
    assert harness.broker.due_in_ms() == 30_000
    await asyncio.sleep(30)
    await asyncio.sleep(0)
    assert harness.broker.due_in_ms() is None


async def test_a_check_is_due_until_the_transaction_ends(harness: BrokerHarness) -> None:
    stored = await half(harness, b"7")
    assert harness.broker.due_in_ms() == TIMEOUT_MS + TRANSACTION_ROUND_MS
    await end(harness, stored)
    await asyncio.sleep(TIMEOUT_MS / 1_000)
    await harness.broker.transaction_checks.round()
    assert harness.broker.due_in_ms() is None
