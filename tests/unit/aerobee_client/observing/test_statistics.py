"""What clients count: totals, rates of the last minute, and what travels with heartbeats."""

from __future__ import annotations

import asyncio

from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.observing.statistics import ConsumerStatistics, Tally
from aerobee_client.options.consumer import ConsumeFromWhere, MessageModel
from aerobee_client.producer import AsyncProducer
from aerobee_client.pull_consumer import AsyncPullConsumer
from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_client.send_result import TransactionResolution
from aerobee_client.transaction_producer import AsyncTransactionProducer
from aerobee_wire.status import Code, MqError
from support.client.answers import HalfMessages
from support.client.consumer_group import GROUP, TOPIC, fill
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.clock.manual_clock import ManualClock
from support.clock.polling import until
from support.codes import raises_code


def test_rates_are_of_the_last_minute() -> None:
    clock = ManualClock()
    tally = Tally(clock)
    assert tally.rates() == (0, 0, 0)
    clock.advance(10_000)
    tally.add(300, 20, 50)
    tally.add(0, 0, 150)
    assert tally.rates() == (30, 2, 100), "10 s after the start"
    clock.advance(10_000)
    assert tally.rates()[0] == 15
    for _ in range(100):
        clock.advance(1_000)
        tally.add(60, 0, 1)
    succeeded, failed, average_ms = tally.rates()
    assert 50 < succeeded < 70 and (failed, average_ms) == (0, 1)
    assert (tally.succeeded, tally.failed) == (6_300, 20)
    clock.advance(120_000)
    assert tally.rates() == (0, 0, 0)


