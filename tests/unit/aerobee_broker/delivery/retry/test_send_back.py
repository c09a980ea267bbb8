"""Send-back: retries after their delay, dead letters after exactly the maximum attempts."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.delivery.retry.policy import Failure
from aerobee_broker.delivery.retry.send_back import Entry, Outcome
from aerobee_wire.status import Code
from support.broker.harness import BrokerHarness
from support.codes import raises_code


async def send_back(harness: BrokerHarness, *entries: Entry, group: str = "g") -> list[Outcome]:
    return await harness.broker.sending.send_back.send_back(group, entries)


@pytest.mark.parametrize("attempts", [1, 2, 3, 17])
async def test_a_message_is_delivered_retry_max_times_plus_1_times(
    harness: BrokerHarness, attempts: int
) -> None:
    """P5: dead-lettered after exactly the maximum attempts, never before."""
    await harness.group("g", retry_max_times=attempts - 1, retry_delays_ms=(100,))
    physical_offset = (await harness.send("t", b"poison"))[0].physical_offset
    deliveries = 1
    while not (outcome := (await send_back(harness, Entry(physical_offset)))[0]).dead_lettered:
        assert outcome.error is None
        await asyncio.sleep(0.2)
        record = (await harness.read("%RETRY%g"))[-1]
        assert record.reconsume_times == deliveries
        physical_offset = record.physical_offset
        deliveries += 1
    assert deliveries == attempts
    dead = await harness.read("%DLQ%g")
    assert [record.body for record in dead] == [b"poison"]
    assert dead[0].reconsume_times == attempts
    assert len(await harness.read("%RETRY%g")) == attempts - 1


async def test_a_retry_is_visible_after_the_groups_delay(harness: BrokerHarness) -> None:
    await harness.group("g", retry_delays_ms=(2_500,))
    stored = await harness.send("t", b"a")
    await send_back(harness, Entry(stored[0].physical_offset))
    await asyncio.sleep(2.4)
    assert await harness.bodies("%RETRY%g") == []
    await asyncio.sleep(0.2)
    assert await harness.bodies("%RETRY%g") == [b"a"]


async def test_a_consumer_that_tried_in_place_says_how_often(harness: BrokerHarness) -> None:
    await harness.group("g", retry_max_times=3)
    stored = await harness.send("t", b"a")
    entry = Entry(stored[0].physical_offset, reconsume_times=4)
    assert await send_back(harness, entry) == [Outcome(dead_lettered=True)]
    assert (await harness.read("%DLQ%g"))[0].reconsume_times == 4


async def test_a_negative_level_dead_letters_at_once(harness: BrokerHarness) -> None:
    await harness.group("g")
    stored = await harness.send("t", b"a", properties={"UNIQ_KEY": "U"})
    failure = Failure("Unparsable", "no closing brace")
    outcome = await send_back(
        harness, Entry(stored[0].physical_offset, delay_level=-1, failure=failure)
    )
    assert outcome == [Outcome(dead_lettered=True)]
    properties = (await harness.read("%DLQ%g"))[0].properties
    assert properties["DLQ_REASON"] == "Unparsable"
    assert properties["DLQ_REASON_DESCRIPTION"] == "no closing brace"
    assert (properties["DLQ_ORIGIN_TOPIC"], properties["DLQ_ORIGIN_MESSAGE_ID"]) == ("t", "U")
    assert harness.metrics.dead_letters == 1


async def test_entries_are_independent(harness: BrokerHarness) -> None:
    await harness.group("g", retry_delays_ms=(0,))
    stored = await harness.send("t", b"a", b"b")
    physical_offsets = [result.physical_offset for result in stored]
    outcomes = await send_back(
        harness,
        Entry(physical_offsets[0]),
        Entry(physical_offsets[0] + 1, origin_topic="t"),
        Entry(10**12),
        Entry(physical_offsets[1], delay_level=-1),
    )
    codes = [outcome.error.code if outcome.error else None for outcome in outcomes]
    assert codes == [None, Code.SYSTEM_ERROR, Code.SYSTEM_ERROR, None]
    assert await harness.bodies("%RETRY%g") == [b"a"]
    assert await harness.bodies("%DLQ%g") == [b"b"]


async def test_send_back_is_answered_only_when_durable(harness: BrokerHarness) -> None:
    await harness.group("g")
    stored = await harness.send("t", b"a")
    harness.flusher.hold()
    task = asyncio.create_task(send_back(harness, Entry(stored[0].physical_offset)))
    await asyncio.sleep(1)
    assert not task.done()
    harness.flusher.let_go()
    assert await task == [Outcome()]


async def test_retry_and_dead_letter_topics_are_created_and_announced(
    harness: BrokerHarness,
) -> None:
    await harness.group("g", retry_queue_count=3)
    stored = await harness.send("t", b"a")
    await send_back(harness, Entry(stored[0].physical_offset))
    retry, dead = harness.broker.topics.get("%RETRY%g"), harness.broker.topics.get("%DLQ%g")
    assert (retry.read_queue_count, retry.write_queue_count, retry.permission) == (3, 3, 6)
    assert (dead.read_queue_count, dead.write_queue_count, dead.permission) == (1, 1, 6)
    assert {"%RETRY%g", "%DLQ%g"} <= set(harness.announced[-1])


async def test_an_unknown_group_is_refused(harness: BrokerHarness) -> None:
    with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
        await send_back(harness, Entry(0), group="nobody")


async def test_a_group_without_retry_queues_drops_the_message(harness: BrokerHarness) -> None:
    await harness.group("g", retry_queue_count=0)
    stored = await harness.send("t", b"a")
    assert await send_back(harness, Entry(stored[0].physical_offset)) == [Outcome()]
    assert "%RETRY%g" not in harness.broker.topics.table


async def test_a_delay_of_its_own_is_kept_to_the_millisecond(harness: BrokerHarness) -> None:
    """In place of the group's policy, and a message with a deliver time of its own waits again."""
    await harness.group("g", retry_delays_ms=(100,))
    stored = await harness.send("t", b"a", properties={"TIMER_OUT_MS": "1", "TAGS": "blue"})
    entry = Entry(stored[0].physical_offset, delay_ms=90_061_007)
    assert await send_back(harness, entry) == [Outcome()]
    await asyncio.sleep(90_061)
    assert await harness.bodies("%RETRY%g") == []
    await asyncio.sleep(0.2)
    (retry,) = await harness.read("%RETRY%g")
    assert (retry.body, retry.reconsume_times, retry.properties["TAGS"]) == (b"a", 1, "blue")


