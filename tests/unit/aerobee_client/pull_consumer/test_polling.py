"""What polls and iterations return, and what they refuse."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest

from aerobee_client.errors import ClientClosed
from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.pull_consumer import AsyncPullConsumer
from aerobee_wire import properties
from aerobee_wire.status import Code, MqError
from support.client.consumer_group import GROUP, TOPIC, Join, delete_topic, fill
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.clock.polling import until
from support.codes import raises_code

AT_ONCE = timedelta(0)
SOON = timedelta(milliseconds=50)
QUEUE = MessageQueue(TOPIC, "a", 0)


async def test_polls_return_each_message_once_in_order_of_each_queue(
    broker: MemoryBroker, join: Join
) -> None:
    fill(broker, 40)
    consumer = await join()
    seen: list[tuple[int, int]] = []
    while len(seen) < 40:
        messages = await consumer.poll(7)
        assert 1 <= len(messages) <= 7
        seen += [(message.queue_id, message.queue_offset) for message in messages]
    for queue_id in range(4):
        assert [offset for at, offset in seen if at == queue_id] == list(range(10))
    assert await consumer.poll(timeout=SOON) == []


async def test_queues_take_turns(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 400)
    consumer = await join()
    await until(lambda: len(consumer._running().unread._unread) == 4)
    firsts = [(await consumer.poll(10))[0].queue_id for _ in range(8)]
    assert sorted(firsts[:4]) == sorted(firsts[4:]) == [0, 1, 2, 3]


async def test_a_poll_waits_for_a_message(broker: MemoryBroker, join: Join) -> None:
    consumer = await join()
    assert await consumer.poll(timeout=AT_ONCE) == []
    waiting = asyncio.create_task(consumer.poll(timeout=timedelta(seconds=20)))
    await asyncio.sleep(0)
    fill(broker, 1)
    await broker.wake()
    assert [message.body for message in await waiting] == [b"0"]


async def test_interceptors_are_notified_of_what_polls_return(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    class Seen(Interceptor):
        def __init__(self) -> None:
            self.received: list[tuple[str, int]] = []
            self.acquired = 0

        def after_receive(
            self, consumer_group: str, messages: Sequence[ReceivedMessage], elapsed_s: float
        ) -> None:
            self.received.append((consumer_group, len(messages)))
            raise ValueError("changes nothing")

        def after_rebalance(
            self,
            consumer_group: str,
            acquired: frozenset[MessageQueue],
            released: frozenset[MessageQueue],
        ) -> None:
            self.acquired += len(acquired)

    fill(broker, 3)
    seen = Seen()
    consumer = AsyncPullConsumer(GROUP, namesrv=NAMESRV, transport=cluster)
    consumer.add_interceptor(seen)
    consumer.subscribe(TOPIC)
    async with consumer:
        assert len([message async for message in consumer.read_to_end()]) == 3
        with raises_code(Code.ILLEGAL_OPERATION):
            consumer.add_interceptor(seen)
    assert seen.received == [(GROUP, 1)] * 3
    assert seen.acquired == 4


async def test_only_one_poll_waits(join: Join) -> None:
    consumer = await join()
    waiting = asyncio.create_task(consumer.poll())
    await until(lambda: consumer._running().unread._polling)
    with raises_code(Code.ILLEGAL_OPERATION):
        await consumer.poll()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await consumer.poll(timeout=SOON) == []


async def test_only_messages_of_the_expression_are_returned(
    broker: MemoryBroker, join: Join
) -> None:
    fill(broker, 8, TAGS="UA")
    fill(broker, 8, TAGS="BA")
    consumer = await join(expression="BA")
    seen: list[str] = []
    while len(seen) < 8:
        seen += [message.tag for message in await consumer.poll()]
    assert Counter(seen) == {"BA": 8}
    for queue in consumer.queues:
        assert await consumer.position(queue) == 4


async def test_an_iteration_ends_when_the_consumer_is_closed(
    broker: MemoryBroker, join: Join
) -> None:
    fill(broker, 5)
    consumer = await join()
    seen: list[bytes] = []

    async def read() -> None:
        async for message in consumer:
            seen.append(message.body)

    reading = asyncio.create_task(read())
    await until(lambda: len(seen) == 5)
    await consumer.close()
    await reading


async def test_a_loop_that_closes_its_consumer_ends(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 5)
    consumer = await join()
    seen = 0
    async for _ in consumer:
        seen += 1
        await consumer.close()
    assert seen == 1
    with raises_code(Code.ILLEGAL_OPERATION):
        await anext(aiter(consumer))


async def test_a_waiting_poll_fails_when_the_consumer_is_closed(join: Join) -> None:
    consumer = await join()
    waiting = asyncio.create_task(consumer.poll())
    await until(lambda: consumer._running().unread._polling)
    await consumer.close()
    with pytest.raises(ClientClosed):
        await waiting
    with pytest.raises(ClientClosed):
        await consumer.poll()


async def test_reading_ends_at_the_ends_at_its_begin(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 10)
    consumer = await join()
    seen: list[bytes] = []
    async for message in consumer.read_to_end():
        if not seen:
            fill(broker, 4)
            await broker.wake()
        seen.append(message.body)
    assert sorted(seen) == sorted(b"%d" % n for n in range(10))
    assert len(await consumer.poll(4)) == 4, "what came later is read by the next poll"


async def test_reading_ends_behind_what_the_expression_leaves_out(
    broker: MemoryBroker, join: Join
) -> None:
    fill(broker, 4, TAGS="BA")
    fill(broker, 8, TAGS="UA")
    consumer = await join(expression="BA")
    assert len([message async for message in consumer.read_to_end()]) == 4


async def test_reading_fails_when_a_broker_does_not_come_back(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    fill(broker, 8)
    consumer = await join()
    reading = consumer.read_to_end(timedelta(milliseconds=200))
    broker.append(TOPIC, 0, b"never read", b"")
    cluster.refuse("Pull", broker.address, Code.BROKER_UNREACHABLE)
    await broker.wake()
    seen = []
    with raises_code(Code.REQUEST_TIMEOUT):
        async for message in reading:
            seen.append(message.body)
    assert len(seen) <= 8


async def test_assigned_queues_are_read_without_a_group(
    broker: MemoryBroker, cluster: MemoryCluster, reader: AsyncPullConsumer
) -> None:
    fill(broker, 8)
    queues = await reader.fetch_message_queues(TOPIC)
    assert [queue.queue_id for queue in queues] == [0, 1, 2, 3]
    reader.assign(queues[:2])
    assert {m.queue_id async for m in reader.read_to_end()} == {0, 1}
    reader.assign(queues[2:])
    assert {m.queue_id async for m in reader.read_to_end()} == {2, 3}
    assert reader.queues == {*queues[2:]}
    for pull in cluster.requests("Pull"):
        assert pull.browse and not pull.consumer_group and not pull.HasField("commit_offset")
    assert not cluster.requests("Heartbeat") and not broker.offsets


async def test_a_reader_starts_at_the_first_message(
    broker: MemoryBroker, reader: AsyncPullConsumer
) -> None:
    """Not at the last one, as groups do once retention has deleted some."""
    fill(broker, 40)
    broker.min_offsets[TOPIC, 0] = 6
    reader.assign([QUEUE])
    assert [m.queue_offset async for m in reader.read_to_end()] == [6, 7, 8, 9]


async def test_another_expression_goes_on_where_the_first_was(
    broker: MemoryBroker, reader: AsyncPullConsumer
) -> None:
    for n in range(10):
        broker.append(TOPIC, 0, b"%d" % n, b"TAGS\x01%s\x02" % (b"UA" if n % 2 else b"BA"))
    reader.assign([QUEUE], "UA")
    assert [m.body for m in await reader.poll(2)] == [b"1", b"3"]
    reader.assign([QUEUE], "BA")
    assert [m.body async for m in reader.read_to_end()] == [b"6", b"8"]


async def test_paused_queues_give_nothing(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 40)
    consumer = await join()
    consumer.pause(QUEUE)
    assert consumer.paused == {QUEUE}
    seen: list[int] = []
    while len(seen) < 30:
        seen += [message.queue_id for message in await consumer.poll()]
    assert 0 not in seen
    assert await consumer.poll(timeout=SOON) == []
    waiting = asyncio.create_task(consumer.poll())
    await until(lambda: consumer._running().unread._polling)
    consumer.resume(QUEUE)
    assert {message.queue_id for message in await waiting} == {0}


@pytest.mark.parametrize(
    "given",
    [{"max_messages": 0}, {"max_messages": -1}, {"timeout": timedelta(seconds=-1)}, {"timeout": 5}],
)
async def test_a_poll_of_nothing_is_refused(join: Join, given: dict[str, object]) -> None:
    consumer = await join()
    with raises_code(Code.INVALID_PARAMETER):
        await consumer.poll(**given)


async def test_subscribe_and_assign_exclude_each_other(cluster: MemoryCluster) -> None:
    first = AsyncPullConsumer(GROUP, namesrv=NAMESRV, transport=cluster)
    first.subscribe(TOPIC)
    with raises_code(Code.ILLEGAL_OPERATION):
        first.assign([QUEUE])
    second = AsyncPullConsumer(GROUP, namesrv=NAMESRV, transport=cluster)
    second.assign([QUEUE])
    with raises_code(Code.ILLEGAL_OPERATION):
        second.subscribe(TOPIC)
    with raises_code(Code.ILLEGAL_OPERATION):
        AsyncPullConsumer(namesrv=NAMESRV, transport=cluster).subscribe(TOPIC)
    with raises_code(Code.INVALID_PARAMETER):
        second.assign([MessageQueue(TOPIC, "a", -1)])


async def test_a_topic_may_be_subscribed_after_the_start(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    fill(broker, 4)
    async with AsyncPullConsumer(GROUP, namesrv=NAMESRV, transport=cluster) as consumer:
        consumer.subscribe(TOPIC)
        cluster.refuse("Heartbeat", broker.address, Code.SUBSCRIPTION_GROUP_NOT_EXIST)
        with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
            await consumer.poll()
        cluster.answers.clear()
        assert await consumer.poll(), "the next call tries again"


async def test_a_refusal_that_stays_is_raised(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    cluster.refuse("Pull", broker.address, Code.NO_PERMISSION)
    consumer = await join()
    with raises_code(Code.NO_PERMISSION):
        await consumer.poll(timeout=timedelta(seconds=20))


async def test_an_assigned_queue_that_is_not_there_is_reported(
    broker: MemoryBroker, cluster: MemoryCluster, reader: AsyncPullConsumer
) -> None:
    fill(broker, 4)
    missing = MessageQueue("missing", "a", 0)
    reader.assign([QUEUE, missing])
    with raises_code(Code.TOPIC_NOT_EXIST):
        await reader.poll(timeout=timedelta(seconds=20))
    assert (await reader.poll())[0].body == b"0", "the other queues are read"
    with raises_code(Code.TOPIC_NOT_EXIST):
        await reader.position(missing)
    consumer = AsyncPullConsumer(namesrv=NAMESRV, transport=cluster)
    consumer.assign([missing])
    with raises_code(Code.TOPIC_NOT_EXIST):
        await consumer.start()


async def test_a_deleted_topic_is_waited_for(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 4)
    consumer = await join()
    while await consumer.poll(timeout=SOON):
        pass
    delete_topic(broker)
    await broker.wake()
    await until(lambda: not consumer.queues)
    assert await consumer.poll(timeout=SOON) == []
    broker.create(TOPIC, 4)
    fill(broker, 4)
    seen: list[bytes] = []
    while len(seen) < 4:
        try:
            seen += [message.body for message in await consumer.poll()]
        except MqError as error:
            pytest.fail(f"{error!r}")


async def take(consumer: AsyncPullConsumer, count: int) -> list[ReceivedMessage]:
    taken: list[ReceivedMessage] = []
    while len(taken) < count:
        taken += await consumer.poll(count - len(taken))
    return taken


async def test_no_more_is_pulled_than_the_threshold_of_all_queues(
    broker: MemoryBroker, join: Join
) -> None:
    fill(broker, 4_000)
    limits = {"pull_threshold_for_queue": 1_000, "pull_batch_size": 10}
    consumer = await join(pull_threshold_for_all=100, **limits)
    await until(lambda: consumer.statistics().waiting > 100)
    await asyncio.sleep(0.05)
    assert consumer.statistics().waiting <= 100 + 4 * 10
    seen = 0
    while seen < 4_000:
        seen += len(await consumer.poll(50))
        assert consumer.statistics().waiting <= 100 + 50 + 4 * 10


async def test_paused_queues_take_no_room_from_others(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 400)
    consumer = await join(pull_threshold_for_topic=20, pull_batch_size=10)
    await until(lambda: len(consumer.queues) == 4)
    others = [queue for queue in consumer.queues if queue != QUEUE]
    await until(lambda: consumer.statistics().waiting >= 20)
    consumer.pause(*others)
    read = await take(consumer, 100)
    assert [message.queue_offset for message in read] == list(range(100))
    assert {message.queue_id for message in read} == {0}
    consumer.resume(*others)
    rest = await take(consumer, 300)
    assert Counter(message.queue_id for message in rest) == {1: 100, 2: 100, 3: 100}


async def test_a_reading_to_the_end_waits_for_no_room_that_later_messages_take(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    def append(queue_id: int, count: int, body: bytes) -> None:
        for _ in range(count):
            broker.append(TOPIC, queue_id, body, properties.encode({}))

    reader = AsyncPullConsumer(
        namesrv=NAMESRV, transport=cluster, pull_threshold_for_all=100, pull_batch_size=10
    )
    reader.assign([MessageQueue(TOPIC, "a", n) for n in range(4)])
    for n in range(4):
        append(n, 100 if n == 3 else 1, b"x")
    async with reader:
        reading = reader.read_to_end(timedelta(seconds=20))
        first = await anext(reading)
        for n in range(3):  # behind their ends, more than all may hold
            append(n, 5_000, b"late")
        await broker.wake()
        rest = [message async for message in reading]
        assert {message.body for message in (first, *rest)} == {b"x"}
        assert len(rest) == 102 and reader.statistics().waiting > 100
