"""A broker of a suite that is killed under load: it keeps what it acknowledged; clients go on."""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from functools import partial

from aerobee_client import AsyncProducer, AsyncPushConsumer, Message, MqError, ReceivedMessage
from aerobee_client.testing import AsyncRocketMq
from support.clock.polling import until

KILLS = 5
SENDERS = 16


def has_grown(sent: Sized, before: int) -> bool:
    return len(sent) > before + 100


async def test_what_was_acknowledged_is_stored_and_consumed(async_rocketmq: AsyncRocketMq) -> None:
    topic, group = await async_rocketmq.topic(), await async_rocketmq.group()
    acknowledged: set[bytes] = set()
    consumed: list[bytes] = []
    stopping = asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        consumed.append(message.body)

    async def send(producer: AsyncProducer, sender: int) -> None:
        number = 0
        while not stopping.is_set():
            number += 1
            body = b"%d-%d" % (sender, number)
            try:
                await producer.send(Message(topic=topic, body=body))
            except MqError:
                await asyncio.sleep(0.01)
            else:
                acknowledged.add(body)

    consumer = AsyncPushConsumer(group, listener)
    consumer.subscribe(topic)
    async with consumer, AsyncProducer() as producer:
        senders = [asyncio.create_task(send(producer, number)) for number in range(SENDERS)]
        for _ in range(KILLS):
            await until(partial(has_grown, acknowledged, len(acknowledged)), "sends succeed")
            await async_rocketmq.kill_broker()
            await async_rocketmq.restart_broker()
        stopping.set()
        await asyncio.gather(*senders)
        await until(lambda: acknowledged <= set(consumed), "every acknowledged message is consumed")
    stored = {message.body for message in await async_rocketmq.messages(topic)}
    assert acknowledged <= stored
    assert set(consumed) <= stored
