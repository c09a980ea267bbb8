"""Message groups that wait behind a failing message: which are listed, and how they go on."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.delivery.pop.dead_letters import MessagePlace
from aerobee_broker.delivery.pop.lease_space import BlockedMessageGroup
from aerobee_broker.delivery.retry.policy import Failure
from aerobee_broker.errors import MessageNotFound, StoreWriteError
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire import properties as props
from aerobee_wire.status import Code
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer, bodies, deliveries
from support.broker.pop_restarts import crash, failing_disk
from support.codes import raises_code


@pytest.fixture(autouse=True)
async def fifo_topic(consumer: PopConsumer) -> None:
    attributes = {"message.type": "FIFO"}
    consumer.harness.tables.topics.put(TopicConfig(TOPIC, 1, 1, attributes=attributes))


async def send(consumer: PopConsumer, *several: str) -> None:
    """The first letter is the message group; the message id is the body."""
    for body in several:
        properties = {props.SHARDING_KEY: body[:1], props.UNIQUE_KEY: body}
        await consumer.put(body.encode(), properties=properties)


def blocked(consumer: PopConsumer, limit: int = 10) -> list[BlockedMessageGroup]:
    return consumer.harness.broker.consuming.leases.blocked_groups(GROUP, limit).groups


def ids(consumer: PopConsumer) -> list[str]:
    return [group.message_id for group in blocked(consumer)]


async def skip(consumer: PopConsumer, queue_offset: int, reason: str = "") -> None:
    place = MessagePlace(GROUP, TOPIC, 0, queue_offset)
    await consumer.harness.broker.consuming.leases.dead_letters.skip(place, Failure(reason))


async def test_a_message_group_is_listed_with_what_it_waits_for(consumer: PopConsumer) -> None:
    await send(consumer, "a1", "b1", "a2", "a3")
    began_ms = consumer.harness.clock.now_ms()
    await consumer.pop(client_id="one")
    assert blocked(consumer) == [], "its first lease is not over"
    await asyncio.sleep(10.1)
    expected = BlockedMessageGroup(
        topic=TOPIC,
        queue_id=0,
        message_group="a",
        queue_offset=0,
        message_id="a1",
        attempt=1,
        waiting=2,
        since_ms=began_ms,
        next_try_ms=0,
        client_id="one",
    )
    assert blocked(consumer) == [expected], "nothing waits behind b1"
    again_ms = consumer.harness.clock.now_ms()
    await consumer.pop(client_id="two")
    assert blocked(consumer) == [
        expected._replace(attempt=2, next_try_ms=again_ms + 10_000, client_id="two")
    ]


async def test_a_message_that_is_given_back_or_renewed_has_failed(consumer: PopConsumer) -> None:
    await send(consumer, "a1", "b1", "c1", "a2", "b2", "c2")
    a1, b1, c1 = await consumer.pop()
    await asyncio.sleep(1)
    await consumer.change(a1, 60_000)
    await consumer.change(b1, 0, uncounted=True)
    await asyncio.sleep(0.1)
    assert ids(consumer) == ["a1"], "b1 was not delivered, as far as it counts"
    await consumer.ack(a1)
    assert ids(consumer) == []
    assert await consumer.ack(c1) == [Code.SUCCESS]


async def test_who_waits_the_longest_is_listed_first(consumer: PopConsumer) -> None:
    await send(consumer, "a1", "a2")
    await consumer.pop()
    await asyncio.sleep(1)
    await send(consumer, "b1", "b2")
    await consumer.pop()
    await asyncio.sleep(10.1)
    assert ids(consumer) == ["a1", "b1"]
    assert [group.message_id for group in blocked(consumer, limit=1)] == ["a1"]
    leases = consumer.harness.broker.consuming.leases
    assert leases.blocked_groups(GROUP, 1).total == 2
    with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
        leases.blocked_groups("nobody", 1)


async def test_the_wait_is_counted_from_the_message_that_is_first_now(
    consumer: PopConsumer,
) -> None:
    await send(consumer, "a1", "a2", "a3")
    [a1] = await consumer.pop()
    await asyncio.sleep(5)
    await consumer.ack(a1)
    began_ms = consumer.harness.clock.now_ms()
    await consumer.pop()
    await asyncio.sleep(10.1)
    [group] = blocked(consumer)
    assert (group.message_id, group.since_ms) == ("a2", began_ms)


async def test_who_does_not_say_its_name_is_not_named(consumer: PopConsumer) -> None:
    await send(consumer, "a1", "a2")
    await consumer.pop(client_id="one")
    await asyncio.sleep(10.1)
    assert len(await consumer.pop()) == 1
    assert [group.client_id for group in blocked(consumer)] == ["one"]


async def test_after_a_crash_the_wait_counts_from_the_last_delivery(consumer: PopConsumer) -> None:
    await send(consumer, "a1", "a2")
    await consumer.pop(client_id="one")
    await asyncio.sleep(10.1)
    again_ms = consumer.harness.clock.now_ms()
    await consumer.pop(client_id="one")
    await crash(consumer)
    [group] = blocked(consumer)
    assert (group.message_id, group.attempt, group.waiting) == ("a1", 2, 1)
    assert (group.since_ms, group.client_id) == (again_ms, "one")


@pytest.mark.parametrize("on_lease", [False, True])
async def test_a_skipped_message_is_dead_lettered_and_its_group_goes_on(
    consumer: PopConsumer, on_lease: bool
) -> None:
    await send(consumer, "a1", "a2")
    await consumer.pop()
    await asyncio.sleep(10.1)
    got = await consumer.pop() if on_lease else []
    waiting = asyncio.create_task(consumer.pop(poll_ms=5_000)) if on_lease else None
    await asyncio.sleep(0)
    await skip(consumer, 0, "no such address")
    [letter] = await consumer.harness.read(f"%DLQ%{GROUP}")
    assert (letter.body, letter.reconsume_times) == (b"a1", 2 if on_lease else 1)
    assert letter.properties[props.DLQ_REASON] == "no such address"
    assert deliveries(await waiting if waiting else await consumer.pop()) == [(b"a2", 1)]
    assert blocked(consumer) == []
    assert await consumer.ack(*got) == [Code.SUCCESS] * len(got), "settled already"
    await crash(consumer)
    await asyncio.sleep(10.1)
    assert bodies(await consumer.pop()) == [b"a2"]


async def test_only_a_message_that_others_wait_for_is_skipped(consumer: PopConsumer) -> None:
    await send(consumer, "a1", "a2")
    for queue_offset in (0, 1, 9):
        with pytest.raises(MessageNotFound):
            await skip(consumer, queue_offset)
    [a1] = await consumer.pop()
    with pytest.raises(MessageNotFound):
        await skip(consumer, 1)
    await consumer.ack(a1)
    with pytest.raises(MessageNotFound):
        await skip(consumer, 0)
    assert f"%DLQ%{GROUP}" not in consumer.harness.tables.topics or not await consumer.harness.read(
        f"%DLQ%{GROUP}"
    )


async def test_a_skip_that_the_disk_fails_leaves_the_message(consumer: PopConsumer) -> None:
    await send(consumer, "a1", "a2")
    await consumer.pop()
    await asyncio.sleep(10.1)
    await consumer.harness.broker.topics.for_group(f"%DLQ%{GROUP}")
    with failing_disk(consumer.harness):
        with pytest.raises(StoreWriteError):
            await skip(consumer, 0)
        await asyncio.sleep(0)
    assert ids(consumer) == ["a1"]
    assert deliveries(await consumer.pop(poll_ms=2_000)) == [(b"a1", 2)]
