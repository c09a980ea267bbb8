"""Consuming: every message once, on threads or tasks, one by one or in batches, by tag."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from aerobee.broker.v1 import message_pb2

from aerobee_client.errors import NamesrvUnreachable
from aerobee_client.message import ReceivedMessage
from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_wire.status import Code, MqError
from support.client.consumer_group import GROUP, TOPIC, Join, committed, fill, owned
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.clock.polling import until
from support.clock.virtual_loop import LoopClock, VirtualLoop
from support.codes import raises_code


async def test_every_message_reaches_the_listener_once(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 1_000)
    seen: list[bytes] = []
    consumer = await join(lambda message: seen.append(message.body))
    await until(lambda: len(seen) >= 1_000)
    await consumer.close()
    assert Counter(seen) == Counter(b"%d" % n for n in range(1_000))
    assert committed(broker) == 1_000


async def test_coroutine_listeners_run_concurrently(broker: MemoryBroker, join: Join) -> None:
    seen: list[bytes] = []
    running: list[int] = []
    together: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        running.append(1)
        await asyncio.sleep(0)
        together.append(len(running))
        running.pop()
        seen.append(message.body)

    await join(listen, concurrency=3)
    fill(broker, 50)
    await broker.wake()
    await until(lambda: len(seen) == 50)
    assert max(together) <= 3


async def test_a_new_message_wakes_the_long_poll(broker: MemoryBroker, join: Join) -> None:
    seen: list[bytes] = []
    await join(lambda message: seen.append(message.body))
    fill(broker, 10)
    await broker.wake()
    await until(lambda: len(seen) == 10)


def test_a_broker_without_long_polls_is_asked_once_a_second(
    cluster: MemoryCluster, broker: MemoryBroker
) -> None:
    """longPollingEnable is off: it answers at once."""
    seen: list[bytes] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.body)

    pulls = 0

    def at_once(_: str, request: message_pb2.PullRequest) -> None:
        nonlocal pulls
        pulls += 1
        assert pulls < 1_000, "no time passes between them"
        request.suspend_timeout_ms = 0

    async def consume() -> None:
        cluster.answers["Pull"] = at_once
        consumer = AsyncPushConsumer(
            GROUP, listen, namesrv=NAMESRV, transport=cluster, clock=LoopClock()
        )
        consumer.subscribe(TOPIC)
        async with consumer:
            await asyncio.sleep(10)
            before, queues = pulls, 5  # one is of the retry topic
            await asyncio.sleep(10)
            assert pulls - before <= 11 * queues
            fill(broker, 10)
            await asyncio.sleep(2)
            assert len(seen) == 10

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(consume())


async def test_batches_have_at_most_the_maximum_size(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 100)
    sizes: list[int] = []
    await join(
        batch_listener=lambda messages: sizes.append(len(messages)),
        consume_message_batch_max_size=8,
    )
    await until(lambda: sum(sizes) == 100)
    assert max(sizes) == 8


async def test_a_batch_listener_may_change_its_list(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 40)
    seen: list[bytes] = []

    def listen(messages: list[ReceivedMessage]) -> None:
        while messages:
            seen.append(messages.pop().body)

    consumer = await join(batch_listener=listen, consume_message_batch_max_size=8)
    await until(lambda: len(seen) == 40)
    await consumer.close()
    assert committed(broker) == 40


async def test_tags_with_the_same_hash_code_are_filtered_out(
    broker: MemoryBroker, join: Join
) -> None:
    """The broker compares hash codes; "Aa" and "BB" have the same one in Java."""
    for tag in ("Aa", "BB", "UA"):
        fill(broker, 20, TAGS=tag)
    fill(broker, 20)
    seen: list[str] = []
    consumer = await join(lambda message: seen.append(message.tag), expression="Aa || UA")
    await until(lambda: len(seen) == 40)
    await consumer.close()
    assert Counter(seen) == {"Aa": 20, "UA": 20}
    assert committed(broker) == 80  # also past other tags


async def test_offsets_advance_past_messages_that_are_filtered_out(
    broker: MemoryBroker, join: Join
) -> None:
    fill(broker, 40, TAGS="UA")
    consumer = await join(print, expression="DL")
    await until(lambda: committed(broker) == 40)  # by the next pulls
    assert len(owned(consumer)) == 4


async def test_start_fails_without_a_name_server(cluster: MemoryCluster, join: Join) -> None:
    cluster.down.add(NAMESRV)
    with pytest.raises(NamesrvUnreachable):
        await join(print)


async def test_start_fails_when_every_broker_refuses_the_group(
    cluster: MemoryCluster, join: Join
) -> None:
    cluster.answers["Heartbeat"] = MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, "create it first")
    with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
        await join(print)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"consumer_group": "not legal"}, Code.INVALID_PARAMETER),
        ({"concurrency": 0}, Code.INVALID_PARAMETER),
        ({"pull_batch_size": 5_000}, Code.INVALID_PARAMETER),
        ({"batch_listener": print}, Code.INVALID_PARAMETER),
        ({"consume_timeout": timedelta(0)}, Code.INVALID_PARAMETER),
        ({"max_reconsume_times": -1}, Code.INVALID_PARAMETER),
        ({"max_reconsume_times": 1 << 31}, Code.INVALID_PARAMETER),
        ({"consume_timestamp_ms": -1}, Code.INVALID_PARAMETER),
        ({"consume_timestamp_ms": 1 << 63}, Code.INVALID_PARAMETER),
    ],
)
def test_bad_setting_is_refused(arguments: dict[str, Any], code: Code) -> None:
    with raises_code(code):
        AsyncPushConsumer(**{"consumer_group": GROUP, "listener": print, **arguments})


@pytest.mark.parametrize(
    ("topic", "expression", "code"),
    [("not legal", "*", Code.INVALID_PARAMETER), ("t", "||", Code.SUBSCRIPTION_PARSE_FAILED)],
)
def test_bad_subscription_is_refused(topic: str, expression: str, code: Code) -> None:
    consumer = AsyncPushConsumer(GROUP, print, namesrv=NAMESRV)
    with raises_code(code):
        consumer.subscribe(topic, expression)
