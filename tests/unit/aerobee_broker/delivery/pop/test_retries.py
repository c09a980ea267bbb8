"""Pops of any topic also take the messages of the group's retry topic."""

from __future__ import annotations

import asyncio
from typing import Any

from aerobee_broker.delivery.letters.states import LetterState
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire import properties as props
from aerobee_wire.status import Code
from support.broker import letters
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer, bodies, deliveries, pop_request

RETRY = f"%RETRY%{GROUP}"


async def redrive(consumer: PopConsumer, count: int, job_id: str = "job") -> None:
    """Send dead letters again to the group."""
    await letters.run(consumer.harness, job_id, letters.spec(target="retry"))
    stored = await consumer.harness.read(RETRY)
    assert len(stored) == count


async def states(consumer: PopConsumer, count: int) -> list[LetterState]:
    found = await consumer.harness.broker.letters.states(GROUP, 0, 0, count)
    return [entry.state for entry in found]


async def test_a_pop_takes_redriven_letters_before_new_messages(consumer: PopConsumer) -> None:
    await letters.fill(consumer.harness, 3)
    await consumer.put(b"new")
    await redrive(consumer, 3)
    # The letters have other tags: the group received them before, so its filter does not apply.
    first = await consumer.pop(wanted="none-of-these")
    assert bodies(first) == [b"0 ", b"1 ", b"2 "]
    assert {each.lease.topic for each in first} == {RETRY}
    assert await states(consumer, 3) == [LetterState.REDRIVEN] * 3
    assert await consumer.ack(*first) == [Code.SUCCESS] * 3
    assert await states(consumer, 3) == [LetterState.CONSUMED] * 3
    assert bodies(await consumer.pop()) == [b"new"]


async def test_a_redriven_letter_that_fails_again_dies_with_its_origin(
    consumer: PopConsumer,
) -> None:
    await letters.fill(consumer.harness, 1)
    await consumer.harness.group(GROUP, retry_max_times=1)
    await redrive(consumer, 1)
    got = [deliveries(await consumer.pop(poll_ms=30_000)) for _ in range(2)]
    assert got == [[(b"0 ", 1)], [(b"0 ", 2)]]
    await asyncio.sleep(10.1)
    _, again = await consumer.harness.read(f"%DLQ%{GROUP}")
    assert again.properties[props.DLQ_ORIGIN_TOPIC] == letters.ORIGIN
    assert (await states(consumer, 1)) == [LetterState.DEAD_AGAIN]


async def test_a_redrive_wakes_a_pop_and_a_notification_of_any_topic(consumer: PopConsumer) -> None:
    await letters.fill(consumer.harness, 2)
    consumer.harness.tables.topics.put(TopicConfig("other", 1, 1))
    request = pop_request(topic="other", max_messages=1, invisible_duration_ms=1_000)
    told = asyncio.create_task(
        consumer.harness.broker.consuming.notifications.wait(request, 30_000)
    )
    waiting = asyncio.create_task(consumer.pop(1, poll_ms=30_000))
    await asyncio.sleep(0.1)
    await redrive(consumer, 2)
    async with asyncio.timeout(1):
        assert bodies(await waiting) == [b"0 "]
        assert await told


async def test_a_pop_of_one_queue_or_of_a_repeated_attempt_takes_no_retries(
    consumer: PopConsumer,
) -> None:
    await letters.fill(consumer.harness, 1)
    await redrive(consumer, 1)
    given: dict[str, Any] = {"queue_id": 0}
    assert await consumer.pop(**given) == []
    assert bodies(await consumer.pop()) == [b"0 "]
    assert TOPIC == letters.ORIGIN
