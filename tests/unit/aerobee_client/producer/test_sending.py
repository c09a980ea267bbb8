"""Sending through a cluster in memory: results, queues, batches, what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from aerobee_client.errors import PartialSend
from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.producer import AsyncProducer
from aerobee_wire.status import Code, MqError
from support.client.memory import MemoryBroker, MemoryCluster
from support.client.producing import TOPIC, messages, producer
from support.codes import raises_code


async def test_message_is_stored_as_it_was_given(
    broker: MemoryBroker, sender: AsyncProducer
) -> None:
    message = Message(TOPIC, b"body", tag="UA", keys=["k"], properties={"mine": "1"}, flag=7)
    result = await sender.send(message)
    (stored,) = broker.messages(TOPIC)
    assert (stored.body, stored.flag) == (b"body", 7)
    assert stored.properties == {
        "UNIQ_KEY": result.message_id,
        "TAGS": "UA",
        "KEYS": "k",
        "mine": "1",
    }
    assert result.queue == MessageQueue(TOPIC, "a", stored.queue_id)
    assert (result.queue_offset, result.physical_offset) == (0, stored.physical_offset)
    assert result.offset_message_id == stored.offset_message_id


async def test_single_sends_take_the_queues_in_turn(sender: AsyncProducer) -> None:
    results = [await sender.send(message) for message in messages(8)]
    assert sorted(result.queue.queue_id for result in results) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_batch_is_one_request_with_results_in_order(
    broker: MemoryBroker, cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    results = await sender.send_batch(messages(128))
    assert len(cluster.requests("Send")) == 1
    assert [result.queue_offset for result in results] == list(range(128))
    assert len({result.message_id for result in results}) == 128
    stored = {record.unique_message_id: record.body for record in broker.messages(TOPIC)}
    assert [stored[result.message_id] for result in results] == [b"%d" % n for n in range(128)]


async def test_batch_is_split_by_topic_size_and_delay(
    broker: MemoryBroker, cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    broker.create("other", 1)
    mixed = [
        Message(TOPIC, b"x" * 600_000),
        Message("other", b"small"),
        Message(TOPIC, b"y" * 600_000),
        Message(TOPIC, b"late", delay_level=3),
    ]
    results = await sender.send_batch(mixed)
    assert [result.queue.topic for result in results] == [TOPIC, "other", TOPIC, TOPIC]
    requests = cluster.requests("Send")
    assert len(requests) == 4
    (plain,) = [request for request in requests if request.messages]
    assert plain.messages[0].properties["DELAY"] == "3"
    for message, result in zip(mixed, results, strict=True):
        stored = {record.unique_message_id: record for record in broker.messages(message.topic)}
        assert stored[result.message_id].body == message.body


async def test_batch_to_a_queue_keeps_its_order(
    broker: MemoryBroker, sender: AsyncProducer
) -> None:
    queue = MessageQueue(TOPIC, "a", 2)
    results = await sender.send_batch(messages(1_500), queue=queue)
    assert {result.queue for result in results} == {queue}
    assert [result.queue_offset for result in results] == list(range(1_500))
    assert [record.body for record in broker.messages(TOPIC)] == [b"%d" % n for n in range(1_500)]


async def test_empty_batch_sends_nothing(cluster: MemoryCluster, sender: AsyncProducer) -> None:
    assert await sender.send_batch([]) == []
    assert not cluster.requests("Send")


async def test_a_partly_stored_batch_says_which_are_missing(
    broker: MemoryBroker, cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    broker.create("full", 1)

    def refuse(address: str, request: Any) -> None:
        if request.batch.topic == "full":
            raise MqError(Code.MESSAGE_ILLEGAL, "not this one")

    cluster.answers["Send"] = refuse
    with pytest.raises(PartialSend) as caught:
        await sender.send_batch([Message(TOPIC, b"1"), Message("full", b"2")])
    first, second = caught.value.results
    assert first is not None and second is None
    assert caught.value.code is Code.MESSAGE_ILLEGAL


async def test_a_batch_not_stored_at_all_raises_the_cause(
    cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    cluster.answers["Send"] = MqError(Code.DISK_FULL, "4 bytes free", retryable=False)
    with pytest.raises(MqError) as caught:
        await sender.send_batch(messages(600))
    assert caught.value.code is Code.DISK_FULL and not isinstance(caught.value, PartialSend)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (Message(TOPIC, bytes(4 * 1024**2 + 1)), Code.MESSAGE_ILLEGAL),
        (Message(TOPIC, b"x", properties={"a": "b" * 31_743}), Code.MESSAGE_ILLEGAL),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), Code.NO_PERMISSION),
    ],
    ids=["large body", "large properties", "a topic of the system"],
)
async def test_a_batch_with_a_bad_message_is_not_sent_and_names_its_index(
    cluster: MemoryCluster, sender: AsyncProducer, bad: Message, code: Code
) -> None:
    with pytest.raises(MqError) as caught:
        await sender.send_batch([*messages(700), bad])
    assert caught.value.code is code
    assert "message 700" in caught.value.message
    assert not cluster.calls


@pytest.mark.parametrize("wrong", ["text", b"bytes", None, ("flights", b"x")])
async def test_what_is_no_message_is_refused(
    cluster: MemoryCluster, sender: AsyncProducer, wrong: Any
) -> None:
    for send in (
        sender.send(wrong),
        sender.send(wrong, accumulate=False),
        sender.send_async(wrong),
        sender.send_oneway(wrong),
        sender.request(wrong),
        sender.send_batch([Message(TOPIC, b"x"), wrong]),
    ):
        with raises_code(Code.INVALID_PARAMETER) as caught:
            await send
        assert type(wrong).__name__ in str(caught.value)
    assert "message 1" in str(caught.value)
    assert not cluster.calls


@pytest.mark.parametrize(
    ("priority", "queue_id"), [(None, 0), (0, 0), (1, 1), (3, 3), (4, 3), (2**31 - 1, 3)]
)
@pytest.mark.parametrize("accumulate", [True, False])
async def test_a_queue_stands_for_a_priority(
    cluster: MemoryCluster,
    broker: MemoryBroker,
    priority: int | None,
    queue_id: int,
    accumulate: bool,
) -> None:
    """In a topic of that type alone; with a message group it is hashed among these."""
    cluster.types[TOPIC] = "PRIORITY"
    settings = {} if priority is None else {"priority": priority}
    async with producer(cluster, accumulate=accumulate) as sender:
        for message in messages(3, **settings):
            assert (await sender.send(message)).queue.queue_id == queue_id
        sent = await sender.send_batch([*messages(2, **settings), *messages(2, priority=1)])
        assert [result.queue.queue_id for result in sent] == [queue_id, queue_id, 1, 1]
        grouped = Message(TOPIC, b"x", message_group="g", **settings)  # type: ignore[arg-type]
        assert (await sender.send(grouped)).queue.queue_id == queue_id
        await sender.send_oneway(messages(1, **settings)[0])
    stored = {record.queue_id for record in broker.messages(TOPIC)}
    assert stored == {queue_id, 1}


async def test_a_delay_is_counted_by_the_broker(
    cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    await sender.send(Message(TOPIC, b"x", delay=timedelta(seconds=1.5)))
    (sent,) = cluster.requests("Send")
    assert sent.messages[0].properties["TIMER_DELAY_MS"] == "1500"


async def test_a_send_that_does_not_wait_for_the_disk_says_so(
    cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    await sender.send_batch(messages(2, wait_store_ok=False))
    (sent,) = cluster.requests("Send")
    assert [message.properties["WAIT"] for message in sent.messages] == ["false", "false"]


async def test_system_topic_is_refused(sender: AsyncProducer) -> None:
    with raises_code(Code.NO_PERMISSION):
        await sender.send(Message("SCHEDULE_TOPIC_XXXX", b"x"))


async def test_queue_of_another_topic_is_refused(
    broker: MemoryBroker, cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    """Its result would name a queue that does not have the message."""
    broker.create("other", 4)
    elsewhere = MessageQueue("other", "a", 0)
    for call in (
        sender.send(Message(TOPIC, b"x"), queue=elsewhere),
        sender.send_batch([Message("other", b"x"), Message(TOPIC, b"x")], queue=elsewhere),
        sender.send_oneway(Message(TOPIC, b"x"), queue=elsewhere),
    ):
        with raises_code(Code.INVALID_PARAMETER):
            await call
    assert not cluster.requests("Send")


async def test_a_queue_without_an_id_is_refused(
    cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    """To a broker -1 means that it may choose, and the result would not say which."""
    nowhere = MessageQueue(TOPIC, "a", -1)
    for call in (
        sender.send(Message(TOPIC, b"x"), queue=nowhere),
        sender.send(Message(TOPIC, b"x"), queue=nowhere, accumulate=False),
        sender.send_batch(messages(2), queue=nowhere),
        sender.send_oneway(Message(TOPIC, b"x"), queue=nowhere),
    ):
        with raises_code(Code.INVALID_PARAMETER, "queue"):
            await call
    assert not cluster.requests("Send")


@pytest.mark.parametrize("timeout", [5, timedelta.max, timedelta(days=1.1), timedelta(-1)])
async def test_a_timeout_out_of_bounds_is_refused(
    cluster: MemoryCluster, sender: AsyncProducer, timeout: Any
) -> None:
    message = Message(TOPIC, b"x")
    with raises_code(Code.INVALID_PARAMETER, "timeout"):
        await sender.send(message, timeout=timeout)
    with raises_code(Code.INVALID_PARAMETER, "timeout"):
        await sender.send_batch([message], timeout=timeout)
    with raises_code(Code.INVALID_PARAMETER, "timeout"):
        await sender.request(message, timeout)
    with raises_code(Code.INVALID_PARAMETER, "timeout"):
        await sender.send_async(message, timeout=timeout)
    assert not cluster.calls


async def test_unknown_topic_is_created_by_the_first_send() -> None:
    broker = MemoryBroker("a", "10.0.0.11:10911", topics={"TBW102": 8})
    async with producer(MemoryCluster(broker)) as sender:
        await sender.send(Message("new", b"x"))
    assert broker.topics["new"] == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"send_timeout": timedelta(0)},
        {"retries": -1},
        {"retries": None},
        {"max_message_size": 0},
        {"default_queue_count": 0},
        {"default_queue_count": 1 << 31},
    ],
)
def test_bad_setting_is_refused(broker: MemoryBroker, settings: dict[str, Any]) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        producer(MemoryCluster(broker), **settings)
