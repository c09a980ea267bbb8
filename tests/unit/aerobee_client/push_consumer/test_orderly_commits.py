"""Orderly members whose listener commits, and what may be set of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from aerobee_client.message import ReceivedMessage
from aerobee_client.options.consumer import MessageModel
from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_wire.status import Code
from support.client.consumer_group import GROUP, TOPIC, Join, committed, fill
from support.client.memory import NAMESRV, MemoryBroker
from support.clock.polling import until
from support.codes import raises_code

SOON = timedelta(milliseconds=10)


async def test_the_listener_commits_what_it_has_consumed(broker: MemoryBroker, join: Join) -> None:
    broker.create(TOPIC, 1)
    fill(broker, 10)
    seen: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 6:
            await consumer.commit(message)

    consumer = await join(listen, orderly=True, auto_commit=False)
    await until(lambda: len(seen) == 10)
    await consumer.close()
    assert committed(broker) == 7


async def test_what_was_rolled_back_comes_again(broker: MemoryBroker, join: Join) -> None:
    broker.create(TOPIC, 1)
    fill(broker, 5)
    seen: list[tuple[int, int]] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append((message.queue_offset, message.reconsume_times))
        if message.queue_offset == 1 and len(seen) == 2:
            await consumer.commit(message)
        elif message.queue_offset == 3 and len(seen) == 4:
            await consumer.rollback(message)

    consumer = await join(listen, orderly=True, auto_commit=False, suspend_time=SOON)
    await until(lambda: len(seen) == 7)
    assert seen == [(0, 0), (1, 0), (2, 0), (3, 0), (2, 0), (3, 0), (4, 0)]
    await consumer.commit()
    await consumer.close()
    assert committed(broker) == 5


@pytest.mark.parametrize("settings", [{}, {"orderly": True}])
async def test_a_consumer_that_commits_by_itself_has_no_commit(
    broker: MemoryBroker, join: Join, settings: dict[str, Any]
) -> None:
    consumer = await join(print, **settings)
    with raises_code(Code.ILLEGAL_OPERATION):
        await consumer.commit()
    with raises_code(Code.ILLEGAL_OPERATION):
        await consumer.rollback()


async def test_a_message_that_was_committed_is_not_committed_again(
    broker: MemoryBroker, join: Join
) -> None:
    broker.create(TOPIC, 1)
    fill(broker, 1)
    seen: list[ReceivedMessage] = []
    consumer = await join(seen.append, orderly=True, auto_commit=False)
    await until(lambda: seen)
    await consumer.commit()
    with raises_code(Code.QUEUE_LOCK_NOT_HELD):
        await consumer.commit(seen[0])


@pytest.mark.parametrize(
    "settings",
    [
        {"order_by": "message_group"},
        {"orderly": True, "order_by": "topic"},
        {"auto_commit": False},
        {"max_reconsume_times": -1},
        {"suspend_time": SOON},
        {"orderly": True, "suspend_time": timedelta(milliseconds=9)},
        {"orderly": True, "suspend_time": timedelta(seconds=31)},
        {"orderly": True, "message_model": MessageModel.BROADCASTING},
    ],
)
def test_options_that_do_not_fit_are_refused(settings: dict[str, Any]) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        AsyncPushConsumer(GROUP, print, namesrv=NAMESRV, **settings)
