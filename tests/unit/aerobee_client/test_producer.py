"""Sending through a cluster in memory: batches, turns, retries, errors."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from aerobee_client.errors import BrokerUnreachable, ClientClosed, PartialSend, RequestTimeout
from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.producer import ONEWAY_WINDOW, AsyncProducer
from aerobee_wire.status import Code, MqError
from support.client.memory_cluster import MemoryBroker, MemoryCluster
from support.clock.polling import until

NAMESRV = "10.0.0.1:9876"
TOPIC = "flights"


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker("a", "10.0.0.11:10911")
    broker.create(TOPIC, 4)
    return broker


@pytest.fixture
def other() -> MemoryBroker:
    broker = MemoryBroker("b", "10.0.0.12:10911")
    broker.create(TOPIC, 4)
    return broker


def producer(cluster: MemoryCluster, **settings: Any) -> AsyncProducer:
    return AsyncProducer("p", namesrv=NAMESRV, transport=cluster, **settings)


def messages(count: int, **arguments: Any) -> list[Message]:
    return [Message(TOPIC, b"%d" % n, **arguments) for n in range(count)]


async def test_message_is_stored_as_it_was_given(broker: MemoryBroker) -> None:
    async with producer(MemoryCluster(broker)) as sender:
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


async def test_single_sends_take_the_queues_in_turn(broker: MemoryBroker) -> None:
    async with producer(MemoryCluster(broker)) as sender:
        results = [await sender.send(message) for message in messages(8)]
    assert sorted(result.queue.queue_id for result in results) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_batch_is_one_request_with_results_in_order(broker: MemoryBroker) -> None:
    cluster = MemoryCluster(broker)
    async with producer(cluster) as sender:
        results = await sender.send_batch(messages(128))
    assert len(cluster.requests("Send")) == 1
    assert [result.queue_offset for result in results] == list(range(128))
    assert len({result.message_id for result in results}) == 128
    stored = {record.unique_message_id: record.body for record in broker.messages(TOPIC)}
    assert [stored[result.message_id] for result in results] == [b"%d" % n for n in range(128)]


async def test_batch_is_split_by_topic_size_and_delay(broker: MemoryBroker) -> None:
    broker.create("other", 1)
    cluster = MemoryCluster(broker)
    mixed = [
        Message(TOPIC, b"x" * 600_000),
        Message("other", b"small"),
        Message(TOPIC, b"y" * 600_000),
        Message(TOPIC, b"late", delay_level=3),
    ]
    async with producer(cluster) as sender:
        results = await sender.send_batch(mixed)
    assert [result.queue.topic for result in results] == [TOPIC, "other", TOPIC, TOPIC]
    requests = cluster.requests("Send")
    assert len(requests) == 4
    (plain,) = [request for request in requests if request.messages]
    assert plain.messages[0].properties["DELAY"] == "3"
    for message, result in zip(mixed, results, strict=True):
        stored = {record.unique_message_id: record for record in broker.messages(message.topic)}
        assert stored[result.message_id].body == message.body


async def test_batch_to_a_queue_keeps_its_order(broker: MemoryBroker) -> None:
    queue = MessageQueue(TOPIC, "a", 2)
    async with producer(MemoryCluster(broker)) as sender:
        results = await sender.send_batch(messages(1_500), queue=queue)
    assert {result.queue for result in results} == {queue}
    assert [result.queue_offset for result in results] == list(range(1_500))
    assert [record.body for record in broker.messages(TOPIC)] == [b"%d" % n for n in range(1_500)]


async def test_empty_batch_sends_nothing(broker: MemoryBroker) -> None:
    cluster = MemoryCluster(broker)
    async with producer(cluster) as sender:
        assert await sender.send_batch([]) == []
    assert not cluster.requests("Send")


async def test_other_broker_takes_over_at_once(broker: MemoryBroker, other: MemoryBroker) -> None:
    cluster = MemoryCluster(broker, other)
    async with producer(cluster) as sender:
        await sender.queues(TOPIC)
        cluster.down = {broker.address}
        results = [await sender.send(message) for message in messages(6)]
    assert {result.queue.broker_name for result in results} == {"b"}
    assert len(other.messages(TOPIC)) == 6


@pytest.mark.parametrize("code", [Code.SYSTEM_BUSY, Code.SYSTEM_ERROR, Code.NO_PERMISSION])
async def test_answer_that_another_broker_may_not_give_is_tried_elsewhere(
    broker: MemoryBroker, other: MemoryBroker, code: Code
) -> None:
    cluster = MemoryCluster(broker, other)

    def refuse(address: str, request: Any) -> None:
        if address == broker.address:
            raise MqError(code, "not here")

    cluster.answers["Send"] = refuse
    async with producer(cluster) as sender:
        results = [await sender.send(message) for message in messages(4)]
    assert {result.queue.broker_name for result in results} == {"b"}


async def test_tries_end_after_the_retries(broker: MemoryBroker) -> None:
    cluster = MemoryCluster(broker)

    def refuse(address: str, request: Any) -> None:
        raise MqError(Code.SYSTEM_ERROR, "broken")

    cluster.answers["Send"] = refuse
    async with producer(cluster, retries=2) as sender:
        with pytest.raises(MqError) as caught:
            await sender.send(Message(TOPIC, b"x"))
    assert caught.value.code is Code.SYSTEM_ERROR
    assert len(cluster.requests("Send")) == 3


@pytest.mark.parametrize("code", [Code.MESSAGE_ILLEGAL, Code.INVALID_PARAMETER])
async def test_refusal_of_the_message_itself_is_not_tried_again(
    broker: MemoryBroker, code: Code
) -> None:
    cluster = MemoryCluster(broker)

    def refuse(address: str, request: Any) -> None:
        raise MqError(code, "bad message")

    cluster.answers["Send"] = refuse
    async with producer(cluster) as sender:
        with pytest.raises(MqError) as caught:
            await sender.send(Message(TOPIC, b"x"))
    assert caught.value.code is code
    assert len(cluster.requests("Send")) == 1


async def test_send_waits_for_the_only_broker_to_come_back(broker: MemoryBroker) -> None:
    cluster = MemoryCluster(broker)
    async with producer(cluster, send_timeout=timedelta(seconds=30)) as sender:
        await sender.queues(TOPIC)
        cluster.down = {broker.address}
        sending = sender.send_async(Message(TOPIC, b"x"))
        await until(lambda: len(cluster.requests("Send")) >= 3)
        cluster.revive(broker)
        result = await sending
    assert len({request.batch.properties for request in cluster.requests("Send")}) == 1
    assert broker.messages(TOPIC)[0].unique_message_id == result.message_id


async def test_two_absent_brokers_are_not_hammered(
    broker: MemoryBroker, other: MemoryBroker
) -> None:
    cluster = MemoryCluster(broker, other)
    async with producer(cluster, send_timeout=timedelta(milliseconds=300)) as sender:
        await sender.queues(TOPIC)
        cluster.down = {broker.address, other.address}
        with pytest.raises(BrokerUnreachable):
            await sender.send(Message(TOPIC, b"x"))
    assert 3 <= len(cluster.requests("Send")) <= 6  # at 0, 0, then pauses of 50, 100, 200 ms


async def test_send_to_an_absent_broker_fails_when_the_time_is_over(broker: MemoryBroker) -> None:
    cluster = MemoryCluster(broker)
    async with producer(cluster, send_timeout=timedelta(milliseconds=120)) as sender:
        await sender.queues(TOPIC)
        cluster.down = {broker.address}
        with pytest.raises(BrokerUnreachable) as caught:
            await sender.send(Message(TOPIC, b"x"))
    assert broker.address in caught.value.message


async def test_timeout_is_not_extended_by_another_try(
    broker: MemoryBroker, other: MemoryBroker
) -> None:
    cluster = MemoryCluster(broker, other)

    async def too_late(address: str) -> None:
        await asyncio.sleep(0.05)
        raise RequestTimeout(address, 0.05)

    cluster.answers["Send"] = lambda address, request: too_late(address)
    async with producer(cluster, send_timeout=timedelta(milliseconds=50)) as sender:
        await sender.queues(TOPIC)  # its time is for the sending alone
        with pytest.raises(RequestTimeout):
            await sender.send(Message(TOPIC, b"x"))
    assert len(cluster.requests("Send")) == 1


async def test_partly_stored_batch_tells_which_messages_are_missing(broker: MemoryBroker) -> None:
    broker.create("full", 1)
    cluster = MemoryCluster(broker)

    def refuse(address: str, request: Any) -> None:
        if request.batch.topic == "full":
            raise MqError(Code.MESSAGE_ILLEGAL, "not this one")

    cluster.answers["Send"] = refuse
    async with producer(cluster) as sender:
        with pytest.raises(PartialSend) as caught:
            await sender.send_batch([Message(TOPIC, b"1"), Message("full", b"2")])
    first, second = caught.value.results
    assert first is not None and second is None
    assert caught.value.code is Code.MESSAGE_ILLEGAL
    assert "1 of 2" in caught.value.message


async def test_batch_of_which_nothing_was_stored_raises_the_cause(broker: MemoryBroker) -> None:
    cluster = MemoryCluster(broker)

    def refuse(address: str, request: Any) -> None:
        raise MqError(Code.DISK_FULL, "4 bytes free", retryable=False)

    cluster.answers["Send"] = refuse
    async with producer(cluster) as sender:
        with pytest.raises(MqError) as caught:
            await sender.send_batch(messages(600))
    assert caught.value.code is Code.DISK_FULL and not isinstance(caught.value, PartialSend)


async def test_body_over_the_limit_is_refused_before_anything_is_sent(broker: MemoryBroker) -> None:
    cluster = MemoryCluster(broker)
    async with producer(cluster) as sender:
        with pytest.raises(MqError, match="4194304") as caught:
            await sender.send_batch([Message(TOPIC, b"x"), Message(TOPIC, bytes(4 * 1024**2 + 1))])
    assert caught.value.code is Code.MESSAGE_ILLEGAL
    assert not cluster.calls


async def test_system_topic_is_refused(broker: MemoryBroker) -> None:
    async with producer(MemoryCluster(broker)) as sender:
        with pytest.raises(MqError) as caught:
            await sender.send(Message("SCHEDULE_TOPIC_XXXX", b"x"))
    assert caught.value.code is Code.NO_PERMISSION


async def test_unknown_topic_is_created_by_the_first_send() -> None:
    broker = MemoryBroker("a", "10.0.0.11:10911", topics={"TBW102": 8})
    async with producer(MemoryCluster(broker)) as sender:
        await sender.send(Message("new", b"x"))
    assert broker.topics["new"] == 4


async def test_callback_gets_result_or_error(broker: MemoryBroker) -> None:
    told: list[tuple[Any, Any]] = []
    async with producer(MemoryCluster(broker)) as sender:
        good = sender.send_async(Message(TOPIC, b"x"), lambda *told_of: told.append(told_of))
        bad = sender.send_async(
            Message("SCHEDULE_TOPIC_XXXX", b"x"), lambda *told_of: told.append(told_of)
        )
        await asyncio.gather(good, bad, return_exceptions=True)
        await asyncio.sleep(0)
    by_kind = sorted(told, key=lambda pair: pair[1] is not None)
    assert by_kind[0] == (good.result(), None)
    assert by_kind[1] == (None, bad.exception())


async def test_oneway_is_sent_before_close_returns_and_never_raises(broker: MemoryBroker) -> None:
    cluster = MemoryCluster(broker)
    async with producer(cluster) as sender:
        await sender.send_oneway(Message(TOPIC, b"x"))
        await sender.queues(TOPIC)
    assert len(broker.messages(TOPIC)) == 1
    cluster.answers["Send"] = lambda address, request: _raise(MqError(Code.SYSTEM_BUSY, "busy"))
    async with producer(cluster) as sender:
        await sender.send_oneway(Message(TOPIC, b"x"))
    assert len(cluster.requests("Send")) == 2


def _raise(error: Exception) -> None:
    raise error


async def test_close_waits_for_sends_under_way(broker: MemoryBroker) -> None:
    cluster = MemoryCluster(broker)
    release = asyncio.Event()

    cluster.answers["Send"] = lambda address, request: _after(release, cluster, request)
    sender = producer(cluster)
    await sender.start()
    sending = sender.send_async(Message(TOPIC, b"x"))
    await until(lambda: cluster.requests("Send"))
    closing = asyncio.create_task(sender.close())
    await asyncio.sleep(0)
    assert not closing.done()
    release.set()
    await closing
    assert sending.done() and sending.result().queue_offset == 0


async def _after(release: asyncio.Event, cluster: MemoryCluster, request: Any) -> Any:
    await release.wait()
    (broker,) = cluster.brokers.values()
    return await cluster._Send(broker, request)


async def test_use_outside_of_its_life_is_a_typed_error(broker: MemoryBroker) -> None:
    sender = producer(MemoryCluster(broker))
    with pytest.raises(ClientClosed, match="start"):
        await sender.send(Message(TOPIC, b"x"))
    await sender.start()
    await sender.close()
    await sender.close()
    with pytest.raises(ClientClosed):
        await sender.queues(TOPIC)


async def test_producer_tells_its_brokers_that_it_lives_and_leaves(broker: MemoryBroker) -> None:
    cluster = MemoryCluster(broker)
    async with producer(cluster) as sender:
        await sender.send(Message(TOPIC, b"x"))
        await until(lambda: broker.clients)
        (beat,) = broker.clients.values()
        assert list(beat.producer_groups) == ["p"]
        assert not broker.watchers
    assert not broker.clients


async def test_failed_broker_is_avoided_for_a_while_when_asked_for(
    broker: MemoryBroker, other: MemoryBroker
) -> None:
    cluster = MemoryCluster(broker, other)
    refused: list[str] = []

    def refuse_once(address: str, request: Any) -> None:
        if address == broker.address and not refused:
            refused.append(address)
            raise BrokerUnreachable(address, "once")

    cluster.answers["Send"] = refuse_once
    async with producer(cluster, latency_fault=True) as sender:
        for message in messages(8):  # once round all queues
            await sender.send(message)
        assert refused
        results = [await sender.send(message) for message in messages(8)]
    assert {result.queue.broker_name for result in results} == {"b"}


async def test_a_topic_that_was_made_again_with_fewer_queues_is_sent_to_at_once(
    broker: MemoryBroker,
) -> None:
    cluster = MemoryCluster(broker)
    async with producer(cluster) as sender:
        await sender.send(Message(TOPIC, b"first"))  # the route of four queues is known now
        broker.topics[TOPIC] = 1
        results = [await sender.send(message) for message in messages(12)]
        assert {result.queue.queue_id for result in results} == {0}
        with pytest.raises(MqError) as caught:
            await sender.send(Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, "a", 3))
    assert caught.value.code is Code.QUEUE_NOT_EXIST


async def test_send_that_was_started_is_waited_for_though_it_has_not_begun(
    broker: MemoryBroker,
) -> None:
    told: list[tuple[Any, Any]] = []
    async with producer(MemoryCluster(broker)) as sender:
        sending = sender.send_async(Message(TOPIC, b"x"), lambda *told_of: told.append(told_of))
    assert sending.result().queue_offset == 0
    assert len(broker.messages(TOPIC)) == 1
    assert told == [(sending.result(), None)]


async def test_started_send_that_is_cancelled_before_it_begins_does_not_hold_up_close(
    broker: MemoryBroker,
) -> None:
    async with producer(MemoryCluster(broker)) as sender:
        sender.send_async(Message(TOPIC, b"x")).cancel()
    assert not broker.messages(TOPIC)


async def test_close_that_is_cancelled_takes_leave_all_the_same(broker: MemoryBroker) -> None:
    cluster = MemoryCluster(broker)
    sender = producer(cluster)
    await sender.start()
    await sender.queues(TOPIC)
    await until(lambda: broker.clients)
    cluster.answers["Send"] = lambda address, request: _after(asyncio.Event(), cluster, request)
    sending = sender.send_async(Message(TOPIC, b"x"))
    await until(lambda: cluster.requests("Send"))
    closing = asyncio.create_task(sender.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert not broker.clients
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_queue_of_another_topic_is_refused(broker: MemoryBroker) -> None:
    """Its result would name a queue that the message is not in."""
    broker.create("other", 4)
    cluster = MemoryCluster(broker)
    elsewhere = MessageQueue("other", "a", 0)
    async with producer(cluster) as sender:
        for call in (
            sender.send(Message(TOPIC, b"x"), queue=elsewhere),
            sender.send_batch([Message("other", b"x"), Message(TOPIC, b"x")], queue=elsewhere),
            sender.send_oneway(Message(TOPIC, b"x"), queue=elsewhere),
        ):
            with pytest.raises(MqError, match="other") as caught:
                await call
            assert caught.value.code is Code.INVALID_PARAMETER
    assert not cluster.requests("Send")


@pytest.mark.parametrize("known", [False, True])
async def test_name_servers_that_hang_do_not_make_a_send_longer(
    broker: MemoryBroker, known: bool
) -> None:
    """Each may take 3 s to give up on, and there may be several."""
    cluster = MemoryCluster(broker)
    async with producer(cluster) as sender:
        if known:
            await sender.queues(TOPIC)
            cluster.down.add(broker.address)
        cluster.answers["GetTopicRoute"] = lambda *_: asyncio.sleep(60)
        async with asyncio.timeout(10):
            with pytest.raises(MqError) as caught:
                await sender.send(Message(TOPIC, b"x"), timeout=timedelta(seconds=1))
    assert caught.value.code in (Code.NAMESRV_UNREACHABLE, Code.BROKER_UNREACHABLE)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def test_producer_may_live_again_in_another_loop(broker: MemoryBroker) -> None:
    """As the synchronous one does when it is started again."""
    cluster = MemoryCluster(broker)
    sender = producer(cluster)

    async def life() -> None:
        release = asyncio.Event()
        cluster.answers["Send"] = lambda address, request: _after(release, cluster, request)
        async with sender:
            sending = sender.send_async(Message(TOPIC, b"x"))
            for _ in range(ONEWAY_WINDOW):
                await sender.send_oneway(Message(TOPIC, b"y"))
            waiting = asyncio.create_task(sender.send_oneway(Message(TOPIC, b"z")))
            await asyncio.sleep(0.01)
            asyncio.get_running_loop().call_later(0.01, release.set)
        assert sending.result().message_id
        await waiting

    for _ in range(2):
        asyncio.run(life())
    assert len(broker.messages(TOPIC)) == 2 * (ONEWAY_WINDOW + 2)


@pytest.mark.parametrize(
    "settings",
    [
        {"send_timeout": timedelta(0)},
        {"retries": -1},
        {"max_message_size": 0},
        {"default_queue_count": 0},
        {"default_queue_count": 1 << 31},
    ],
)
def test_bad_setting_is_refused(broker: MemoryBroker, settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(MqError, match=name) as caught:
        producer(MemoryCluster(broker), **settings)
    assert caught.value.code is Code.INVALID_PARAMETER


async def test_timeout_that_is_over_is_the_one_that_was_given(broker: MemoryBroker) -> None:
    async with producer(MemoryCluster(broker)) as sender:
        await sender.queues(TOPIC)
        with pytest.raises(RequestTimeout, match="within 0 s"):
            await sender.send(Message(TOPIC, b"x"), timeout=timedelta(0))
