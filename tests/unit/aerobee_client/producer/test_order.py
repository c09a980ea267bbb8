"""Message groups and selectors: the queue that takes a message, and the order that it has there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from aerobee_client.errors import PartialSend
from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.producer import AsyncProducer
from aerobee_client.sending.order.queue_choice import SelectByHash, SelectMachineRoom, SelectRandom
from aerobee_wire.queues.choice import queue_of_group
from aerobee_wire.status import Code, MqError
from support.client.answers import Gate
from support.client.memory import MemoryBroker, MemoryCluster
from support.client.producing import TOPIC, messages, producer
from support.clock.polling import until
from support.codes import raises_code

QUEUES = [MessageQueue(TOPIC, "a", queue_id) for queue_id in range(4)]


def ordered(group: str, count: int, **arguments: Any) -> list[Message]:
    """Messages "0", "1", … of one message group."""
    return [Message(TOPIC, b"%d" % n, message_group=group, **arguments) for n in range(count)]


def bodies(broker: MemoryBroker, group: str) -> list[bytes]:
    """Of the stored messages of a message group, in their order."""
    return [
        record.body
        for record in broker.messages(TOPIC)
        if record.properties.get("__SHARDINGKEY") == group
    ]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def second(message: Message, queues: Sequence[MessageQueue]) -> MessageQueue:
    return queues[1]


@pytest.fixture
async def sender(cluster: MemoryCluster) -> AsyncIterator[AsyncProducer]:
    async with producer(cluster) as sender:
        await sender.queues(TOPIC)
        yield sender


@pytest.fixture
def two(broker: MemoryBroker, other: MemoryBroker) -> MemoryCluster:
    return MemoryCluster(broker, other)


# ---- the queue ----


@pytest.mark.parametrize("accumulate", [True, False])
async def test_a_message_group_goes_to_the_queue_that_the_proxy_chooses(
    cluster: MemoryCluster, broker: MemoryBroker, accumulate: bool
) -> None:
    async with producer(cluster, accumulate=accumulate) as sender:
        for number in range(20):
            message = Message(TOPIC, b"x", message_group=f"group {number}")
            result = await sender.send(message)
            assert result.queue == queue_of_group(message.message_group, QUEUES)
    stored = {record.properties["__SHARDINGKEY"] for record in broker.messages(TOPIC)}
    assert stored == {f"group {number}" for number in range(20)}


async def test_a_selector_chooses(sender: AsyncProducer) -> None:
    assert (await sender.send(Message(TOPIC, b"x"), selector=second)).queue == QUEUES[1]
    assert await sender.send_async(Message(TOPIC, b"x"), selector=second)
    results = await sender.send_batch([Message(TOPIC, b"x")] * 3, selector=second)
    assert {result.queue for result in results} == {QUEUES[1]}
    await sender.send_oneway(Message(TOPIC, b"x"), selector=second)


def test_the_selectors_of_rocketmq() -> None:
    """By hash: Java's hash of "order-7" is -1207111304."""
    message = Message(TOPIC, b"x", keys=["order-7", "other"])
    assert SelectByHash()(message, QUEUES[:3]) == QUEUES[1207111304 % 3]
    assert SelectByHash(lambda m: m.tag)(Message(TOPIC, b"x", tag="a"), QUEUES) == QUEUES[97 % 4]
    with raises_code(Code.INVALID_PARAMETER):
        SelectByHash()(Message(TOPIC, b"x"), QUEUES)
    select = SelectRandom(random.Random(1))
    assert {select(message, QUEUES) for _ in range(100)} == set(QUEUES)
    rooms = [MessageQueue(TOPIC, name, 0) for name in ("r1@a", "r2@b", "c")]
    assert SelectMachineRoom(["r2"])(message, rooms) == rooms[1]
    with raises_code(Code.BROKER_NOT_EXIST):
        SelectMachineRoom("r3")(message, rooms)


async def test_a_broker_that_is_away_keeps_its_message_groups(
    two: MemoryCluster, broker: MemoryBroker, other: MemoryBroker
) -> None:
    """Also when the name servers have dropped it: another one would put them out of order."""
    async with producer(two, send_timeout=timedelta(milliseconds=300)) as sender:
        queues = sorted(await sender.queues(TOPIC))
        names = map(str, range(100))
        group = next(name for name in names if queue_of_group(name, queues).broker_name == "a")
        await two.kill(broker)
        with raises_code(Code.BROKER_UNREACHABLE):
            await sender.send(Message(TOPIC, b"1", message_group=group))
        sending = sender.send_async(
            Message(TOPIC, b"2", message_group=group), timeout=timedelta(seconds=60)
        )
        await asyncio.sleep(0)
        two.revive(broker)
        assert (await sending).queue.broker_name == "a"
    assert not bodies(other, group)


