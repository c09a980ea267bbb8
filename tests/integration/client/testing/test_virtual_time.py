"""What follows when a test moves time: leases, transactions, retention, and nothing that lives."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from aerobee_client import (
    AdminClient,
    Code,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
    TransactionProducer,
    TransactionResolution,
)
from aerobee_client.testing import RocketMq
from aerobee_client.testing.suite_process import SuiteProcess
from support.clock.polling import until_sync
from support.codes import raises_code
from support.processes.command import aerobee_json
from support.processes.service import run
from support.proxy.client import GROUP, Client

RECEIVE_WAIT = timedelta(seconds=10)
SMALL_FILES = ("mappedFileSizeCommitLog=65536", "fileReservedTime=72", "deleteWhen=04")


def test_a_lease_that_nobody_acknowledges_ends(rocketmq: RocketMq) -> None:
    """A simple consumer of an official SDK: nobody waits for it."""
    topic = rocketmq.topic(queues=1)
    with Client(rocketmq.proxy) as client:
        queue = client.queue(topic)
        client.send(topic, b"7")
        (first,) = client.receive(queue)
        rocketmq.advance(seconds=50)
        assert client.receive(queue) == []
        rocketmq.advance(seconds=10)
        (second,) = client.receive(queue)
        assert second.system_properties.message_id == first.system_properties.message_id
        assert second.system_properties.delivery_attempt == 2
        assert client.ack(first) != client.ack(second)
    assert rocketmq.lag(GROUP.name) == 0


def test_a_producer_is_asked_about_its_transaction(rocketmq: RocketMq) -> None:
    """First after 6 s, then every 30 s; the third answer commits."""
    topic, answers = rocketmq.topic(queues=1), iter(["unknown", "unknown", "commit"])
    asked: list[str] = []

    def check(message: ReceivedMessage) -> TransactionResolution:
        asked.append(next(answers))
        return TransactionResolution[asked[-1].upper()]

    with TransactionProducer(rocketmq.unused_topic("producers"), check) as producer:
        with producer.transaction(Message(topic=topic, body=b"7")) as transaction:
            transaction.unknown()
        rocketmq.advance(seconds=40)
        assert asked == ["unknown", "unknown"] and rocketmq.messages(topic) == []
        rocketmq.advance(minutes=10)
        assert asked == ["unknown", "unknown", "commit"]
        assert [message.body for message in rocketmq.messages(topic)] == [b"7"]


def test_a_simple_consumer_is_not_waited_for_and_its_lease_ends(rocketmq: RocketMq) -> None:
    topic = rocketmq.topic(queues=1)
    with SimpleConsumer(rocketmq.group()) as consumer, Producer() as producer:
        consumer.subscribe(topic)
        producer.send(Message(topic=topic, body=b"7"))
        (first,) = consumer.receive(1, timedelta(minutes=1), wait=RECEIVE_WAIT)
        rocketmq.advance(minutes=1)
        (second,) = consumer.receive(1, timedelta(minutes=1), wait=RECEIVE_WAIT)
        assert (first.message_id, second.delivery_attempt) == (second.message_id, 2)
        with raises_code(Code.INVALID_RECEIPT_HANDLE):
            consumer.ack(first)
        consumer.ack(second)


def test_a_delivery_time_is_by_the_clock_of_the_services(rocketmq: RocketMq) -> None:
    topic = rocketmq.topic(queues=1)
    rocketmq.advance(days=3)
    now = rocketmq.now()
    assert now > datetime.now(UTC) + timedelta(days=2)
    with Producer() as producer:
        producer.send(Message(topic, b"later", deliver_at=now + timedelta(minutes=10)))
        rocketmq.advance(minutes=9)
        assert rocketmq.messages(topic) == []
        rocketmq.advance(minutes=1)
        assert [message.body for message in rocketmq.messages(topic)] == [b"later"]


def test_a_request_is_answered_when_the_services_are_ahead(rocketmq: RocketMq) -> None:
    topic = rocketmq.topic()
    rocketmq.advance(days=1)

    def listener(message: ReceivedMessage) -> None:
        consumer.reply(message, b"you said " + message.body)

    consumer = PushConsumer(rocketmq.group(), listener)
    consumer.subscribe(topic)
    with consumer, Producer() as producer:
        reply = producer.request(Message(topic, b"7"), timedelta(seconds=10))
    assert reply.body == b"you said 7"


def test_an_orderly_consumer_is_waited_for(rocketmq: RocketMq) -> None:
    """It tries a failed message again by itself, in real time; then the next one follows."""
    topic, group = rocketmq.topic(queues=1), rocketmq.group(max_attempts=3)
    bodies: list[bytes] = []

    def listener(message: ReceivedMessage) -> None:
        bodies.append(message.body)
        if message.body == b"bad":
            raise ValueError("bad")

    suspend_time = timedelta(milliseconds=10)
    consumer = PushConsumer(group, listener, orderly=True, suspend_time=suspend_time)
    consumer.subscribe(topic)
    with consumer, Producer() as producer:
        producer.send_batch([Message(topic, body) for body in (b"first", b"bad", b"last")])
        rocketmq.advance(hours=5)
        assert bodies == [b"first", b"bad", b"bad", b"bad", b"last"]
        assert [letter.body for letter in rocketmq.dead_letters(group)] == [b"bad"]


def test_retention_deletes_what_is_old_enough(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        SuiteProcess(tmp_path_factory.mktemp("suite"), SMALL_FILES) as suite,
        RocketMq(suite.namesrv) as rocketmq,
        Producer(namesrv=suite.namesrv) as producer,
    ):
        topic = rocketmq.topic(queues=1)
        for number in range(30):
            producer.send(Message(topic=topic, body=b"%d" % number * 4_000))
        rocketmq.advance(hours=48)
        assert len(rocketmq.messages(topic)) == 30
        rocketmq.advance(hours=72)
        assert len(rocketmq.messages(topic)) < 30
        producer.send(Message(topic=topic, body=b"new"))
        assert rocketmq.messages(topic)[-1].body == b"new"


def test_a_lite_topic_without_messages_for_its_ttl_is_gone(rocketmq: RocketMq) -> None:
    """And stays gone when the broker is killed and started again; the next message begins anew."""
    parent, group = rocketmq.unused_topic("sessions"), rocketmq.unused_topic("agents")
    namesrv = rocketmq.namesrv
    create = ("topic", "create", parent, "--type", "lite", "--queues", "1", "--lite-ttl", "30m")
    aerobee_json(*create, namesrv=namesrv)
    aerobee_json("group", "create", group, "--lite-topic", parent, namesrv=namesrv)

    def counts() -> dict[str, int]:
        with AdminClient(namesrv) as admin:
            found = admin.list_lite_topics(parent, group=group)
            return {each.lite_topic: each.lag for each in found.topics}

    with Producer(namesrv=namesrv) as producer:
        producer.send(Message(parent, b"0", lite_topic="old"))
        producer.send(Message(parent, b"0", lite_topic="kept"))
        rocketmq.advance(minutes=25)
        producer.send(Message(parent, b"1", lite_topic="kept"))
        assert counts() == {"old": 1, "kept": 2}
        rocketmq.advance(minutes=10)
        until_sync(lambda: counts() == {"kept": 2}, "the lite topic is gone")
        rocketmq.kill_broker()
        rocketmq.restart_broker()
        until_sync(lambda: counts() == {"kept": 2}, "the other one is left")
        producer.send(Message(parent, b"2", lite_topic="old"))
        until_sync(lambda: counts() == {"kept": 2, "old": 1}, "it begins anew")
    changed = aerobee_json("topic", "update", parent, "--lite-ttl", "never", namesrv=namesrv)
    assert "lite.topic.expiration" in str(changed)


def test_test_control_is_logged_at_every_start_and_refused_as_an_option(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("suite")
    with SuiteProcess(folder) as suite:
        assert "test_control" in suite.log.read_text()
    file = folder / "broker.conf"
    file.write_text("testControl=true\n")
    refused = run("aerobee_broker", "--data", str(folder), "--config", str(file))
    assert refused.returncode == 2 and "--test-control" in refused.stderr


def test_a_delay_of_the_command_is_by_the_clock_of_the_broker(rocketmq: RocketMq) -> None:
    """The broker's clock is an hour ahead of the command's."""
    topic = rocketmq.topic(queues=1)
    rocketmq.advance(hours=1)
    aerobee_json("message", "send", topic, "x", "--delay", "1h", namesrv=rocketmq.namesrv)
    rocketmq.advance(minutes=59)
    assert rocketmq.messages(topic) == []
    rocketmq.advance(minutes=1)
    until_sync(lambda: len(rocketmq.messages(topic)) == 1, "it is delivered")


def test_an_age_of_the_command_is_by_the_clock_of_the_broker(rocketmq: RocketMq) -> None:
    topic, group = rocketmq.topic(queues=1), rocketmq.group(max_attempts=1)

    def refuse(message: ReceivedMessage) -> None:
        raise ValueError(message.body)

    rocketmq.advance(hours=3)
    with Producer(namesrv=rocketmq.namesrv) as producer:
        producer.send(Message(topic, b"x"))
    with PushConsumer(group, refuse, namesrv=rocketmq.namesrv) as consumer:
        consumer.subscribe(topic)
        until_sync(lambda: len(rocketmq.dead_letters(group)) == 1, "it is dead-lettered")
    rocketmq.advance(hours=2)
    redrive = ("dlq", "redrive", group, "--all", "--to", "origin", "--dry-run", "--since")
    reported = [aerobee_json(*redrive, age, namesrv=rocketmq.namesrv) for age in ("1h", "3h")]
    assert [each["would_send"] for each in reported] == [0, 1]
