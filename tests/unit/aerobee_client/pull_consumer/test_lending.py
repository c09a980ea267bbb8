"""Messages that a loop of the plain class is lent together: as if each were polled for."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from datetime import timedelta

from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.pull_consumer import AsyncPullConsumer
from aerobee_client.pulling.unread import Item, Lent
from aerobee_wire.status import Code
from support.client.consumer_group import GROUP, TOPIC, Join, committed, fill
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.clock.polling import until
from support.codes import raises_code

QUEUE = MessageQueue(TOPIC, "a", 0)


async def lend(consumer: AsyncPullConsumer, count: int) -> Lent:
    """All messages that no poll has returned, once they are pulled: `count`."""
    unread = consumer._running().unread
    await until(lambda: sum(map(len, unread._unread.values())) == count)
    lent = await unread.lend(0)
    assert lent is not None
    return lent


async def lent_from(broker: MemoryBroker, join: Join, count: int) -> tuple[AsyncPullConsumer, Lent]:
    """A consumer of one queue, which has lent all of its messages."""
    broker.topics[TOPIC] = 1
    fill(broker, count)
    consumer = await join()
    return consumer, await lend(consumer, count)


def take(lent: Lent, count: int) -> list[int]:
    """Queue offsets."""
    taken = []
    for _ in range(count):
        message = lent.take()
        if message is not None:
            taken.append(message.queue_offset)
    return taken


async def test_a_commit_covers_what_was_taken_before_the_last(
    broker: MemoryBroker, join: Join
) -> None:
    consumer, lent = await lent_from(broker, join, 20)
    offsets = consumer._running().offsets
    for taken in (1, 2, 10):
        take(lent, taken - consumed(consumer) - (taken > 1))
        await offsets.commit()
        assert committed(broker) == taken - 1 == consumed(consumer)
    assert list((await consumer.commit()).values()) == [10], "the last one too, when told"
    assert take(lent, 1) == [], "a commit ends the lending: the loop asks again"
    assert [message.queue_offset for message in await consumer.poll(3)] == [10, 11, 12]


def consumed(consumer: AsyncPullConsumer) -> int:
    return consumer.statistics().consumed


async def test_every_call_that_asks_where_it_reads_ends_the_lending(
    broker: MemoryBroker, join: Join
) -> None:
    consumer, lent = await lent_from(broker, join, 20)
    assert take(lent, 3) == [0, 1, 2]
    assert await consumer.position(QUEUE) == 3
    lent = await lend(consumer, 17)
    assert take(lent, 2) == [3, 4]
    consumer.pause(QUEUE)
    assert take(lent, 1) == []
    assert await consumer.poll(timeout=timedelta(0)) == []
    consumer.resume(QUEUE)
    lent = await lend(consumer, 15)
    await consumer.seek(QUEUE, 12)
    assert take(lent, 1) == [], "what was lent is of another place"
    lent = await lend(consumer, 8)
    assert take(lent, 1) == [12]


async def test_a_queue_that_another_member_gets_is_committed_up_to_there(
    broker: MemoryBroker, join: Join
) -> None:
    fill(broker, 40)
    consumer = await join()
    lent = await lend(consumer, 40)
    assert len(take(lent, 40)) == 40
    other = await join()
    await until(lambda: len(consumer.queues) == len(other.queues) == 2)
    at = [broker.offsets[GROUP, TOPIC, queue.queue_id] for queue in other.queues]
    assert sum(at) >= 19, "all but the last message that was taken, wherever that is"


async def test_nothing_is_taken_of_a_consumer_that_is_closed(
    broker: MemoryBroker, join: Join
) -> None:
    consumer, lent = await lent_from(broker, join, 20)
    take(lent, 5)
    await consumer.close()
    assert take(lent, 1) == [] and committed(broker) == 4


async def test_what_was_not_taken_of_an_interrupted_call_is_lent_again(
    broker: MemoryBroker, join: Join
) -> None:
    consumer, lost = await lent_from(broker, join, 5)
    consumer.take_back()
    assert take(lost, 1) == []
    assert take(await lend(consumer, 5), 5) == [0, 1, 2, 3, 4]


async def test_interceptors_of_polls_are_notified_of_each_message_before_it_is_taken(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    class Seen(Interceptor):
        def __init__(self) -> None:
            self.count = 0

        def after_receive(self, *_: object) -> None:
            self.count += 1

    fill(broker, 8)
    seen = Seen()
    consumer = AsyncPullConsumer(GROUP, namesrv=NAMESRV, transport=cluster, interceptors=[seen])
    consumer.subscribe(TOPIC)
    async with consumer, aclosing(consumer._lendings_to_end(timedelta(seconds=20))) as lendings:
        number = 0
        async for lent in lendings:
            while lent.take() is not None:
                number += 1
                assert seen.count == number
    assert number == 8


async def test_only_one_loop_waits(join: Join) -> None:
    consumer = await join()
    unread = consumer._running().unread
    waiting = asyncio.create_task(unread.lend(None))
    await until(lambda: unread._polling)
    with raises_code(Code.ILLEGAL_OPERATION):
        await unread.lend(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


class TakenMeanwhile(deque[Item]):
    """Another thread takes a message while the loop ends the lending: before its second."""

    def __init__(self, lent: Lent) -> None:
        super().__init__(lent._items)
        self._lent: Lent | None = lent
        self._reads = 0
        self.taken: list[int] = []

    def __bool__(self) -> bool:
        self._reads += 1
        if self._reads == 2 and self._lent is not None:
            lent, self._lent = self._lent, None
            self.taken = take(lent, 1)
        return len(self) > 0


async def test_a_message_that_is_taken_while_the_lending_ends_comes_once(
    broker: MemoryBroker, join: Join
) -> None:
    consumer, lent = await lent_from(broker, join, 5)
    meanwhile = lent._left = TakenMeanwhile(lent)
    assert await consumer.position(QUEUE) == 1
    assert meanwhile.taken == [0]
    assert [message.queue_offset for message in await consumer.poll()] == [1, 2, 3, 4]
    await consumer._running().offsets.commit()
    assert committed(broker) == 1