# ---- the order ----


async def test_sends_of_a_message_group_accumulate_in_order(
    cluster: MemoryCluster, sender: AsyncProducer, broker: MemoryBroker
) -> None:
    await asyncio.gather(*map(sender.send, ordered("g", 1_200)))
    assert bodies(broker, "g") == numbers(1_200)
    assert len(cluster.requests("Send")) == 3


async def test_one_request_is_in_flight_to_a_queue(
    cluster: MemoryCluster, sender: AsyncProducer, broker: MemoryBroker
) -> None:
    gate = Gate(cluster)
    sending = [sender.send_async(m, accumulate=n % 2 == 0) for n, m in enumerate(ordered("g", 9))]
    await gate.come(1)
    await asyncio.sleep(0)
    assert len(gate.held) == 1
    gate.open()
    await asyncio.gather(*sending)
    assert bodies(broker, "g") == numbers(9)


async def test_the_form_of_a_request_does_not_change_the_order(
    cluster: MemoryCluster, sender: AsyncProducer, broker: MemoryBroker
) -> None:
    """Some go in columns, others message by message, and one-way ones beside them."""
    gate = Gate(cluster)
    sending = []
    for number in range(30):
        message = Message(TOPIC, b"%d" % number, message_group="g", wait_store_ok=number % 3 > 0)
        if number % 5 == 4:
            await sender.send_oneway(message)
        else:
            sending.append(sender.send_async(message))
    await gate.come(1)
    gate.open()
    await asyncio.gather(*sending)
    await until(lambda: len(bodies(broker, "g")) == 30)
    assert bodies(broker, "g") == numbers(30)


@pytest.mark.parametrize("max_pending_messages", [1, 2, 7])
async def test_order_is_kept_without_room_and_before_the_route_is_known(
    cluster: MemoryCluster, broker: MemoryBroker, max_pending_messages: int
) -> None:
    async with producer(cluster, max_pending_messages=max_pending_messages) as sender:
        sending = [asyncio.ensure_future(sender.send(m)) for m in ordered("g", 40)]
        await asyncio.sleep(0)
        sending += [asyncio.ensure_future(sender.send(m, selector=second)) for m in ordered("", 40)]
        await asyncio.gather(*sending)
    assert bodies(broker, "g") == numbers(40)
    selected = [r.body for r in broker.messages(TOPIC) if "__SHARDINGKEY" not in r.properties]
    assert selected == numbers(40)