async def test_a_delay_of_0_is_none(harness: BrokerHarness) -> None:
    await harness.group("g")
    stored = await harness.send("t", b"a")
    await send_back(harness, Entry(stored[0].physical_offset, delay_ms=0))
    assert await harness.bodies("%RETRY%g") == [b"a"]


async def test_an_uncounted_failure_is_no_attempt(harness: BrokerHarness) -> None:
    """However often it happens, the attempts that are left stay."""
    await harness.group("g", retry_max_times=1, retry_delays_ms=(100,))
    physical_offset = (await harness.send("t", b"a"))[0].physical_offset
    for _ in range(5):
        outcome = await send_back(harness, Entry(physical_offset, counted=False, delay_ms=1_000))
        assert outcome == [Outcome()]
        await asyncio.sleep(1.2)
        record = (await harness.read("%RETRY%g"))[-1]
        assert record.reconsume_times == 0
        physical_offset = record.physical_offset
    assert await send_back(harness, Entry(physical_offset)) == [Outcome()]
    await asyncio.sleep(0.2)
    record = (await harness.read("%RETRY%g"))[-1]
    # The last attempt is not used up by it either.
    assert record.reconsume_times == 1
    assert await send_back(harness, Entry(record.physical_offset, counted=False)) == [Outcome()]
    assert (await send_back(harness, Entry(record.physical_offset)))[0].dead_lettered


async def test_delays_that_cannot_be_kept_are_refused(harness: BrokerHarness) -> None:
    await harness.group("g")
    stored = await harness.send("t", b"a", b"b")
    first, second = (result.physical_offset for result in stored)
    outcomes = await send_back(
        harness,
        Entry(first, delay_ms=3 * 86_400_000 + 1),
        Entry(first, delay_ms=-1),
        Entry(second, delay_ms=0),
    )
    codes = [outcome.error.code if outcome.error else None for outcome in outcomes]
    assert codes == [Code.MESSAGE_ILLEGAL, Code.INVALID_PARAMETER, None]
    assert await harness.bodies("%RETRY%g") == [b"b"]