async def test_a_consumer_counts_what_its_listener_does(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    gate = asyncio.Event()

    async def listen(message: ReceivedMessage) -> None:
        if message.body == b"0" and not message.reconsume_times:
            raise ValueError
        if int(message.body) >= 20:
            await gate.wait()

    consumer = AsyncPushConsumer(GROUP, listen, namesrv=NAMESRV, transport=cluster)
    assert consumer.statistics() == ConsumerStatistics()
    consumer.subscribe(TOPIC)
    fill(broker, 24)
    async with consumer:
        await until(lambda: consumer.statistics().consumed == 20)
        found = consumer.statistics()
        assert (found.failed, found.sent_back, found.passed_over) == (1, 1, 0)
        assert (found.waiting, found.lag, found.queues) == (4, 4, 5)
        assert found.waiting_bytes > 0 and found.consumed_per_second > 0
        gate.set()
        await until(lambda: consumer.statistics().consumed == 24)
        found = consumer.statistics()
        assert (found.waiting, found.waiting_bytes, found.lag) == (0, 0, 0)
        assert consumer._instance is not None
        await consumer._instance.announce()  # a heartbeat
        reported = broker.clients[consumer._instance.client_id].consumers[0]
        assert (reported.statistics.consumed, reported.statistics.failed, reported.strategy) == (
            24,
            1,
            "AVG",
        )
    found = consumer.statistics()
    assert (found.consumed, found.failed, found.waiting, found.queues) == (24, 1, 0, 0)


async def test_a_broadcasting_consumer_counts_what_it_passes_over(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    def fail(_: ReceivedMessage) -> None:
        raise ValueError

    consumer = AsyncPushConsumer(
        GROUP,
        fail,
        namesrv=NAMESRV,
        transport=cluster,
        message_model=MessageModel.BROADCASTING,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )
    consumer.subscribe(TOPIC)
    fill(broker, 8)
    async with consumer:
        await until(lambda: consumer.statistics().passed_over == 8)
        found = consumer.statistics()
        assert (found.failed, found.sent_back, found.consumed) == (8, 0, 0)


async def test_an_orderly_consumer_counts_too(broker: MemoryBroker, cluster: MemoryCluster) -> None:
    consumer = AsyncPushConsumer(GROUP, print, namesrv=NAMESRV, transport=cluster, orderly=True)
    consumer.subscribe(TOPIC)
    fill(broker, 40)
    async with consumer:
        await until(lambda: consumer.statistics().consumed == 40)


async def test_a_producer_counts_what_it_sends(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    producer = AsyncProducer(namesrv=NAMESRV, transport=cluster)
    async with producer:
        await producer.send_batch([Message(TOPIC, b"x")] * 10)
        await asyncio.gather(*(producer.send(Message(TOPIC, b"x")) for _ in range(90)))
        await producer.send(Message(TOPIC, b"x"), accumulate=False)
        found = producer.statistics()
        assert (found.sent, found.failed, found.retries, found.waiting) == (101, 0, 0, 0)
        assert found.sent_per_second > 0
        cluster.refuse("Send", broker.address, Code.MESSAGE_ILLEGAL)
        sends = (producer.send(Message(TOPIC, b"x")) for _ in range(4))
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert all(isinstance(outcome, MqError) for outcome in outcomes)
        assert producer.statistics().failed == 4
        assert producer._instance is not None
        await producer._instance.announce()
        (reported,) = broker.clients.values()
        assert (reported.producer_statistics.sent, reported.producer_statistics.failed) == (101, 4)
        producer.send_async(Message(TOPIC, b"x"))  # `close` waits for it
    assert producer.statistics().failed == 5


def never(message: ReceivedMessage) -> TransactionResolution:
    raise AssertionError(f"asked about {message}")


async def test_a_transaction_producer_counts_half_messages(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    HalfMessages(cluster)
    producer = AsyncTransactionProducer("p", never, namesrv=NAMESRV, transport=cluster)
    async with producer:
        async with producer.transaction(Message(TOPIC, b"x")):
            assert producer.statistics().sent == 1
        await producer.send(Message(TOPIC, b"x"))
        assert producer.statistics().sent == 2


async def test_a_pull_consumer_counts_what_earlier_polls_returned(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    clock = ManualClock()
    consumer = AsyncPullConsumer(GROUP, namesrv=NAMESRV, transport=cluster, clock=clock)
    assert consumer.statistics() == ConsumerStatistics()
    consumer.subscribe(TOPIC)
    fill(broker, 24)
    async with consumer:
        await until(lambda: consumer.statistics().waiting == 24)
        assert consumer.statistics().lag == 24 and consumer.statistics().waiting_bytes > 0
        assert len(await consumer.poll(4)) == 4
        clock.advance(300)
        found = consumer.statistics()
        assert (found.consumed, found.waiting, found.lag, found.average_ms) == (0, 24, 24, 0)
        assert len(await consumer.poll(4)) == 4
        found = consumer.statistics()
        assert (found.consumed, found.waiting, found.lag, found.queues) == (4, 20, 20, 4)
        assert (found.average_ms, found.failed_requests) == (300, 0)
        consumer.take_back()
        assert consumer.statistics().consumed == 4, "its second poll is returned again"
        read = [message async for message in consumer.read_to_end()]
        assert len(read) == 20
        found = consumer.statistics()
        assert (found.consumed, found.waiting, found.lag) == (24, 0, 0)
        instance = consumer._running().instance
        await instance.announce()  # a heartbeat
        reported = broker.clients[instance.client_id].consumers[0].statistics
        assert (reported.consumed, reported.queues) == (24, 4)
        cluster.refuse("Pull", broker.address, Code.NO_PERMISSION)
        fill(broker, 1)
        await broker.wake()
        assert len(await consumer.poll()) == 1
        with raises_code(Code.NO_PERMISSION):
            await consumer.poll()
        assert consumer.statistics().failed_requests > 0
    assert consumer.statistics().consumed == 25, "of its last poll too"


async def test_a_reader_counts_without_a_group(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    fill(broker, 8)
    async with AsyncPullConsumer(namesrv=NAMESRV, transport=cluster, auto_commit=False) as reader:
        assert reader.statistics() == ConsumerStatistics()
        reader.assign(await reader.fetch_message_queues(TOPIC))
        assert len([message async for message in reader.read_to_end()]) == 8
        found = reader.statistics()
        assert (found.consumed, found.lag, found.queues) == (8, 0, 4)