async def test_a_batch_keeps_the_order_of_each_message_group(
    sender: AsyncProducer, broker: MemoryBroker
) -> None:
    groups = ["", "a", "b", "c"]
    sent = [
        Message(TOPIC, b"%d" % (number // 4), message_group=groups[number % 4])
        for number in range(6_000)
    ]
    first = sender.send_async(Message(TOPIC, b"before", message_group="a"))
    results = await sender.send_batch(sent)
    await first
    for group in groups[1:]:
        expected = numbers(1_500)
        assert bodies(broker, group) == ([b"before"] if group == "a" else []) + expected
    for message, result in zip(sent, results, strict=True):
        if message.message_group:
            assert result.queue == queue_of_group(message.message_group, QUEUES)


# ---- failures ----


async def test_those_behind_a_failed_send_fail_unsent(
    cluster: MemoryCluster, sender: AsyncProducer, broker: MemoryBroker
) -> None:
    """Those of its message group, and no other."""
    same_queue = next(
        group
        for group in map(str, range(100))
        if queue_of_group(group, QUEUES) == queue_of_group("g", QUEUES)
    )

    async def refuse(address: str, request: Any) -> Any:
        if b"TAGS\x01bad" in request.batch.properties:
            raise MqError(Code.MESSAGE_ILLEGAL, "not that one")
        return await cluster._Send(broker, request)

    cluster.answers["Send"] = refuse
    sent = [
        Message(TOPIC, b"%d" % n, message_group="g", tag="bad" if n == 700 else "good")
        for n in range(1_500)
    ]
    others = ordered(same_queue, 1_500)
    mixed = [message for pair in zip(sent, others, strict=True) for message in pair]
    outcomes = await asyncio.gather(*map(sender.send, mixed), return_exceptions=True)
    failed = [n for n, outcome in enumerate(outcomes[::2]) if isinstance(outcome, BaseException)]
    assert failed == list(range(700, 1_500))
    assert {getattr(outcomes[2 * n], "code", None) for n in failed} == {Code.MESSAGE_ILLEGAL}
    assert not any(isinstance(outcome, BaseException) for outcome in outcomes[1::2])
    assert bodies(broker, "g") == numbers(700)
    assert bodies(broker, same_queue) == numbers(1_500)
    await sender.send(Message(TOPIC, b"new", message_group="g"))
    assert bodies(broker, "g")[-1] == b"new"


async def test_a_deadline_fails_those_behind_too(
    cluster: MemoryCluster, sender: AsyncProducer, broker: MemoryBroker
) -> None:
    gate = Gate(cluster)
    short, long = timedelta(milliseconds=50), timedelta(seconds=60)
    first, *behind = [
        sender.send_async(message, timeout=long if number else short)
        for number, message in enumerate(ordered("g", 3))
    ]
    await gate.come(1)
    behind += [sender.send_async(message, timeout=long) for message in ordered("g", 3)]
    outcomes = await asyncio.gather(first, *behind, return_exceptions=True)
    assert {getattr(outcome, "code", None) for outcome in outcomes} == {Code.REQUEST_TIMEOUT}
    gate.open()
    await sender.send(Message(TOPIC, b"later", message_group="g"))
    assert bodies(broker, "g")[-1] == b"later"


async def test_a_cancelled_send_is_left_out_and_fails_nobody(
    cluster: MemoryCluster, sender: AsyncProducer, broker: MemoryBroker
) -> None:
    gate = Gate(cluster)
    sending = [sender.send_async(message) for message in ordered("g", 1)]
    await gate.come(1)
    sending += [sender.send_async(message) for message in ordered("g", 3)]
    sending[2].cancel()
    gate.open()
    await asyncio.gather(*sending, return_exceptions=True)
    assert bodies(broker, "g") == [b"0", b"0", b"2"]


async def test_without_room_those_behind_fail_too(cluster: MemoryCluster) -> None:
    async with producer(cluster, max_pending_messages=1) as sender:
        await sender.queues(TOPIC)
        gate = Gate(cluster)
        first = asyncio.ensure_future(sender.send(Message(TOPIC, b"x")))
        await gate.come(1)
        short, long = timedelta(milliseconds=30), timedelta(seconds=60)
        behind = [
            asyncio.ensure_future(sender.send(message, timeout=long if number else short))
            for number, message in enumerate(ordered("g", 3))
        ]
        outcomes = await asyncio.gather(*behind, return_exceptions=True)
        assert {getattr(outcome, "code", None) for outcome in outcomes} == {Code.FLOW_CONTROL}
        with raises_code(Code.FLOW_CONTROL):
            await sender.send(Message(TOPIC, b"x", message_group="g"), block=False)
        gate.open()
        await first
        await sender.send(Message(TOPIC, b"x", message_group="g"))


async def test_a_batch_says_which_of_an_order_are_missing(
    cluster: MemoryCluster, sender: AsyncProducer, broker: MemoryBroker
) -> None:
    async def refuse(address: str, request: Any) -> Any:
        if b"bad" in request.batch.bodies:
            raise MqError(Code.MESSAGE_ILLEGAL, "not that one")
        return await cluster._Send(broker, request)

    cluster.answers["Send"] = refuse
    sent = [
        Message(TOPIC, body, message_group=group)
        for body, group in [(b"1", "g"), (b"bad", "g"), (b"2", "g"), (b"3", ""), (b"4", "h")]
    ]
    with pytest.raises(PartialSend) as caught:
        await sender.send_batch(sent)
    assert [result is None for result in caught.value.results] == [False, True, True, False, False]


async def test_a_selector_that_raises_fails_its_send_alone(
    cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    def broken(message: Message, queues: Sequence[MessageQueue]) -> MessageQueue:
        raise KeyError("no such customer")

    with pytest.raises(KeyError):
        await sender.send(Message(TOPIC, b"x"), selector=broken)
    assert not cluster.requests("Send")


@pytest.mark.parametrize("returned", [MessageQueue("other", "a", 0), None, 3])
async def test_what_is_no_queue_of_the_topic_is_refused(
    cluster: MemoryCluster, sender: AsyncProducer, returned: Any
) -> None:
    with pytest.raises(MqError) as caught:
        await sender.send(Message(TOPIC, b"x"), selector=lambda message, queues: returned)
    assert (caught.value.code, caught.value.about) == (Code.INVALID_PARAMETER, "selector")
    assert not cluster.requests("Send")


@pytest.mark.parametrize("route_is_known", [True, False])
@pytest.mark.parametrize("size", [10, 1_100])
async def test_a_batch_with_a_wrong_choice_is_not_sent_and_names_its_index(
    cluster: MemoryCluster, sender: AsyncProducer, route_is_known: bool, size: int
) -> None:
    if route_is_known:
        await sender.queues(TOPIC)

    def wrong_once(message: Message, queues: Sequence[MessageQueue]) -> MessageQueue:
        return MessageQueue("other", "a", 0) if message.body == b"7" else queues[0]

    def raises_once(message: Message, queues: Sequence[MessageQueue]) -> MessageQueue:
        if message.body == b"7":
            raise KeyError("no such customer")
        return queues[0]

    batch = [*messages(size)[8:], *messages(8)]
    with pytest.raises(MqError) as caught:
        await sender.send_batch(batch, selector=wrong_once)
    assert (caught.value.code, caught.value.about) == (Code.INVALID_PARAMETER, "selector")
    assert f"message {size - 1}" in caught.value.message
    with pytest.raises(KeyError):
        await sender.send_batch(batch, selector=raises_once)
    assert not cluster.requests("Send")
    assert sender.statistics().waiting == 0
    assert len(await sender.send_batch(messages(8)[:7], selector=wrong_once)) == 7


@pytest.mark.parametrize(
    ("group", "choice"),
    [
        ("g", {"queue": QUEUES[0]}),
        ("g", {"selector": second}),
        ("", {"queue": QUEUES[0], "selector": second}),
    ],
)
async def test_one_choice_of_a_queue_is_enough(
    cluster: MemoryCluster, sender: AsyncProducer, group: str, choice: dict[str, Any]
) -> None:
    message = Message(TOPIC, b"x", message_group=group)
    for call in (sender.send, sender.send_oneway):
        with raises_code(Code.INVALID_PARAMETER):
            await call(message, **choice)
    with raises_code(Code.INVALID_PARAMETER):
        await sender.send_batch([Message(TOPIC, b"x"), message][-1:], **choice)
    assert not cluster.requests("Send")


async def test_close_drains_what_waits_in_line(
    cluster: MemoryCluster, broker: MemoryBroker
) -> None:
    async with producer(cluster) as sender:
        sending = [sender.send_async(message) for message in ordered("g", 700)]
    assert all(future.done() and not future.exception() for future in sending)
    assert bodies(broker, "g") == numbers(700)


# ---- queues that no longer accept messages ----


@pytest.mark.parametrize("max_pending_messages", [50, 65_536])
async def test_message_groups_move_in_order_when_a_topic_has_fewer_queues(
    cluster: MemoryCluster, broker: MemoryBroker, max_pending_messages: int
) -> None:
    """Those that were refused, those behind them, and those that come meanwhile."""
    names = [f"group {number}" for number in range(12)]
    stop = asyncio.Event()
    async with producer(cluster, max_pending_messages=max_pending_messages) as sender:
        await sender.queues(TOPIC)

        async def send(group: str) -> int:
            number = 0
            sending: list[asyncio.Future[Any]] = []
            while not stop.is_set():
                message = Message(TOPIC, b"%d" % number, message_group=group)
                sending.append(asyncio.ensure_future(sender.send(message)))
                number += 1
                await asyncio.sleep(0)
                if number % 7 == 0:
                    await sending[-1]
            await asyncio.gather(*sending)
            return number

        tasks = [asyncio.create_task(send(group)) for group in names]
        for queue_count in (2, 3, 1):
            before = len(broker.messages(TOPIC))
            await until(lambda before=before: len(broker.messages(TOPIC)) > before + 500)  # type: ignore[misc]
            broker.topics[TOPIC] = queue_count
        before = len(broker.messages(TOPIC))
        await until(lambda: len(broker.messages(TOPIC)) > before + 500)
        stop.set()
        counts = await asyncio.gather(*tasks)
    assert all(count > 0 for count in counts)
    stored = sorted(broker.messages(TOPIC), key=lambda record: record.physical_offset)
    for group, count in zip(names, counts, strict=True):
        own = [r.body for r in stored if r.properties["__SHARDINGKEY"] == group]
        assert own == numbers(count)


async def test_a_queue_that_refuses_and_stays_fails_its_order(
    cluster: MemoryCluster, sender: AsyncProducer
) -> None:
    cluster.answers["Send"] = MqError(Code.NO_PERMISSION, "closed")
    sending = [sender.send_async(message) for message in ordered("g", 5)]
    outcomes = await asyncio.gather(*sending, return_exceptions=True)
    assert {getattr(outcome, "code", None) for outcome in outcomes} == {Code.NO_PERMISSION}
    del cluster.answers["Send"]
    await sender.send(Message(TOPIC, b"open again", message_group="g"))


async def test_a_selected_queue_that_refuses_fails_its_order(
    cluster: MemoryCluster, sender: AsyncProducer, broker: MemoryBroker
) -> None:
    broker.topics[TOPIC] = 1
    sending = [sender.send_async(m, selector=second) for m in ordered("", 5)]
    outcomes = await asyncio.gather(*sending, return_exceptions=True)
    assert {getattr(outcome, "code", None) for outcome in outcomes} == {Code.QUEUE_NOT_EXIST}
