"""Queues that move between members of a group: what is settled does not come again, because the
next member reads the offset after the one before has committed it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from aerobee_client.consuming import assignment, membership
from aerobee_client.message import ReceivedMessage
from aerobee_client.options.consumer import ConsumeFromWhere
from aerobee_client.pull_consumer import AsyncPullConsumer
from aerobee_client.push_consumer import AsyncPushConsumer
from support.client.consumer_group import GROUP, TOPIC, committed, fill
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.clock.virtual_loop import LoopClock

COUNT = 40
ONCE = Counter({b"%d" % number: 1 for number in range(COUNT)})


class Members:
    """What members of the group have got, together; `close` ends those that are left."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.got: Counter[bytes] = Counter()
        self._cluster = cluster
        self._stack = AsyncExitStack()

    async def push(self) -> AsyncPushConsumer:
        async def listen(message: ReceivedMessage) -> None:
            self.got[message.body] += 1

        consumer: AsyncPushConsumer = await self._start(AsyncPushConsumer, listen)
        return consumer

    async def pull(self) -> AsyncPullConsumer:
        """Polls without a pause, until it is closed."""
        consumer: AsyncPullConsumer = await self._start(AsyncPullConsumer)

        async def poll() -> None:
            async for message in consumer:
                self.got[message.body] += 1

        polling = asyncio.create_task(poll())
        self._stack.push_async_callback(asyncio.wait, [polling])
        self._stack.push_async_callback(consumer.close)
        return consumer

    async def _start(self, kind: Any, *listener: Any) -> Any:
        consumer = kind(
            GROUP,
            *listener,
            namesrv=NAMESRV,
            transport=self._cluster,
            clock=LoopClock(),
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        consumer.subscribe(TOPIC)
        return await self._stack.enter_async_context(consumer)

    async def close(self) -> None:
        await self._stack.aclose()


def of_topic(consumer: Any) -> int:
    return sum(queue.topic == TOPIC for queue in consumer.queues)


@pytest.mark.parametrize("kind", [Members.push, Members.pull])
async def test_member_that_joins_or_stays_gets_no_settled_message(
    broker: MemoryBroker, cluster: MemoryCluster, kind: Callable[[Members], Any]
) -> None:
    members = Members(cluster)
    first = await kind(members)
    fill(broker, COUNT)
    await broker.wake()
    await asyncio.sleep(1)
    assert members.got == ONCE and committed(broker) < COUNT
    second = await kind(members)
    assert of_topic(second) == 0, "the first has not committed yet"
    await asyncio.sleep(0.5)
    assert of_topic(first) == of_topic(second) == 2
    fill(broker, COUNT)
    await broker.wake()
    await asyncio.sleep(1)
    await second.close()
    await asyncio.sleep(1)
    assert of_topic(first) == 4
    assert members.got == ONCE + ONCE
    await members.close()


async def test_members_that_come_and_go_under_load_get_each_message_once(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    """A listener that takes no time has nothing in flight when a queue moves."""
    members = Members(cluster)
    await members.push()
    sending = asyncio.create_task(_send(broker, 600))
    for _ in range(5):
        await asyncio.sleep(0.37)
        passing = await members.push()
        await asyncio.sleep(0.53)
        await passing.close()
    await sending
    await asyncio.sleep(3)
    assert set(members.got.values()) == {1} and len(members.got) == 600
    await members.close()


async def _send(broker: MemoryBroker, count: int) -> None:
    for number in range(count):
        broker.append(TOPIC, number % 4, b"m%d" % number, b"")
        await broker.wake()
        await asyncio.sleep(0.01)


async def test_member_that_does_not_release_is_waited_for_two_seconds(
    broker: MemoryBroker, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = Members(cluster)
    first = await members.push()
    await asyncio.sleep(1)
    assert first._membership is not None
    rebalanced = asyncio.Event()

    async def hang(*_: object) -> bool:
        await rebalanced.wait()
        return True

    monkeypatch.setattr(first._membership.assignment, "rebalance", hang)
    second = await members.push()
    await asyncio.sleep(assignment.WAIT_MS / 1_000 - 0.1)
    assert of_topic(second) == 0
    await asyncio.sleep(membership.REBALANCE_RETRY_S + 0.5)
    assert of_topic(second) == 2
    rebalanced.set()
    await members.close()


async def test_queue_of_a_member_that_is_gone_is_not_waited_for(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    members = Members(cluster)
    first = await members.push()
    await asyncio.sleep(1)
    await first.close()
    second = await members.push()
    assert of_topic(second) == 4
    await members.close()
