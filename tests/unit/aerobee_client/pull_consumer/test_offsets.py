"""Positions, seeks and commits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from aerobee_client.message_queue import MessageQueue
from aerobee_client.pull_consumer import AsyncPullConsumer
from aerobee_wire.status import Code
from support.client.consumer_group import GROUP, TOPIC, Join, committed, fill
from support.client.memory import NAMESRV, STORE_TIME_MS, MemoryBroker, MemoryCluster
from support.clock.polling import until
from support.codes import raises_code

QUEUE = MessageQueue(TOPIC, "a", 0)
SOON = timedelta(milliseconds=50)


async def offsets_of(consumer: AsyncPullConsumer, count: int) -> list[int]:
    """Queue offsets of the next `count` messages."""
    found: list[int] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += [message.queue_offset for message in await consumer.poll(count - len(found))]
    return found


@pytest.fixture
async def assigned(cluster: MemoryCluster, broker: MemoryBroker) -> AsyncPullConsumer:
    """Reads QUEUE, which holds ten messages, for the group."""
    fill(broker, 40)
    consumer = AsyncPullConsumer(GROUP, namesrv=NAMESRV, transport=cluster)
    consumer.assign([QUEUE])
    return consumer


@pytest.mark.parametrize("turns", range(8))
async def test_a_seek_right_after_assign_holds(
    assigned: AsyncPullConsumer, broker: MemoryBroker, turns: int
) -> None:
    """At any turn of the loop while the broker is asked where the group is."""
    broker.offsets[GROUP, TOPIC, 0] = 2
    async with assigned as consumer:
        for _ in range(turns):
            await asyncio.sleep(0)
        await consumer.seek(QUEUE, 7)
        assert await consumer.position(QUEUE) == 7
        assert await offsets_of(consumer, 3) == [7, 8, 9]


async def test_a_seek_drops_what_was_pulled(assigned: AsyncPullConsumer) -> None:
    async with assigned as consumer:
        assert await offsets_of(consumer, 3) == [0, 1, 2]
        await consumer.seek(QUEUE, 8)
        assert await offsets_of(consumer, 2) == [8, 9]
        await consumer.seek_to_begin()
        assert await offsets_of(consumer, 1) == [0]
        await consumer.seek_to_end(QUEUE)
        assert await consumer.poll(timeout=SOON) == []
        assert await consumer.position(QUEUE) == 10


async def test_what_was_returned_before_a_seek_back_is_not_committed(
    assigned: AsyncPullConsumer, broker: MemoryBroker
) -> None:
    async with assigned as consumer:
        assert await offsets_of(consumer, 4) == [0, 1, 2, 3]
        await consumer.seek(QUEUE, 1)
        assert await offsets_of(consumer, 1) == [1]
    assert broker.offsets[GROUP, TOPIC, 0] == 1


async def test_what_is_taken_back_is_returned_again(
    assigned: AsyncPullConsumer, broker: MemoryBroker
) -> None:
    async with assigned as consumer:
        assert await offsets_of(consumer, 4) == [0, 1, 2, 3]
        consumer.take_back()
        assert await consumer.position(QUEUE) == 0
        assert await offsets_of(consumer, 5) == [0, 1, 2, 3, 4]
        assert await consumer.commit() == {QUEUE: 5}
        consumer.take_back()
        await consumer.seek(QUEUE, 8)
        consumer.take_back()
        assert await offsets_of(consumer, 2) == [8, 9]
    assert broker.offsets[GROUP, TOPIC, 0] == 8


async def test_a_seek_to_a_time(
    assigned: AsyncPullConsumer, broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    size = broker.physical_offset // 40
    fifth = datetime.fromtimestamp(STORE_TIME_MS / 1000, UTC) + timedelta(milliseconds=20 * size)
    async with assigned as consumer:
        found = await consumer.offsets_for_times({QUEUE: fifth})
        await consumer.seek_to_time(fifth)
        assert [found[QUEUE]] == await offsets_of(consumer, 1)
        with raises_code(Code.INVALID_PARAMETER):
            await consumer.seek_to_time(datetime(2026, 1, 1))


@pytest.mark.parametrize("beyond", [-1, 2, 11, 1 << 62])
async def test_a_seek_beyond_the_bounds_is_refused(
    assigned: AsyncPullConsumer, broker: MemoryBroker, beyond: int
) -> None:
    broker.min_offsets[TOPIC, 0] = 3
    async with assigned as consumer:
        with raises_code(Code.INVALID_PARAMETER) as caught:
            await consumer.seek(QUEUE, beyond)
        assert all(part in caught.value.message for part in (str(beyond), "3 to 10"))
        await consumer.seek(QUEUE, 3)
        await consumer.seek(QUEUE, 10)


async def test_other_queues_are_not_sought_paused_or_asked_for(
    assigned: AsyncPullConsumer,
) -> None:
    other = MessageQueue(TOPIC, "a", 1)
    async with assigned as consumer:
        with raises_code(Code.ILLEGAL_OPERATION):
            await consumer.seek(other, 0)
        with raises_code(Code.ILLEGAL_OPERATION):
            await consumer.seek_to_begin(QUEUE, other)
        with raises_code(Code.ILLEGAL_OPERATION):
            consumer.pause(other)
        with raises_code(Code.ILLEGAL_OPERATION):
            await consumer.position(other)
        with raises_code(Code.ILLEGAL_OPERATION):
            await consumer.commit({other: 0})
        assert await consumer.end_offsets([other]) == {other: 10}


async def test_only_earlier_polls_are_committed_by_themselves(
    broker: MemoryBroker, join: Join
) -> None:
    broker.create(TOPIC, 1)
    fill(broker, 10)
    consumer = await join()
    assert await offsets_of(consumer, 4) == [0, 1, 2, 3]
    await consumer.close()
    assert committed(broker) == 0, "the last poll may not be processed yet"
    consumer = await join()
    assert await offsets_of(consumer, 4) == [0, 1, 2, 3]
    assert len(await consumer.poll(2)) == 2
    await consumer.close()
    assert committed(broker) == 4
    consumer = await join()
    async for message in consumer:
        if message.queue_offset == 7:
            break
    await consumer.close()
    assert committed(broker) == 7
    consumer = await join()
    assert [message.queue_offset async for message in consumer.read_to_end()] == [7, 8, 9]
    await consumer.close()
    assert committed(broker) == 10, "the end counts as one more poll"


async def test_offsets_are_committed_while_it_runs(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 40)
    consumer = await join()
    while len(await consumer.poll(timeout=SOON)):
        pass
    fill(broker, 4)
    await broker.wake()
    await until(lambda: committed(broker) == 40)


async def test_without_auto_commit_only_commits_count(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 40)
    consumer = await join(auto_commit=False)
    while await consumer.poll(timeout=SOON):
        pass
    await consumer.close()
    assert committed(broker) == 0
    consumer = await join(auto_commit=False)
    messages = await consumer.poll(8)
    done = await consumer.commit()
    assert sum(done.values()) == 8
    assert committed(broker) == 8
    await consumer.poll(8)
    await consumer.close()
    assert committed(broker) == 8
    assert messages


async def test_a_commit_names_what_is_committed(assigned: AsyncPullConsumer) -> None:
    async with assigned as consumer:
        await consumer.seek(QUEUE, 5)
        assert await consumer.commit() == {QUEUE: 5}
        assert await consumer.committed() == {QUEUE: 5}
        assert await consumer.commit({QUEUE: 2}) == {QUEUE: 2}
        assert await consumer.committed([QUEUE]) == {QUEUE: 2}
        for wrong in (-1, 6):
            with raises_code(Code.INVALID_PARAMETER):
                await consumer.commit({QUEUE: wrong})
        other = MessageQueue(TOPIC, "a", 1)
        assert await consumer.committed([other]) == {other: None}


async def test_a_commit_that_a_broker_refuses_is_reported(
    assigned: AsyncPullConsumer, broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    async with assigned as consumer:
        await offsets_of(consumer, 3)
        cluster.refuse("UpdateConsumerOffsets", broker.address, Code.SERVICE_NOT_AVAILABLE)
        with raises_code(Code.SERVICE_NOT_AVAILABLE):
            await consumer.commit()
        cluster.answers.clear()
        assert await consumer.commit() == {QUEUE: 3}


async def test_without_a_group_nothing_is_committed(reader: AsyncPullConsumer) -> None:
    reader.assign([QUEUE])
    with raises_code(Code.ILLEGAL_OPERATION):
        await reader.commit()
    with raises_code(Code.ILLEGAL_OPERATION):
        await reader.committed()


async def test_bounds_and_lag(
    assigned: AsyncPullConsumer, broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    broker.min_offsets[TOPIC, 0] = 3
    async with assigned as consumer:
        assert await consumer.begin_offsets() == {QUEUE: 3}
        assert await consumer.end_offsets() == {QUEUE: 10}
        await consumer.seek(QUEUE, 4)
        assert await consumer.lag() == {QUEUE: 6}
        assert await offsets_of(consumer, 6) == [4, 5, 6, 7, 8, 9]
        assert await consumer.lag() == {QUEUE: 0}
        with raises_code(Code.QUEUE_NOT_EXIST):
            await consumer.end_offsets([MessageQueue(TOPIC, "a", 99)])


async def test_an_unknown_offset_reaches_no_broker(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    """While the broker cannot say where the group is, nothing is pulled."""
    fill(broker, 8)
    cluster.refuse("QueryConsumerOffsets", broker.address, Code.REQUEST_TIMEOUT)
    consumer = AsyncPullConsumer(GROUP, namesrv=NAMESRV, transport=cluster)
    consumer.assign([QUEUE])
    async with consumer:
        assert await consumer.poll(timeout=SOON) == []
        with raises_code(Code.REQUEST_TIMEOUT):
            await consumer.position(QUEUE)
        assert await consumer.commit() == {}
        assert not cluster.requests("Pull")
        cluster.answers.clear()
        assert await consumer.position(QUEUE) == 0
        assert len(await consumer.poll()) == 2
    for pull in cluster.requests("Pull"):
        assert pull.queue_offset >= 0 and pull.commit_offset >= 0


async def test_deleted_messages_are_passed_over(
    assigned: AsyncPullConsumer, broker: MemoryBroker
) -> None:
    async with assigned as consumer:
        assert await offsets_of(consumer, 10) == list(range(10))
        await consumer.seek_to_begin()
        broker.moved[GROUP, TOPIC, 0] = 6  # retention, or a reset
        assert await offsets_of(consumer, 4) == [6, 7, 8, 9]


async def test_lost_queues_give_nothing_and_take_no_commit(
    broker: MemoryBroker, join: Join
) -> None:
    fill(broker, 400)
    first = await join()
    await until(lambda: len(first._running().unread._unread) == 4)
    polled = await first.poll(8)
    before = first.queues
    second = await join()
    await until(lambda: len(first.queues) == len(second.queues) == 2)
    lost = before - first.queues
    with raises_code(Code.ILLEGAL_OPERATION):
        await first.commit(dict.fromkeys(lost, 1))
    with raises_code(Code.ILLEGAL_OPERATION):
        await first.seek(min(lost), 0)
    seen = {message.queue_id for _ in range(20) for message in await first.poll(timeout=SOON)}
    assert seen <= {queue.queue_id for queue in first.queues}
    assert polled


async def test_assigned_queues_of_two_topics_start_at_their_own_offsets(
    cluster: MemoryCluster, broker: MemoryBroker
) -> None:
    broker.create("trains", 1)
    fill(broker, 40)
    fill(broker, 10, topic="trains")
    queues = [MessageQueue(TOPIC, "a", 0), MessageQueue("trains", "a", 0)]
    broker.offsets |= {(GROUP, TOPIC, 0): 7, (GROUP, "trains", 0): 3}
    async with AsyncPullConsumer(GROUP, namesrv=NAMESRV, transport=cluster) as consumer:
        consumer.assign(queues)
        assert [await consumer.position(queue) for queue in queues] == [7, 3]
