"""Requests and replies over a cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aerobee.broker.v1 import client_pb2

from aerobee_client import ConsumeFromWhere
from aerobee_client.consume_result import ConsumeResult
from aerobee_client.consuming.listener import Consume
from aerobee_client.errors import BrokerUnreachable, ClientClosed, RequestTimeout
from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.producer import AsyncProducer
from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_client.send_result import DroppedReplies
from aerobee_wire import properties
from aerobee_wire.status import Code, MqError
from support.client.answers import PassedReplies
from support.client.consumer_group import GROUP
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.client.producing import TOPIC
from support.clock.manual_clock import ManualClock
from support.clock.polling import until
from support.codes import raises_code

LONG = timedelta(seconds=20)
SHORT = timedelta(milliseconds=200)


@pytest.fixture
def replies(cluster: MemoryCluster) -> PassedReplies:
    return PassedReplies(cluster)


@pytest.fixture
async def producer(cluster: MemoryCluster, replies: PassedReplies) -> AsyncIterator[AsyncProducer]:
    async with AsyncProducer("p", namesrv=NAMESRV, transport=cluster) as producer:
        yield producer


class Echo:
    """A consumer that keeps what it gets, and replies with the body when it is told to."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.seen: list[ReceivedMessage] = []
        self.errors: list[MqError] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.consumer = AsyncPushConsumer(
            GROUP,
            self.listen,
            namesrv=NAMESRV,
            transport=cluster,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        self.consumer.subscribe(TOPIC)

    async def listen(self, message: ReceivedMessage) -> None:
        self.seen.append(message)
        await self.go_on.wait()
        try:
            await self.consumer.reply(message, b"re: " + message.body, {"lang": "en"})
        except MqError as error:
            self.errors.append(error)


@pytest.fixture
async def echo(cluster: MemoryCluster, replies: PassedReplies) -> AsyncIterator[Echo]:
    echo = Echo(cluster)
    async with echo.consumer:
        yield echo


async def test_a_request_gets_its_reply(
    producer: AsyncProducer, echo: Echo, cluster: MemoryCluster
) -> None:
    answers = await asyncio.gather(
        *(producer.request(Message(TOPIC, b"%d" % n), LONG) for n in range(20))
    )
    assert [answer.body for answer in answers] == [b"re: %d" % n for n in range(20)]
    assert answers[0].properties == {"lang": "en"}
    assert producer.dropped_replies == DroppedReplies()
    request = echo.seen[0].properties
    assert request["REPLY_TO_CLIENT"] in cluster.requests("SendReply")[0].client_id
    assert 0 < int(request["TTL"]) <= 20_000


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (Message(TOPIC, b"x", delay=timedelta(0)), Code.MESSAGE_ILLEGAL),
        (Message(TOPIC, bytes(4 * 1024**2 + 1)), Code.MESSAGE_ILLEGAL),
        (Message(TOPIC, b"x", properties={"a": "b" * 31_600}), Code.MESSAGE_ILLEGAL),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), Code.NO_PERMISSION),
    ],
    ids=["delayed", "large body", "large properties", "a topic of the system"],
)
async def test_what_is_wrong_with_a_request_is_reported_before_any_call(
    producer: AsyncProducer, cluster: MemoryCluster, wrong: Message, code: Code
) -> None:
    before = len(cluster.calls)
    with raises_code(code):
        await producer.request(wrong, LONG)
    assert len(cluster.calls) == before


