"""Messages of lite topics: their queue, their order, what they exclude."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.producer import AsyncProducer
from aerobee_wire.queues.choice import queue_of_group
from aerobee_wire.status import Code
from support.client.memory import MemoryBroker, MemoryCluster
from support.client.producing import TOPIC, producer
from support.codes import raises_code

QUEUES = [MessageQueue(TOPIC, "a", queue_id) for queue_id in range(4)]


async def test_a_lite_topic_stays_in_the_queue_that_the_proxy_chooses_however_it_is_sent(
    cluster: MemoryCluster, broker: MemoryBroker
) -> None:
    """And in the order of the calls, compressed messages too."""
    names = [f"session-{number}" for number in range(7)]
    async with producer(cluster, compression="zlib", compress_over=100) as sender:
        futures = []
        for number in range(30):
            for name in names:
                body = b"%d" % number + b" " * (200 * (number % 2))
                futures.append(sender.send_async(Message(TOPIC, body, lite_topic=name)))
        for future in futures:
            await future
        later = [
            Message(TOPIC, b"%d" % number, lite_topic=name)
            for number in range(30, 60)
            for name in names
        ]
        results = await sender.send_batch(later)
        await sender.send_oneway(Message(TOPIC, b"60", lite_topic=names[0]))
        await sender.send(Message(TOPIC, b"61", lite_topic=names[0]), accumulate=False)
    for message, result in zip(later, results, strict=True):
        assert result.queue == queue_of_group(message.lite_topic, QUEUES)
    for name in names:
        found = [
            (record.queue_id, ReceivedMessage(record).body)
            for record in sorted(broker.messages(TOPIC), key=lambda each: each.queue_offset)
            if record.properties["__LITE_TOPIC"] == name
        ]
        assert {queue_id for queue_id, _ in found} == {queue_of_group(name, QUEUES).queue_id}
        count = 62 if name == names[0] else 60
        assert [int(body) for _, body in found] == list(range(count))


async def test_a_lite_topic_and_another_choice_exclude_each_other(
    sender: AsyncProducer,
) -> None:
    message = Message(TOPIC, b"x", lite_topic="a")
    with raises_code(Code.INVALID_PARAMETER):
        await sender.send(message, queue=QUEUES[0])
    with raises_code(Code.INVALID_PARAMETER):
        await sender.send(message, selector=lambda _, queues: queues[0])
    bad: dict[str, Any]
    for bad in ({"message_group": "g"}, {"priority": 1}, {"delay": timedelta(seconds=1)}):
        with raises_code(Code.INVALID_PARAMETER):
            Message(TOPIC, b"x", lite_topic="a", **bad)
    for name in ("a b", "$", "x" * 65, "ä"):
        with raises_code(Code.INVALID_PARAMETER):
            Message(TOPIC, b"x", lite_topic=name)
