"""Transactions of a producer over a cluster in memory: how a block ends, and how ends travel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.errors import BrokerUnreachable, ClientClosed
from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_client.send_result import TransactionResolution
from aerobee_client.transaction_producer import AsyncTransactionProducer
from aerobee_client.transactions.ends import HalfMessage, TransactionEnds
from aerobee_wire.status import Code, MqError
from support.client.answers import HalfMessages, PassedReplies
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.client.producing import TOPIC
from support.codes import raises_code

COMMIT, ROLLBACK, UNKNOWN = TransactionResolution


def never(message: ReceivedMessage) -> TransactionResolution:
    raise AssertionError(f"asked about {message}")


@pytest.fixture
def halves(cluster: MemoryCluster) -> HalfMessages:
    return HalfMessages(cluster)


@pytest.fixture
async def producer(
    cluster: MemoryCluster, halves: HalfMessages
) -> AsyncIterator[AsyncTransactionProducer]:
    async with AsyncTransactionProducer("p", never, namesrv=NAMESRV, transport=cluster) as producer:
        yield producer


def visible(broker: MemoryBroker) -> list[bytes]:
    return sorted(message.body for message in broker.messages(TOPIC))


async def test_a_block_commits_at_its_end(
    producer: AsyncTransactionProducer, broker: MemoryBroker, halves: HalfMessages
) -> None:
    async with producer.transaction(Message(TOPIC, b"x", keys="k")) as tx:
        assert visible(broker) == [] and len(halves.open) == 1
        assert tx.result.transaction_id == tx.message_id
    assert visible(broker) == [b"x"] and not halves.open
    assert broker.messages(TOPIC)[0].unique_message_id == tx.message_id


async def test_a_block_that_raises_rolls_back(
    producer: AsyncTransactionProducer, broker: MemoryBroker, halves: HalfMessages
) -> None:
    with pytest.raises(KeyError):
        async with producer.transaction(Message(TOPIC, b"x")):
            raise KeyError("the program's own")
    assert visible(broker) == [] and not halves.open


async def test_its_own_error_counts_when_the_rollback_fails_too(
    producer: AsyncTransactionProducer, cluster: MemoryCluster, halves: HalfMessages
) -> None:
    cluster.answers["EndTransaction"] = MqError(Code.TOPIC_NOT_EXIST, "gone")
    with pytest.raises(KeyError):
        async with producer.transaction(Message(TOPIC, b"x")):
            raise KeyError("the program's own")
    assert halves.open


async def test_interceptors_are_notified_of_how_it_ended(
    cluster: MemoryCluster, halves: HalfMessages
) -> None:
    class Recorder(Interceptor):
        def __init__(self) -> None:
            self.events: list[tuple[str, str, object]] = []

        def end_transaction(
            self, message_id: str, resolution: str, error: BaseException | None
        ) -> None:
            self.events.append((message_id, resolution, getattr(error, "code", None)))

    recorder = Recorder()
    async with AsyncTransactionProducer(
        "p", never, namesrv=NAMESRV, transport=cluster, interceptors=[recorder]
    ) as producer:
        async with producer.transaction(Message(TOPIC, b"x")) as first:
            pass
        with pytest.raises(KeyError):
            async with producer.transaction(Message(TOPIC, b"y")) as second:
                raise KeyError("the program's own")
        async with producer.transaction(Message(TOPIC, b"later")) as later:
            later.unknown()
        cluster.answers["EndTransaction"] = MqError(Code.TOPIC_NOT_EXIST, "gone")
        with raises_code(Code.TOPIC_NOT_EXIST):
            async with producer.transaction(Message(TOPIC, b"z")) as third:
                pass
    assert recorder.events == [
        (first.message_id, "COMMIT", None),
        (second.message_id, "ROLLBACK", None),
        (later.message_id, "UNKNOWN", None),
        (third.message_id, "COMMIT", Code.TOPIC_NOT_EXIST),
    ]


async def test_unknown_leaves_it_open(
    producer: AsyncTransactionProducer, cluster: MemoryCluster, halves: HalfMessages
) -> None:
    async with producer.transaction(Message(TOPIC, b"x")) as tx:
        tx.unknown()
    assert halves.open and not cluster.requests("EndTransaction")


async def test_a_transaction_ends_once(
    producer: AsyncTransactionProducer, broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    async with producer.transaction(Message(TOPIC, b"x")) as tx:
        await tx.commit()
        assert visible(broker) == [b"x"]
        with raises_code(Code.ILLEGAL_OPERATION):
            await tx.rollback()
        with raises_code(Code.ILLEGAL_OPERATION):
            tx.unknown()
    with raises_code(Code.ILLEGAL_OPERATION):
        await tx.commit()
    with raises_code(Code.ILLEGAL_OPERATION):
        async with tx:
            pass
    with raises_code(Code.ILLEGAL_OPERATION):
        await producer.transaction(Message(TOPIC, b"y")).commit()
    assert len(cluster.requests("EndTransaction")) == 1


@pytest.mark.parametrize(("answer", "stored"), [(COMMIT, [b"x"]), (ROLLBACK, []), (UNKNOWN, [])])
async def test_a_local_transaction_decides(
    producer: AsyncTransactionProducer,
    broker: MemoryBroker,
    halves: HalfMessages,
    answer: TransactionResolution,
    stored: list[bytes],
) -> None:
    sent = await producer.send_in_transaction(Message(TOPIC, b"x"), lambda message: answer)
    assert sent.resolution is answer and sent.sent.transaction_id
    assert visible(broker) == stored and bool(halves.open) is (answer is UNKNOWN)


async def test_a_local_transaction_that_fails_is_left_to_the_check(
    producer: AsyncTransactionProducer, halves: HalfMessages, cluster: MemoryCluster
) -> None:
    async def execute(message: Message) -> TransactionResolution:
        raise KeyError("it may have been committed")

    with pytest.raises(KeyError):
        await producer.send_in_transaction(Message(TOPIC, b"x"), execute)
    with pytest.raises(TypeError):
        await producer.send_in_transaction(Message(TOPIC, b"x"), lambda message: None)  # type: ignore[arg-type,return-value]
    assert len(halves.open) == 2 and not cluster.requests("EndTransaction")


async def test_half_messages_and_ends_travel_together(
    producer: AsyncTransactionProducer, broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    async def one(number: int) -> None:
        async with producer.transaction(Message(TOPIC, b"%02d" % number)):
            pass

    await asyncio.gather(*map(one, range(50)))
    assert len(visible(broker)) == 50
    # The first send asks for the route alone, then it leaves with what came meanwhile.
    assert len(cluster.requests("Send")) <= 3
    assert len(cluster.requests("EndTransaction")) <= 3


async def test_other_messages_are_sent_as_ever(
    producer: AsyncTransactionProducer, broker: MemoryBroker
) -> None:
    async with producer.transaction(Message(TOPIC, b"x")):
        await producer.send(Message(TOPIC, b"y"))
        assert visible(broker) == [b"y"]


async def test_an_end_is_tried_again_and_a_lost_answer_was_a_success(
    producer: AsyncTransactionProducer,
    broker: MemoryBroker,
    cluster: MemoryCluster,
    halves: HalfMessages,
) -> None:
    answers = 0

    def lose(address: str, request: Any) -> Any:
        nonlocal answers
        answers += 1
        answer = halves.end(address, request)
        if answers == 1:
            raise BrokerUnreachable(address, "lost in this test")
        return answer

    cluster.answers["EndTransaction"] = lose
    async with producer.transaction(Message(TOPIC, b"x")):
        pass
    assert answers == 2 and visible(broker) == [b"x"]


async def test_an_end_of_what_is_not_open_is_an_error(
    producer: AsyncTransactionProducer, halves: HalfMessages
) -> None:
    with raises_code(Code.INVALID_TRANSACTION_ID):
        async with producer.transaction(Message(TOPIC, b"x")):
            halves.open.clear()


async def test_an_end_that_was_refused_before_is_no_lost_answer(
    producer: AsyncTransactionProducer, cluster: MemoryCluster, halves: HalfMessages
) -> None:
    refused: list[str] = []

    def refuse_once(address: str, request: Any) -> Any:
        if not refused:
            refused.append(address)
            raise MqError(Code.SERVICE_NOT_AVAILABLE, "it is starting")
        return halves.end(address, request)

    cluster.answers["EndTransaction"] = refuse_once
    with raises_code(Code.INVALID_TRANSACTION_ID):
        async with producer.transaction(Message(TOPIC, b"x")):
            halves.open.clear()


async def test_an_end_is_tried_until_its_deadline(
    producer: AsyncTransactionProducer, cluster: MemoryCluster, halves: HalfMessages
) -> None:
    timeout = timedelta(milliseconds=300)
    with pytest.raises(BrokerUnreachable):
        async with producer.transaction(Message(TOPIC, b"x"), timeout=timeout):
            cluster.answers["EndTransaction"] = BrokerUnreachable("a", "gone in this test")
    assert 2 <= len(cluster.requests("EndTransaction")) <= 5
    assert halves.open


async def test_a_commit_that_nobody_waits_for_is_sent(
    producer: AsyncTransactionProducer, broker: MemoryBroker
) -> None:
    async with producer.transaction(Message(TOPIC, b"x")) as tx:
        committing = asyncio.create_task(tx.commit())
        await asyncio.sleep(0)
        committing.cancel()
    await producer.close()
    assert visible(broker) == [b"x"]


async def test_a_closed_producer_begins_and_ends_nothing(
    producer: AsyncTransactionProducer, halves: HalfMessages
) -> None:
    with pytest.raises(ClientClosed):
        async with producer.transaction(Message(TOPIC, b"x")):
            await producer.close()
    assert halves.open
    with pytest.raises(ClientClosed):
        producer.transaction(Message(TOPIC, b"x"))


async def test_a_broker_without_transactions_is_named(
    producer: AsyncTransactionProducer, cluster: MemoryCluster
) -> None:
    del cluster.answers["Send"]  # it stores the message as any other
    with raises_code(Code.VERSION_NOT_SUPPORTED):
        async with producer.transaction(Message(TOPIC, b"x")):
            raise AssertionError("the block must not run")


async def test_a_transaction_has_no_place_in_the_order_of_a_group(
    producer: AsyncTransactionProducer,
) -> None:
    with raises_code(Code.MESSAGE_ILLEGAL):
        producer.transaction(Message(TOPIC, b"x", message_group="g"))


@pytest.mark.parametrize(
    "settings", [{"accumulate": False}, {"compression": "zlib", "compress_over": 1}]
)
async def test_transactions_of_producers_with_other_settings(
    cluster: MemoryCluster, broker: MemoryBroker, halves: HalfMessages, settings: dict[str, Any]
) -> None:
    body = bytes(10_000)
    async with AsyncTransactionProducer(
        "p", never, namesrv=NAMESRV, transport=cluster, **settings
    ) as producer:
        async with producer.transaction(Message(TOPIC, body, tag="t")):
            (half,) = halves.open.values()
        assert (half.properties["TAGS"], half.properties["TRAN_MSG"]) == ("t", "true")
        assert len(half.body) < len(body) or "compression" not in settings
    assert len(broker.messages(TOPIC)) == 1


async def test_a_request_in_a_transaction_producer(
    cluster: MemoryCluster, producer: AsyncTransactionProducer
) -> None:
    """It takes notices of both kinds."""
    PassedReplies(cluster)
    consumer: AsyncPushConsumer

    async def listen(message: ReceivedMessage) -> None:
        await consumer.reply(message, b"pong")

    consumer = AsyncPushConsumer("g", listen, namesrv=NAMESRV, transport=cluster)
    consumer.subscribe(TOPIC)
    async with consumer:
        assert (await producer.request(Message(TOPIC, b"ping"))).body == b"pong"


async def test_an_end_that_is_about_to_leave_fails_when_the_producer_gives_up(
    cluster: MemoryCluster,
) -> None:
    """Its task is cancelled before it begins, and somebody waits for it."""
    ends = TransactionEnds(ClientInstance(NAMESRV, transport=cluster), "p")
    end = ends.end(HalfMessage(TOPIC, "a", "id", 0), COMMIT, 3)
    await asyncio.sleep(0)
    await ends.abort()
    assert isinstance(end.exception(), ClientClosed)