async def test_a_requester_watches_every_broker_before_it_sends(
    producer: AsyncProducer, broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    other = MemoryBroker("b", "10.0.0.12:10911", capabilities=broker.capabilities)
    other.create(TOPIC, 4)
    cluster.brokers[other.address] = other
    watched: list[int] = []

    def send(address: str, request: Any) -> None:
        watched.append(len(broker.watchers) + len(other.watchers))

    cluster.answers["Send"] = send
    await producer.send(Message(TOPIC, b"no request"))
    assert not broker.watchers and not other.watchers
    with pytest.raises(RequestTimeout):
        await producer.request(Message(TOPIC, b"x"), SHORT)
    assert watched == [0, 2]


async def test_late_double_and_foreign_replies_are_dropped_and_counted(
    producer: AsyncProducer, echo: Echo, broker: MemoryBroker, replies: PassedReplies
) -> None:
    replies.copies = 2
    assert (await producer.request(Message(TOPIC, b"x"), LONG)).body == b"re: x"
    await until(lambda: producer.dropped_replies == DroppedReplies(double=1))
    replies.copies = 1
    echo.go_on.clear()
    with pytest.raises(RequestTimeout):
        await producer.request(Message(TOPIC, b"y"), SHORT)
    echo.go_on.set()
    await until(lambda: producer.dropped_replies == DroppedReplies(late=1, double=1))
    foreign = client_pb2.ClientNotice(reply=client_pb2.Reply(correlation_id="another's"))
    for notices in broker.watchers.values():
        notices.put_nowait(foreign)
    await until(lambda: producer.dropped_replies == DroppedReplies(1, 1, 1))
    assert not echo.errors


async def test_a_requester_that_has_gone_is_an_error_for_the_replier(
    producer: AsyncProducer, echo: Echo
) -> None:
    echo.go_on.clear()
    asking = asyncio.create_task(producer.request(Message(TOPIC, b"x"), LONG))
    await until(lambda: echo.seen)
    await producer.close()
    with pytest.raises(ClientClosed):
        await asking
    echo.go_on.set()
    await until(lambda: echo.errors)
    assert echo.errors[0].code is Code.CONSUMER_NOT_ONLINE


async def test_a_reply_waits_for_its_broker(
    producer: AsyncProducer, echo: Echo, cluster: MemoryCluster, replies: PassedReplies
) -> None:
    attempts = 0

    def restarting(address: str, request: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise BrokerUnreachable(address, "it restarts in this test")
        if attempts == 2:
            raise MqError(Code.CONSUMER_NOT_ONLINE, "its stream is on its way", retryable=True)
        return replies.send_reply(address, request)

    cluster.answers["SendReply"] = restarting
    assert (await producer.request(Message(TOPIC, b"x"), LONG)).body == b"re: x"
    assert attempts == 3


async def test_a_reply_is_tried_until_the_ttl(
    producer: AsyncProducer, echo: Echo, cluster: MemoryCluster
) -> None:
    cluster.answers["SendReply"] = BrokerUnreachable("a", "gone in this test")
    with pytest.raises(RequestTimeout):
        await producer.request(Message(TOPIC, b"x"), timedelta(milliseconds=400))
    await until(lambda: echo.errors)
    assert echo.errors[0].code is Code.BROKER_UNREACHABLE


async def test_what_is_no_request_gets_no_reply(
    producer: AsyncProducer, echo: Echo, cluster: MemoryCluster
) -> None:
    await producer.send(Message(TOPIC, b"x"))
    await until(lambda: echo.errors)
    assert echo.errors[0].code is Code.INVALID_PARAMETER
    assert not cluster.requests("SendReply")
    with raises_code(Code.INVALID_PARAMETER):
        await echo.consumer.reply(echo.seen[0], "text")  # type: ignore[arg-type]
    with raises_code(Code.MESSAGE_ILLEGAL):
        await producer.request(Message(TOPIC, b"x", delay_level=1), LONG)


async def test_an_old_broker_is_named_on_either_side(
    producer: AsyncProducer, echo: Echo, broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    cluster.answers["SendReply"] = MqError(Code.REQUEST_CODE_NOT_SUPPORTED, "no such RPC")
    with pytest.raises(RequestTimeout):
        await producer.request(Message(TOPIC, b"x"), SHORT)
    await until(lambda: echo.errors)
    assert echo.errors[0].code is Code.VERSION_NOT_SUPPORTED
    broker.capabilities = ()
    async with AsyncProducer("q", namesrv=NAMESRV, transport=cluster) as another:
        with raises_code(Code.VERSION_NOT_SUPPORTED):
            await another.request(Message(TOPIC, b"x"), LONG)


async def test_a_request_past_its_ttl_reaches_no_listener(
    producer: AsyncProducer, cluster: MemoryCluster, broker: MemoryBroker, replies: PassedReplies
) -> None:
    with pytest.raises(RequestTimeout):
        await producer.request(Message(TOPIC, b"late"), SHORT)
    # Its TTL counts from its birth, which may be a while after the call on a slow machine.
    past = datetime.now(UTC) + SHORT
    await until(lambda: datetime.now(UTC) > past)
    await producer.send(Message(TOPIC, b"next"))
    echo = Echo(cluster)
    async with echo.consumer:
        await until(lambda: echo.seen)
    assert [message.body for message in echo.seen] == [b"next"]
    await until(lambda: sum(broker.offsets.values()) == 2)


def request_of(broker: MemoryBroker, body: bytes, ttl_ms: int) -> ReceivedMessage:
    named = {"CORRELATION_ID": "1", "REPLY_TO_CLIENT": "c", "TTL": str(ttl_ms)}
    broker.append(TOPIC, 0, body, properties.encode(named))
    return ReceivedMessage(broker.messages(TOPIC)[-1], "a")


async def test_ttl_of_a_request_is_judged_by_the_clock_of_its_broker(broker: MemoryBroker) -> None:
    message = request_of(broker, b"x", 1_000)
    stored_ms = message.store_timestamp_ms
    seen: list[ReceivedMessage] = []
    consume = Consume(seen.append, None, ManualClock(stored_ms + 3_600_000))
    consume.use_time_of(lambda broker_name: stored_ms + (999 if broker_name == "a" else 0))
    assert consume.call([message]) == [None] and seen == [message]
    consume.use_time_of(lambda _: stored_ms + 1_001)
    assert consume.call([message]) == [None] and seen == [message]


async def test_a_batch_listener_gets_the_others(broker: MemoryBroker) -> None:
    messages = [request_of(broker, b"%d" % n, ttl) for n, ttl in enumerate((10**15, 1, 10**15))]
    seen: list[list[bytes]] = []

    def listen(batch: list[ReceivedMessage]) -> list[ConsumeResult]:
        seen.append([message.body for message in batch])
        return [ConsumeResult.SUCCESS, ConsumeResult.RECONSUME_LATER]

    clock = ManualClock(messages[0].store_timestamp_ms + 60_000)
    answer = Consume(None, listen, clock).call(messages)
    assert seen == [[b"0", b"2"]]
    assert [verdict is None for verdict in answer] == [True, True, False]
    assert Consume(None, listen, clock).call(messages[1:2]) == [None]
    assert len(seen) == 1
