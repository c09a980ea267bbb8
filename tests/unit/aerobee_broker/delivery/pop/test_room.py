"""Pops and pulls wait while answers that no caller has taken leave no room for another one."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.filter.filter import compile_filter
from aerobee_chassis.rpc.in_flight import WAIT_S, TooMuchInFlight, failure_of
from aerobee_wire.status import CODE_KEY
from support.broker.harness import BrokerHarness
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer, bodies


@pytest.fixture
async def filled(harness: BrokerHarness, consumer: PopConsumer) -> int:
    """One message, and no room for it. Returns the bytes that fill it."""
    await consumer.put(b"1")
    size = harness.in_flight.limit // 2
    harness.in_flight.answering(size)
    return size


async def test_a_pop_waits_for_room(
    harness: BrokerHarness, consumer: PopConsumer, filled: int
) -> None:
    popping = asyncio.create_task(consumer.pop())
    await asyncio.sleep(WAIT_S / 2)
    assert not popping.done()
    harness.in_flight.answered(filled)
    assert bodies(await popping) == [b"1"]


async def test_a_pop_without_room_is_refused_and_leases_nothing(
    harness: BrokerHarness, consumer: PopConsumer, filled: int
) -> None:
    with pytest.raises(TooMuchInFlight) as caught:
        await consumer.pop()
    failure = failure_of(caught.value)
    assert failure is not None and failure.status == "RESOURCE_EXHAUSTED"
    assert dict(failure.trailers)[CODE_KEY] == "SYSTEM_BUSY"
    harness.in_flight.answered(filled)
    assert bodies(await consumer.pop()) == [b"1"]


async def test_a_pull_without_room_is_refused(harness: BrokerHarness, filled: int) -> None:
    request = PullRequest(
        consumer_group=GROUP,
        topic=TOPIC,
        queue_id=0,
        queue_offset=0,
        filter=compile_filter("TAG", "*"),
    )
    with pytest.raises(TooMuchInFlight):
        await harness.broker.consuming.pull.pull(request)
    harness.in_flight.answered(filled)
    await harness.broker.consuming.pull.pull(request)


async def test_a_pop_counts_from_its_lease_on(
    harness: BrokerHarness, consumer: PopConsumer
) -> None:
    await consumer.put(b"x" * 10_000)
    harness.flusher.open.clear()  # the lease does not become durable
    popping = asyncio.create_task(consumer.pop())
    await asyncio.sleep(1)
    assert not popping.done() and harness.in_flight.answers > 10_000
    popping.cancel()
    await asyncio.wait([popping])
    assert harness.in_flight.answers == 0
    harness.flusher.open.set()
