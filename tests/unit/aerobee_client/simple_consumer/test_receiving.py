"""Receives of a simple consumer: from any broker, none starved, nothing leased in vain."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aerobee_client.errors import ClientClosed
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.options.consumer import Sql
from aerobee_cluster.receiving import HELD_S, VISIT_S
from aerobee_wire.status import Code, MqError
from support.client.leasing import (
    GROUP,
    LEASE,
    NO_WAIT,
    TOPIC,
    Leasing,
    bodies,
    deliveries,
    seconds,
)
from support.clock.virtual_loop import run_ready_tasks
from support.codes import raises_code

NUMBERS = [b"%d" % number for number in range(40)]


async def test_what_is_not_acknowledged_comes_again(leasing: Leasing) -> None:
    consumer = await leasing.started()
    await leasing.send(b"1", b"2")
    await leasing.send(b"3", queue_id=1)
    first = await consumer.receive(32, LEASE)
    assert sorted(deliveries(first)) == [(b"1", 1), (b"2", 1), (b"3", 1)]
    assert not await consumer.receive(32, LEASE, seconds(9))
    await consumer.ack([message for message in first if message.body != b"2"])
    again = await consumer.receive(32, LEASE)
    assert deliveries(again) == [(b"2", 2)] and again[0].reconsume_times == 1


async def test_a_message_says_where_it_is_and_until_when_it_is_leased(leasing: Leasing) -> None:
    consumer = await leasing.started()
    await leasing.send(b"x", TAGS="late", UNIQ_KEY="ID")
    [message] = await consumer.receive(1, LEASE)
    assert (message.topic, message.broker_name, message.queue_id) == (TOPIC, "a", 0)
    assert (message.tag, message.message_id, message.queue_offset) == ("late", "ID", 0)
    popped_ms = message.handle.pop_time_ms
    assert message.leased_until.timestamp() * 1_000 == popped_ms + 10_000


@pytest.mark.parametrize("late", ["a", "b"])
async def test_a_waiting_receive_wakes_for_a_message_on_any_broker(two: Leasing, late: str) -> None:
    consumer = await two.started()
    loop = asyncio.get_running_loop()
    waiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(15)))
    await asyncio.sleep(3)
    await two.send(b"x", to=late)
    began_s = loop.time()
    assert deliveries(await waiting) == [(b"x", 1)]
    assert loop.time() - began_s < 0.1


async def test_no_broker_starves_behind_one_that_always_has_messages(two: Leasing) -> None:
    consumer = await two.started()
    await two.send(*NUMBERS, to="a")
    await consumer.receive(1, LEASE)
    await two.send(b"of b", to="b")
    got = [bodies(await consumer.receive(1, LEASE)) for _ in range(4)]
    assert [b"of b"] in got


async def test_all_topics_are_waited_for_or_only_the_one_that_is_named(leasing: Leasing) -> None:
    leasing.topic("trains")
    consumer = await leasing.started(TOPIC, "trains")
    waiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(5)))
    of_one = asyncio.create_task(consumer.receive(32, LEASE, seconds(5), topic=TOPIC))
    await run_ready_tasks()
    await leasing.send(b"x", topic="trains")
    assert [message.topic for message in await waiting] == ["trains"]
    assert not await of_one


async def test_receives_that_wait_share_one_call_at_each_broker(two: Leasing) -> None:
    consumer = await two.started()
    waiting = [asyncio.create_task(consumer.receive(1, LEASE, seconds(15))) for _ in range(50)]
    await asyncio.sleep(1)
    held = sum(request.poll_duration_ms > 0 for request in two.transport.of("Pop"))
    assert held == 2
    await two.send(*NUMBERS, to="a")
    await two.send(*NUMBERS, to="b")
    found = [bodies(messages) for messages in await asyncio.gather(*waiting)]
    assert sum(map(len, found)) == 50 and [] not in found


async def test_receives_of_different_sizes_share_what_a_held_call_brings(leasing: Leasing) -> None:
    consumer = await leasing.started()
    large = asyncio.create_task(consumer.receive(8, LEASE, seconds(15)))
    await run_ready_tasks()
    small = [asyncio.create_task(consumer.receive(2, LEASE, seconds(15))) for _ in range(2)]
    await run_ready_tasks()
    large.cancel()
    await run_ready_tasks()
    await leasing.send(*NUMBERS[:5])
    found = [deliveries(await one) for one in small]
    assert [len(one) for one in found] == [2, 2]
    await run_ready_tasks()
    rest = deliveries(await consumer.receive(8, LEASE, NO_WAIT))
    assert sorted((*found[0], *found[1], *rest)) == [(body, 1) for body in NUMBERS[:5]]


async def test_no_call_is_held_for_longer_than_somebody_waits(leasing: Leasing) -> None:
    consumer, other = await leasing.started(), await leasing.started()
    for size in range(1, 9):
        assert not await consumer.receive(size, LEASE, seconds(1))
    waiting = asyncio.create_task(other.receive(8, LEASE, seconds(5)))
    await asyncio.sleep(0.1)
    await leasing.send(b"x")
    assert deliveries(await waiting) == [(b"x", 1)]
    assert not leasing.transport.of("ChangeInvisibleDuration"), "leased once, by who waits"


async def test_a_receive_that_is_cancelled_gives_back_uncounted(leasing: Leasing) -> None:
    consumer = await leasing.started()
    waiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(15)))
    await run_ready_tasks()
    waiting.cancel()
    await run_ready_tasks()
    await leasing.send(b"x")  # for the held call, whose receive is gone
    await asyncio.sleep(1)
    assert deliveries(await consumer.receive(32, LEASE, NO_WAIT)) == [(b"x", 1)]


async def test_a_receive_that_is_cancelled_at_its_broker_gives_back(
    leasing: Leasing,
) -> None:
    consumer = await leasing.started()
    await leasing.send(b"x")
    leasing.brokers["a"].flusher.hold()  # the lease is not durable yet
    visiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(15)))
    await run_ready_tasks()
    visiting.cancel()
    await run_ready_tasks()
    leasing.brokers["a"].flusher.let_go()
    await asyncio.sleep(0.1)
    assert deliveries(await consumer.receive(32, LEASE, NO_WAIT)) == [(b"x", 1)]


async def test_what_comes_late_goes_to_a_receive_that_waits(two: Leasing) -> None:
    consumer = await two.started()
    await two.send(b"x", to="a")
    two.brokers["a"].flusher.hold()
    loop = asyncio.get_running_loop()
    waiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(15)))
    await asyncio.sleep(VISIT_S + 0.5)
    began_s = loop.time()
    two.brokers["a"].flusher.let_go()
    assert deliveries(await waiting) == [(b"x", 1)]
    assert loop.time() - began_s < 0.1


async def test_a_broker_that_is_away_is_left_out_and_tried_again(two: Leasing) -> None:
    consumer = await two.started()
    two.transport.away.add("a")
    await two.send(b"of b", to="b")
    assert bodies(await consumer.receive(32, LEASE)) == [b"of b"]
    await two.send(b"of a", to="a")
    waiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(15)))
    await asyncio.sleep(5)
    two.transport.away.clear()
    assert bodies(await waiting) == [b"of a"]


async def test_a_broker_that_hangs_holds_up_one_receive_only(two: Leasing) -> None:
    consumer, loop = await two.started(), asyncio.get_running_loop()
    await two.send(b"of a", to="a")
    two.brokers["a"].flusher.hold()
    began_s, got = loop.time(), []
    for number in range(40):
        await two.send(b"%d" % number, to="b")
        got += await consumer.receive(1, LEASE, seconds(5))
        await asyncio.sleep(0.5)
    assert len(got) == 40
    assert loop.time() - began_s < 40 * 0.5 + VISIT_S + 0.5
    two.brokers["a"].flusher.let_go()
    for number in range(6):
        await two.send(b"%d" % number, to="b")
        got += await consumer.receive(1, LEASE, seconds(5))
        await asyncio.sleep(1)
    assert b"of a" in bodies(got)


async def test_where_every_broker_fails_until_the_end_the_receive_does(two: Leasing) -> None:
    consumer = await two.started()
    two.transport.away |= {"a", "b"}
    loop, began_s = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    with raises_code(Code.BROKER_UNREACHABLE) as caught:
        await consumer.receive(32, LEASE, seconds(5))
    assert caught.value.retryable and loop.time() - began_s >= 5
    two.transport.away.remove("b")
    assert not await consumer.receive(32, LEASE, seconds(5))


def refuse(*_: object) -> None:
    raise MqError(Code.NO_PERMISSION, "the user has no right to this")


async def test_receive_without_a_right_fails_at_once(leasing: Leasing) -> None:
    consumer = await leasing.started()
    leasing.transport.answers["GetTopicRoute"] = refuse  # by the name server
    consumer.subscribe("secret")
    async with asyncio.timeout(1):
        with raises_code(Code.NO_PERMISSION):
            await consumer.receive(32, LEASE, seconds(60), topic="secret")


async def test_right_that_is_lost_ends_all_waiting_receives(leasing: Leasing) -> None:
    consumer = await leasing.started()
    waiting = [asyncio.create_task(consumer.receive(32, LEASE, seconds(60))) for _ in range(2)]
    await asyncio.sleep(3)
    error = MqError(Code.NO_PERMISSION, "the user has no right to this")
    leasing.transport.errors |= {"Pop": error, "Notification": error}
    async with asyncio.timeout(HELD_S):  # until the long poll in progress ends
        for task in waiting:
            with raises_code(Code.NO_PERMISSION):
                await task


async def test_a_topic_is_received_from_as_soon_as_it_exists(leasing: Leasing) -> None:
    consumer = await leasing.started("later")
    waiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(15)))
    await asyncio.sleep(3)
    leasing.topic("later")
    await leasing.send(b"x", topic="later")
    assert bodies(await waiting) == [b"x"]


async def test_a_topic_that_does_not_exist_is_an_error(leasing: Leasing) -> None:
    consumer = await leasing.started("missing")
    with raises_code(Code.TOPIC_NOT_EXIST):
        await consumer.receive(32, LEASE, seconds(2))


async def test_a_topic_that_does_not_exist_is_logged_once(
    leasing: Leasing, caplog: pytest.LogCaptureFixture
) -> None:
    """Also a topic that is subscribed after the start."""
    consumer = await leasing.started("early")
    consumer.subscribe("late")
    for _ in range(2):
        with raises_code(Code.TOPIC_NOT_EXIST):
            await consumer.receive(32, LEASE, seconds(2))
    logged = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.split(":")[0] for line in logged] == [
        f"{GROUP} waits for topic {topic}" for topic in ("early", "late")
    ]


async def test_only_the_tags_of_the_expression_come(leasing: Leasing) -> None:
    consumer = await leasing.started(expression="UA || AA")
    for tag in ("UA", "DL", "AA"):
        await leasing.send(tag.encode(), TAGS=tag)
    assert bodies(await consumer.receive(32, LEASE)) == [b"UA", b"AA"]
    consumer.subscribe(TOPIC, "DL")
    await leasing.send(b"new", TAGS="DL")
    assert bodies(await consumer.receive(32, LEASE)) == [b"new"]
    consumer.unsubscribe(TOPIC)
    with raises_code(Code.SUBSCRIPTION_NOT_EXIST):
        await consumer.receive(32, LEASE)


async def test_only_what_meets_an_sql92_condition_comes(leasing: Leasing) -> None:
    broken = leasing.consumer()
    broken.subscribe(TOPIC, Sql("delay >"))
    with raises_code(Code.SUBSCRIPTION_PARSE_FAILED):
        await broken.start()
    consumer = leasing.consumer()
    consumer.subscribe(TOPIC, Sql("delay > 60"))
    await leasing.stack.enter_async_context(consumer)
    for delay in ("59", "61"):
        await leasing.send(delay.encode(), delay=delay)
    assert bodies(await consumer.receive(32, LEASE)) == [b"61"]
    with raises_code(Code.SUBSCRIPTION_PARSE_FAILED):
        await consumer.subscribe(TOPIC, Sql("= 1"))
    await consumer.subscribe(TOPIC, Sql("delay < 60"))
    await leasing.send(b"5", delay="5")
    assert bodies(await consumer.receive(32, LEASE)) == [b"5"]
    [client] = leasing.brokers["a"].broker.clients.all()
    assert client.consumers[GROUP].subscriptions[TOPIC].filter.expression == "delay < 60"


async def test_bad_input_is_refused_before_any_call(leasing: Leasing) -> None:
    consumer = leasing.consumer()
    with pytest.raises(ClientClosed):
        await consumer.receive()
    await leasing.stack.enter_async_context(consumer)
    calls = len(leasing.transport.requests)
    for count, lease, wait in (
        (0, LEASE, NO_WAIT),
        (33, LEASE, NO_WAIT),
        (1, NO_WAIT, NO_WAIT),
        (1, seconds(43_201), NO_WAIT),
        (1, LEASE, seconds(-1)),
    ):
        with raises_code(Code.INVALID_PARAMETER):
            await consumer.receive(count, lease, wait)
    with raises_code(Code.INVALID_PARAMETER):
        await consumer.receive(attempt_id="mine")
    with raises_code(Code.SUBSCRIPTION_NOT_EXIST):
        await consumer.receive(topic="other")
    assert len(leasing.transport.requests) == calls


async def test_brokers_know_the_consumer_until_it_closes(leasing: Leasing) -> None:
    before = asyncio.all_tasks()
    async with leasing.consumer(expression="UA") as consumer:
        clients = leasing.brokers["a"].broker.clients
        [client] = clients.all()
        member = client.consumers[GROUP]
        assert member.consume_type.name == "POP" and list(member.subscriptions) == [TOPIC]
        waiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(15)))
        await run_ready_tasks()
    with pytest.raises(ClientClosed):
        await waiting
    assert not clients.all()
    assert asyncio.all_tasks() <= before


async def test_a_close_gives_back_what_is_on_its_way(leasing: Leasing) -> None:
    async with leasing.consumer() as consumer:
        await leasing.send(b"x")
        leasing.brokers["a"].flusher.hold()
        visiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(15)))
        await run_ready_tasks()
        closing = asyncio.create_task(consumer.close())
        await run_ready_tasks()
        leasing.brokers["a"].flusher.let_go()
        await closing
        with pytest.raises(ClientClosed):
            await visiting
    other = await leasing.started()
    assert deliveries(await other.receive(32, LEASE, NO_WAIT)) == [(b"x", 1)]


@pytest.mark.parametrize("fifo", [False, True])
async def test_a_close_ends_held_calls_and_gives_back_what_they_leased(
    two: Leasing, fifo: bool
) -> None:
    loop, began_s = asyncio.get_running_loop(), 0.0
    async with two.consumer(fifo=fifo) as consumer:
        waiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(15)))
        await run_ready_tasks()
        two.brokers["a"].flusher.hold()  # what is leased is not durable yet
        sending = asyncio.create_task(two.send(b"x", to="a"))
        await run_ready_tasks()
        two.brokers["a"].flusher.let_go()
        await sending
        waiting.cancel()
        began_s = loop.time()
    assert loop.time() - began_s < (1.5 if fifo else 0.1)
    assert not two.brokers["a"].broker.polls.parked_pops
    other = await two.started()
    await asyncio.sleep(0.1)
    found = await other.receive(32, LEASE, seconds(1))
    assert deliveries(found) == [(b"x", 1)]


async def test_a_broker_without_notifications_is_looked_at_once_a_second(tmp_path: Path) -> None:
    leasing = await Leasing.begin(tmp_path)
    del leasing.transport.methods["a", "Notification"]
    consumer = await leasing.started(fifo=True)
    waiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(15)))
    await asyncio.sleep(5)
    assert leasing.transport.count("Pop") < 8
    await leasing.send(b"x")
    got: list[LeasedMessage] = await waiting
    assert bodies(got) == [b"x"]
    await leasing.end()
