"""What interceptors are told of, and what they can do."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from aerobee_client import AddedProperty, ConsumeResult, Producer
from aerobee_client.errors import PartialSend
from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.interceptors import Failure, Interceptor
from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_client.send_result import SendResult
from aerobee_wire.status import Code, MqError
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.client.producing import TOPIC, messages, producer
from support.clock.polling import until
from support.codes import raises_code


class Recorder(Interceptor):
    """Notes what it is told, in a list that others may share."""

    def __init__(self, name: str = "", events: list[tuple[Any, ...]] | None = None) -> None:
        self.name = name
        self.events = [] if events is None else events

    def before_send(self, message: Message) -> Message | None:
        self.events.append((self.name, "before", message.body))
        return message.with_properties({f"by{self.name}": "yes"})

    def after_send(
        self, message: Message, result: SendResult | None, error: BaseException | None
    ) -> None:
        assert f"by{self.name}" in message.properties
        outcome = getattr(error, "code", None) if result is None else "stored"
        self.events.append((self.name, outcome, message.body))

    def before_consume(self, consumer_group: str, messages: Sequence[ReceivedMessage]) -> None:
        self.events.append((self.name, consumer_group, threading.current_thread().name))

    def after_consume(
        self,
        consumer_group: str,
        messages: Sequence[ReceivedMessage],
        failures: Sequence[Failure | None],
    ) -> None:
        self.events.append((self.name, [each.body for each in messages], list(failures)))

    def after_rebalance(
        self,
        consumer_group: str,
        acquired: frozenset[MessageQueue],
        released: frozenset[MessageQueue],
    ) -> None:
        self.events.append((self.name, {q.topic for q in acquired}, {q.topic for q in released}))


class Refuser(Interceptor):
    def before_send(self, message: Message) -> Message | None:
        if message.body == b"1":
            raise MqError(Code.NO_PERMISSION, "refused by this test")
        return None


class Broken(Interceptor):
    """Fails wherever that must change nothing."""

    def after_send(self, *_: object) -> None:
        raise ValueError("after_send")

    def before_consume(self, *_: object) -> None:
        raise ValueError("before_consume")

    def after_consume(self, *_: object) -> None:
        raise ValueError("after_consume")

    def after_rebalance(self, *_: object) -> None:
        raise ValueError("after_rebalance")


async def test_every_way_of_sending_is_notified_in_order(
    cluster: MemoryCluster, broker: MemoryBroker
) -> None:
    events: list[tuple[Any, ...]] = []
    interceptors = [Recorder("a", events), Recorder("b", events)]
    async with producer(cluster, interceptors=interceptors) as sender:
        message = Message(TOPIC, b"x")
        for send in (
            lambda: sender.send(message),
            lambda: sender.send(message, accumulate=False),
            lambda: sender.send_batch([message]),
            lambda: sender.send_async(message),
            lambda: sender.send_async(message, accumulate=False),
        ):
            await send()
            await asyncio.sleep(0)
            assert events == [
                ("a", "before", b"x"),
                ("b", "before", b"x"),
                ("b", "stored", b"x"),
                ("a", "stored", b"x"),
            ]
            events.clear()
        await sender.send_oneway(message)
        assert events[2:] == [("b", None, b"x"), ("a", None, b"x")]
    assert message.properties == {}  # the caller's own is as it was
    stored = [ReceivedMessage(record) for record in broker.messages(TOPIC)]
    assert len(stored) == 6
    assert all({"bya", "byb"} <= each.properties.keys() for each in stored)


class Stamp(Interceptor):
    """Gives each message a property, and is told of no end."""

    def __init__(self, value: str) -> None:
        self._stamp = AddedProperty("stamp", value)

    def before_send(self, message: Message) -> AddedProperty:
        return self._stamp

    def after_send(self, *_: object) -> None:
        raise AssertionError("who gives a property is told of no end")


@pytest.mark.parametrize("properties", [{}, {"stamp": "old", "k": "v"}])
async def test_a_property_travels_with_the_message_however_it_is_sent(
    cluster: MemoryCluster, broker: MemoryBroker, properties: dict[str, str]
) -> None:
    recorder = Recorder()
    settings = {"compression": "zlib", "compress_over": 1_000}
    async with producer(
        cluster, interceptors=[Stamp("first"), recorder, Stamp("last")], **settings
    ) as sender:
        for body in (b"short", b"long" * 1_000):
            message = Message(TOPIC, body, tag="T", properties=properties)
            await sender.send(message)
            await sender.send(message, accumulate=False)
            await sender.send(message, selector=lambda _, queues: queues[0])
            await sender.send_batch([message])
            await sender.send_async(message)
            await sender.send_oneway(message)
            assert message.properties == properties
    outcomes = Counter(each[1] for each in recorder.events)
    assert outcomes == {"before": 12, "stored": 10, None: 2}
    stored = [ReceivedMessage(record) for record in broker.messages(TOPIC)]
    assert len(stored) == 12
    for each in stored:
        assert each.tag == "T" and each.body in {b"short", b"long" * 1_000}
        own = {name: each.properties[name] for name in ("stamp", "by", *properties)}
        assert own == {**properties, "stamp": "last", "by": "yes"}


async def test_a_property_that_is_too_much_fails_the_send_alone(cluster: MemoryCluster) -> None:
    for name, value in (("", "v"), ("n", ""), ("n", "\x01"), ("UNIQ_KEY", "v")):
        with raises_code(Code.MESSAGE_ILLEGAL):
            AddedProperty(name, value)
    async with producer(cluster, interceptors=[Stamp("v" * 20_000)]) as sender:
        with raises_code(Code.MESSAGE_ILLEGAL):
            await sender.send(Message(TOPIC, b"x", properties={"k": "v" * 20_000}))
        await sender.send(Message(TOPIC, b"x"))


async def test_what_before_send_raises_refuses_the_send(
    cluster: MemoryCluster, broker: MemoryBroker
) -> None:
    recorder = Recorder()
    called: list[BaseException | None] = []
    async with producer(cluster, interceptors=[recorder, Refuser()]) as sender:
        refused = messages(2)[1]
        for accumulate in (True, False):
            with raises_code(Code.NO_PERMISSION):
                await sender.send(refused, accumulate=accumulate)
            future = sender.send_async(
                refused, lambda _, error: called.append(error), accumulate=accumulate
            )
            with raises_code(Code.NO_PERMISSION):
                await future
            with raises_code(Code.NO_PERMISSION):
                await sender.send_oneway(refused, accumulate=accumulate)
        assert recorder.events == [("", "before", b"1"), ("", Code.NO_PERMISSION, b"1")] * 6
        with raises_code(Code.NO_PERMISSION) as caught:
            await sender.send_batch(messages(3))
        assert "message 1 of the batch" in caught.value.message
        assert recorder.events[-4:] == [
            ("", "before", b"0"),
            ("", "before", b"1"),
            ("", Code.NO_PERMISSION, b"1"),
            ("", Code.NO_PERMISSION, b"0"),
        ]
    assert broker.messages(TOPIC) == [] and len(called) == 2


async def test_an_interceptor_that_does_not_follow_a_message_is_not_notified_of_its_end(
    cluster: MemoryCluster,
) -> None:
    class Picky(Recorder):
        def follows_send(self, message: Message) -> bool:
            if message.body == b"2":
                raise ValueError("is logged")
            return message.body == b"0"

    picky, thorough = Picky(), Recorder("all")
    async with producer(cluster, interceptors=[picky, thorough, Refuser()]) as sender:
        for message in messages(3):
            if message.body == b"1":
                with raises_code(Code.NO_PERMISSION):
                    await sender.send(message)
            else:
                await sender.send(message)
        await sender.send_batch([messages(1)[0], messages(3)[2]])
    assert [each[1:] for each in picky.events if each[1] != "before"] == [("stored", b"0")] * 2
    assert [each[1:] for each in thorough.events if each[1] != "before"] == [
        ("stored", b"0"),
        (Code.NO_PERMISSION, b"1"),
        ("stored", b"2"),
        ("stored", b"0"),
        ("stored", b"2"),
    ]


async def test_each_request_is_notified_once_for_all_its_messages(cluster: MemoryCluster) -> None:
    class Requests(Interceptor):
        def __init__(self) -> None:
            self.events: list[tuple[str, int, object]] = []

        def after_send_request(
            self, topic: str, message_count: int, elapsed_s: float, error: BaseException | None
        ) -> None:
            assert elapsed_s >= 0
            self.events.append((topic, message_count, getattr(error, "code", None)))

        def ended(self) -> list[tuple[str, int, object]]:
            events, self.events = self.events, []
            return events

    requests = Requests()
    async with producer(cluster, interceptors=[requests], retries=0) as sender:
        await sender.send(messages(1)[0])
        assert requests.ended() == [(TOPIC, 1, None)]
        await asyncio.gather(*(sender.send(message) for message in messages(5)))
        assert requests.ended() == [(TOPIC, 5, None)]
        await sender.send(messages(1)[0], accumulate=False)
        assert requests.ended() == [(TOPIC, 1, None)]
        await sender.send_batch(messages(7), queue=(await sender.queues(TOPIC))[0])
        assert requests.ended() == [(TOPIC, 7, None)]
        await sender.send_oneway(messages(1)[0], accumulate=False)
        await until(lambda: requests.events)
        assert requests.ended() == [(TOPIC, 1, None)]
        await sender.send_oneway(messages(1)[0])
        await until(lambda: requests.events)
        assert requests.ended() == [(TOPIC, 1, None)]
        cluster.answers["Send"] = refused = MqError(Code.NO_PERMISSION, "refused by this test")
        for send in (
            lambda: sender.send(messages(1)[0]),
            lambda: sender.send(messages(1)[0], accumulate=False),
            lambda: sender.send_batch(messages(1)),
        ):
            with raises_code(Code.NO_PERMISSION):
                await send()
            assert requests.ended() == [(TOPIC, 1, refused.code)]
        await sender.send_oneway(messages(1)[0], accumulate=False)
        await until(lambda: requests.events)
        assert requests.ended() == [(TOPIC, 1, refused.code)]
        with raises_code(Code.MESSAGE_ILLEGAL):
            await sender.send(Message(TOPIC, bytes(5 << 20)))
        assert requests.ended() == [], "it never left"


async def test_of_a_batch_each_message_has_its_own_outcome(cluster: MemoryCluster) -> None:
    recorder = Recorder()
    async with producer(cluster, interceptors=[recorder], retries=0) as sender:
        stored = Message(TOPIC, b"stored")
        with pytest.raises(PartialSend):
            await sender.send_batch([stored, Message("absent", b"refused"), stored])
    assert recorder.events[3:] == [
        ("", "stored", b"stored"),
        ("", Code.TOPIC_NOT_EXIST, b"refused"),
        ("", "stored", b"stored"),
    ]


@pytest.mark.parametrize("accumulate", [True, False])
async def test_a_plain_producer_notifies_on_the_thread_of_its_caller(
    cluster: MemoryCluster, accumulate: bool
) -> None:
    threads: list[str] = []

    class Where(Interceptor):
        def before_send(self, message: Message) -> Message | None:
            threads.append(threading.current_thread().name)
            if message.body == b"1":
                raise MqError(Code.NO_PERMISSION, "refused by this test")
            return None

    def use() -> None:
        with Producer("p", namesrv="127.0.0.1:1", interceptors=[Where()]) as plain:
            refused = plain.send_async(messages(2)[1], accumulate=accumulate)
            with raises_code(Code.NO_PERMISSION):
                refused.result(0)

    thread = threading.Thread(target=use, name="the caller")
    thread.start()
    await asyncio.to_thread(thread.join)
    assert threads == ["the caller"]


@pytest.mark.parametrize("is_coroutine", [True, False])
async def test_a_consumer_notifies_of_messages_and_rebalances(
    cluster: MemoryCluster, is_coroutine: bool
) -> None:
    def listen(message: ReceivedMessage) -> None:
        if message.reconsume_times == 0 and message.body == b"1":
            raise LookupError("no arrival")

    async def listen_async(message: ReceivedMessage) -> None:
        listen(message)

    recorder = Recorder()
    consumer = AsyncPushConsumer(
        "g",
        listen_async if is_coroutine else listen,
        namesrv=NAMESRV,
        transport=cluster,
        interceptors=[Broken()],
    )
    consumer.add_interceptor(recorder)
    consumer.subscribe(TOPIC)
    async with producer(cluster) as sender, consumer:
        with raises_code(Code.ILLEGAL_OPERATION):
            consumer.add_interceptor(Recorder())
        await sender.send_batch(messages(2))
        await until(lambda: len([each for each in recorder.events if each[1] == "g"]) == 3)
    assert ("", {TOPIC, "%RETRY%g"}, set()) in recorder.events
    consumed = [each[1:] for each in recorder.events if isinstance(each[1], list)]
    assert sorted(consumed, key=str) == [
        ([b"0"], [None]),
        ([b"1"], [Failure("LookupError", "no arrival")]),
        ([b"1"], [None]),
    ]
    threads = {each[2] for each in recorder.events if each[1] == "g"}
    assert all(name.startswith("listener-") for name in threads) != is_coroutine


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_consumer_notifies_of_what_became_of_a_message(
    cluster: MemoryCluster, broker: MemoryBroker, orderly: bool
) -> None:
    events: list[tuple[Any, ...]] = []

    class Settlements(Interceptor):
        def after_settle(
            self,
            consumer_group: str,
            operation: str,
            messages: Sequence[ReceivedMessage],
            elapsed_s: float,
            error: BaseException | None,
        ) -> None:
            events.append((consumer_group, operation, [each.body for each in messages], error))

    def listen(message: ReceivedMessage) -> ConsumeResult:
        return ConsumeResult.DEAD_LETTER

    consumer = AsyncPushConsumer(
        "g",
        listen,
        namesrv=NAMESRV,
        transport=cluster,
        interceptors=[Settlements()],
        orderly=orderly,
    )
    consumer.subscribe(TOPIC)
    async with producer(cluster) as sender, consumer:
        await sender.send(Message(TOPIC, b"x"))
        await until(lambda: events)
    assert events == [("g", "send_back", [b"x"], None)]
    assert len(broker.messages("%DLQ%g")) == 1


async def test_what_fails_in_an_interceptor_changes_nothing(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()
    async with producer(cluster, interceptors=[recorder, Broken()]) as sender:
        await sender.send(Message(TOPIC, b"x"))
    assert [each[1] for each in recorder.events] == ["before", "stored"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
