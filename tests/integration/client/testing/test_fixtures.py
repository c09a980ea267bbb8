"""The fixtures of the pytest plugin, as a test of a user has them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from aerobee_client import (
    AdminClient,
    AsyncProducer,
    AsyncPushConsumer,
    DeadLetter,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from aerobee_client.errors import BrokerUnreachable, Code
from aerobee_client.testing import AsyncRocketMq, RocketMq
from support.codes import raises_code

HOURS_OF_16_RETRIES = 5
REASON = "no such customer"


def refuse(message: ReceivedMessage) -> None:
    raise ValueError(REASON)


def dead_letter(message: ReceivedMessage) -> None:
    raise DeadLetter("unknown currency")


def send(topic: str, *bodies: bytes) -> None:
    with Producer("testing") as producer:
        for body in bodies:
            producer.send(Message(topic=topic, body=body))


def consume(group: str, topic: str, listener: Callable[[ReceivedMessage], None]) -> PushConsumer:
    consumer = PushConsumer(group, listener)
    consumer.subscribe(topic)
    return consumer


def test_a_message_dies_after_16_retries_in_five_hours_of_virtual_time(rocketmq: RocketMq) -> None:
    topic, group = rocketmq.topic("orders"), rocketmq.group("billing")
    attempts: list[int] = []

    def listener(message: ReceivedMessage) -> None:
        attempts.append(message.reconsume_times)
        refuse(message)

    with consume(group, topic, listener):
        send(topic, b"7")
        rocketmq.advance(hours=HOURS_OF_16_RETRIES)
        assert attempts == list(range(17))
        (letter,) = rocketmq.dead_letters(group)
        assert (letter.body, letter.reconsume_times) == (b"7", 17)
        assert letter.failure_reason == "ValueError"
        assert REASON in letter.failure_description
        retries = rocketmq.retries(group)
        assert [retry.reconsume_times for retry in retries] == list(range(1, 17))
        assert rocketmq.lag(group) == 0
    stored_ms = [message.store_timestamp_ms for message in rocketmq.messages(topic)]
    assert letter.store_timestamp_ms - stored_ms[0] >= 4 * 3_600_000


def test_a_misspelt_name_is_an_error_and_not_an_empty_list(rocketmq: RocketMq) -> None:
    for look in (rocketmq.dead_letters, rocketmq.retries):
        assert look(rocketmq.group()) == []
        with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
            look("typo")
    assert rocketmq.messages(rocketmq.unused_topic()) == []
    with raises_code(Code.TOPIC_NOT_EXIST):
        rocketmq.messages("typo")


async def test_the_same_for_coroutines(async_rocketmq: AsyncRocketMq) -> None:
    topic, group = await async_rocketmq.topic(), await async_rocketmq.group(max_attempts=3)

    async def listener(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        refuse(message)

    consumer = AsyncPushConsumer(group, listener)
    consumer.subscribe(topic)
    async with consumer, AsyncProducer("testing") as producer:
        await producer.send(Message(topic=topic, body=b"7"))
        await async_rocketmq.advance(minutes=1)
        (letter,) = await async_rocketmq.dead_letters(group)
    assert letter.reconsume_times == 3


def test_delayed_messages_come_in_the_order_of_their_times(rocketmq: RocketMq) -> None:
    topic, group = rocketmq.topic(queues=1), rocketmq.group()
    bodies: list[bytes] = []
    with consume(group, topic, lambda message: bodies.append(message.body)):
        with Producer("testing") as producer:
            producer.send(Message(topic=topic, body=b"in an hour", delay_level=17))
            producer.send(Message(topic=topic, body=b"in a minute", delay_level=5))
        rocketmq.advance(seconds=59)
        assert bodies == []
        rocketmq.advance(seconds=1)
        assert bodies == [b"in a minute"]
        rocketmq.advance(days=1)
        assert bodies == [b"in a minute", b"in an hour"]


def test_a_group_that_does_not_settle_is_named(rocketmq: RocketMq) -> None:
    topic, group = rocketmq.topic(), rocketmq.group("stuck")
    release = threading.Event()

    def hold(message: ReceivedMessage) -> None:
        release.wait(60)

    with consume(group, topic, hold):
        send(topic, b"7")
        try:
            with raises_code(Code.REQUEST_TIMEOUT) as raised:
                rocketmq.advance(hours=1, settle_timeout=timedelta(milliseconds=300))
            assert group in str(raised.value)
            with raises_code(Code.REQUEST_TIMEOUT):
                rocketmq.wait_consumed(group, timedelta(milliseconds=300))
            rocketmq.advance(hours=1, settle=False)
        finally:
            release.set()
        rocketmq.wait_consumed(group)
    assert rocketmq.lag(group) == 0


def test_a_dead_letter_of_the_listener_s_own_has_its_reason(rocketmq: RocketMq) -> None:
    topic, group = rocketmq.topic(), rocketmq.group()
    with consume(group, topic, dead_letter):
        send(topic, b"7")
        rocketmq.wait_consumed(group)
    (letter,) = rocketmq.dead_letters(group)
    assert letter.failure_description == "unknown currency"


def test_what_was_acknowledged_survives_a_killed_broker(rocketmq: RocketMq) -> None:
    topic = rocketmq.topic(queues=1)
    bodies = [b"%d" % number for number in range(50)]
    with Producer("testing", retries=0) as producer:
        producer.send_batch([Message(topic=topic, body=body) for body in bodies])
        rocketmq.kill_broker()
        with pytest.raises(BrokerUnreachable):
            producer.send(Message(topic=topic, body=b"lost"))
    with raises_code(Code.ILLEGAL_OPERATION):
        rocketmq.kill_broker()
    rocketmq.restart_broker()
    assert [message.body for message in rocketmq.messages(topic)] == bodies
    send(topic, b"after")
    assert len(rocketmq.messages(topic)) == len(bodies) + 1


def test_refused_calls_fail_and_later_ones_do_not(rocketmq: RocketMq) -> None:
    topic = rocketmq.topic()
    with Producer("testing", retries=0) as producer:
        rocketmq.refuse("Send", Code.FLOW_CONTROL, times=1)
        with raises_code(Code.FLOW_CONTROL):
            producer.send(Message(topic=topic, body=b"7"))
        producer.send(Message(topic=topic, body=b"7"))
    with raises_code(Code.INVALID_PARAMETER):
        rocketmq.refuse("Sned", Code.FLOW_CONTROL)


def test_time_goes_forward_only(rocketmq: RocketMq) -> None:
    for hours in (-1, 24 * 400):
        with raises_code(Code.INVALID_PARAMETER):
            rocketmq.advance(hours=hours)


def test_what_a_test_created_is_gone_after_it(rocketmq: RocketMq) -> None:
    with RocketMq(rocketmq.namesrv) as other:
        topic, group = other.topic(), other.group()
        with consume(group, topic, dead_letter):
            send(topic, b"7")
            other.wait_consumed(group)
    with AdminClient(rocketmq.namesrv) as admin:
        names = {each.topic for each in admin.list_topics(include_derived=True)}
        assert not {name for name in names if topic in name or group in name}
        assert group not in {each.consumer_group for each in admin.list_groups()}


def test_a_live_consumer_stays_a_member_through_years(rocketmq: RocketMq) -> None:
    """Liveness keeps real time: no heartbeat is missed by a move."""
    topic, group = rocketmq.topic(), rocketmq.group()
    bodies: list[bytes] = []
    with consume(group, topic, lambda message: bodies.append(message.body)):
        for _ in range(3):
            rocketmq.advance(days=2)
            send(topic, b"7")
            rocketmq.wait_consumed(group)
    assert len(bodies) == 3
