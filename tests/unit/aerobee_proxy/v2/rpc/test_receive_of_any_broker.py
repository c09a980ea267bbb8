"""A receive of a topic on several brokers: woken by any, and nothing leased in vain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from aerobee_cluster.receiving import BRIEF_VISIT_S, RETRY_S, VISIT_S
from aerobee_proxy.cluster.leasing.receive import LATE_S
from aerobee_proxy.cluster.leasing.receive_waiters import KEPT_POLLS, OLD_S, UNVISITED_S
from aerobee_wire.consume_order import ConsumeOrder
from support.proxy.public_requests import GROUP, TOPIC
from support.proxy.whole_cluster import WholeCluster

POLL_S = 8
A, B = "broker-a", "broker-b"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[WholeCluster]:
    cluster = await WholeCluster.begin(tmp_path, (A, B))
    cluster.topic(TOPIC.name, "MIXED")
    yield cluster
    assert not cluster.transport.defects
    await cluster.end()


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def put(cluster: WholeCluster, name: str, *bodies: bytes, group: str = "") -> None:
    properties = {"__SHARDINGKEY": group} if group else {}
    await cluster.brokers[name].send(TOPIC.name, *bodies, properties=properties)


async def received(cluster: WholeCluster, named: str, **change: Any) -> list[Any]:
    queue = d.MessageQueue(topic=TOPIC, broker=d.Broker(name=named), id=-1)
    request = s.ReceiveMessageRequest(group=GROUP, message_queue=queue, batch_size=16)
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = POLL_S
    request.MergeFrom(s.ReceiveMessageRequest(**change))
    answers = await cluster.ask("ReceiveMessage", request)
    assert answers[0].status.code in {Code.OK, Code.MESSAGE_NOT_FOUND}, answers[0].status
    return [answer.message for answer in answers[1:-1]]


def parked(cluster: WholeCluster, named: str, **change: Any) -> asyncio.Task[list[Any]]:
    return asyncio.create_task(received(cluster, named, **change))


async def ack(cluster: WholeCluster, message: Any) -> None:
    request = s.AckMessageRequest(group=GROUP, topic=TOPIC)
    request.entries.add(receipt_handle=message.system_properties.receipt_handle)
    [answer] = await cluster.ask("AckMessage", request)
    assert answer.status.code == Code.OK


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]


def leased(cluster: WholeCluster) -> int:
    """Messages on lease, at all brokers."""
    tables = (broker.broker.consuming.leases.table for broker in cluster.brokers.values())
    return sum(queue.leased_count for table in tables for queue in table.queues())


async def ordered(cluster: WholeCluster) -> None:
    for broker in cluster.brokers.values():
        await broker.group(GROUP.name, consume_order=ConsumeOrder.ON)


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("arrives_at", [A, B])
async def test_woken_by_any_broker(cluster: WholeCluster, arrives_at: str, fifo: bool) -> None:
    if fifo:
        await ordered(cluster)
    waiting = parked(cluster, A)
    await asyncio.sleep(1)
    await put(cluster, arrives_at, b"first")
    began = now_s()
    [message] = await waiting
    assert now_s() - began < 0.1 and message.body == b"first"
    await ack(cluster, message)
    assert not leased(cluster)


async def test_message_that_was_there_before_is_found(cluster: WholeCluster) -> None:
    await put(cluster, B, b"first")
    assert bodies(await received(cluster, A)) == [b"first"]
    assert now_s() < 0.1


async def test_poll_lasts_its_time(cluster: WholeCluster) -> None:
    assert await received(cluster, A) == []
    assert now_s() == pytest.approx(POLL_S, abs=0.1)


async def test_each_message_goes_to_one_receive(cluster: WholeCluster) -> None:
    """Of many that wait, also while both brokers get messages."""
    waiting = [parked(cluster, name, batch_size=1) for name in (A, B) * 50]
    await asyncio.sleep(1)
    wanted = [b"%d" % number for number in range(60)]
    await asyncio.gather(put(cluster, A, *wanted[:30]), put(cluster, B, *wanted[30:]))
    done, left = await asyncio.wait(waiting, timeout=2)
    assert sorted(body for task in done for body in bodies(task.result())) == sorted(wanted)
    assert (len(left), leased(cluster)) == (40, 60)
    assert not any(await asyncio.gather(*left))


@pytest.mark.parametrize("fifo", [False, True])
async def test_receives_that_wait_cost_brokers_one_call_each(
    cluster: WholeCluster, fifo: bool
) -> None:
    if fifo:
        await ordered(cluster)
    waiting = [parked(cluster, name) for name in (A, B) * 500]
    await asyncio.sleep(1)
    polls = [broker.broker.polls for broker in cluster.brokers.values()]
    assert [held.count for held in polls] == [1, 1]
    before = len(cluster.transport.calls)
    await asyncio.gather(*waiting)
    assert len(cluster.transport.calls) == before


async def test_message_that_comes_when_nobody_waits_any_more(cluster: WholeCluster) -> None:
    """Its broker still holds a pop of the receive that another broker answered."""
    waiting = parked(cluster, A)
    await asyncio.sleep(1)
    await put(cluster, A, b"first")
    [first] = await waiting
    await put(cluster, B, b"second")
    await asyncio.sleep(0.1)
    assert leased(cluster) == 1
    [second] = await received(cluster, A)
    assert second.body == b"second" and second.system_properties.delivery_attempt == 1
    await ack(cluster, first)
    await ack(cluster, second)


async def test_one_broker_is_asked_by_pop_alone(cluster: WholeCluster) -> None:
    cluster.brokers[B].tables.topics.remove(TOPIC.name)
    assert await received(cluster, A) == []
    await put(cluster, A, b"first")
    assert bodies(await received(cluster, A)) == [b"first"]
    asked = [call for call in cluster.transport.calls if call[1] in {"Pop", "Notification"}]
    assert asked == [(A, "Pop"), (A, "Pop")]


async def test_message_of_a_client_that_leaves_goes_to_the_next(cluster: WholeCluster) -> None:
    """Whenever it leaves: before the message comes, at its arrival, while it is popped. Neither a
    lease nor a delivery attempt is lost."""
    for turns in range(60):
        leaving, staying = parked(cluster, A), parked(cluster, A)
        await asyncio.sleep(1)
        sending = asyncio.create_task(put(cluster, B, b"%d" % turns))
        for _ in range(turns):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        getting = staying if leaving.cancelled() else leaving
        [message] = await asyncio.wait_for(getting, timeout=0.5)
        staying.cancel()
        await sending
        assert message.system_properties.delivery_attempt == 1
        await ack(cluster, message)
        assert not leased(cluster)


async def test_no_broker_waits_because_clients_name_others(cluster: WholeCluster) -> None:
    await put(cluster, B, b"mine")
    for _ in range(100):
        await put(cluster, A, *[b"other"] * 2)
        if bodies(await received(cluster, A, batch_size=1)) == [b"mine"]:
            break
        await asyncio.sleep(0.05)
    assert now_s() < 2 * UNVISITED_S


async def test_broker_that_is_away_is_left_out(cluster: WholeCluster) -> None:
    await received(cluster, A)
    for away, there in ((A, B), (B, A)):
        cluster.transport.away = {away}
        began = now_s()
        waiting = parked(cluster, A)
        await asyncio.sleep(1)
        await put(cluster, there, b"first")
        assert bodies(await waiting) == [b"first"] and now_s() - began < 1.1
        cluster.transport.away = set()
        await asyncio.sleep(3 * RETRY_S)


async def test_broker_that_returns_is_heard_again(cluster: WholeCluster) -> None:
    await received(cluster, A)
    cluster.transport.away = {B}
    waiting = parked(cluster, A)
    await asyncio.sleep(1)
    await put(cluster, B, b"first")
    cluster.transport.away = set()
    assert bodies(await waiting) == [b"first"]
    assert now_s() < POLL_S + 1 + 3 * RETRY_S


async def test_broker_that_hangs_delays_one_receive_only(cluster: WholeCluster) -> None:
    await put(cluster, A, b"of a")
    flusher = cluster.brokers[A].flusher
    flusher.hold()
    began_s = now_s()
    for number in range(40):
        body = b"%d" % number
        await put(cluster, B, body)
        assert [message.body for message in await received(cluster, A)] == [body]
        await asyncio.sleep(0.5)
    assert now_s() - began_s < 40 * (0.5 + BRIEF_VISIT_S) + VISIT_S
    flusher.let_go()


@pytest.mark.parametrize("fifo", [False, True])
async def test_broker_that_has_hung_and_stays_slow_is_heard(
    cluster: WholeCluster, fifo: bool
) -> None:
    """It takes longer than the brief time for which receives wait after the hang."""
    if fifo:
        await ordered(cluster)
    await put(cluster, A, b"of a")
    flusher = cluster.brokers[A].flusher
    flusher.hold()
    await put(cluster, B, b"of b")
    assert bodies(await received(cluster, A)) == [b"of b"]

    async def flush_slowly() -> None:
        while True:
            flusher.let_go()
            flusher.hold()
            await asyncio.sleep(4 * BRIEF_VISIT_S)

    slow = asyncio.create_task(flush_slowly())
    assert bodies(await received(cluster, A)) == [b"of a"]
    slow.cancel()
    flusher.let_go()


async def test_same_attempt_gets_the_same_lease(cluster: WholeCluster) -> None:
    """Also when the other broker has messages by now, and through another proxy."""
    await ordered(cluster)
    waiting = parked(cluster, A, attempt_id="x")
    await asyncio.sleep(1)
    await put(cluster, B, b"first", group="g")
    [first] = await waiting
    await put(cluster, A, b"second", group="h")
    for asked in (cluster, cluster.another_proxy()):
        [again] = await received(asked, A, attempt_id="x")
        assert again.body == b"first" and again.system_properties.delivery_attempt == 1
        handles = (message.system_properties.receipt_handle for message in (first, again))
        assert len(set(handles)) == 1
    assert bodies(await received(cluster, B, attempt_id="y")) == [b"second"]


async def test_order_holds_across_receives(cluster: WholeCluster) -> None:
    await ordered(cluster)
    await put(cluster, B, b"1", b"2", b"3", group="g")
    assert bodies(await received(cluster, A, batch_size=1)) == [b"1"]
    assert await received(cluster, B, batch_size=1) == []


async def test_broker_without_notifications_is_heard_where_it_is_named(
    cluster: WholeCluster,
) -> None:
    """Also while that is found out; and anywhere once it is updated."""
    await ordered(cluster)
    notification = cluster.transport.methods.pop((B, "Notification"))
    for _ in range(2):
        waiting, elsewhere = parked(cluster, B), parked(cluster, A)
        await asyncio.sleep(1)
        await put(cluster, B, b"first")
        began = now_s()
        [message] = await waiting
        assert now_s() - began < 0.1
        await ack(cluster, message)
        assert await elsewhere == []
    cluster.transport.methods[B, "Notification"] = notification
    await asyncio.sleep(OLD_S)
    waiting = parked(cluster, A)
    await asyncio.sleep(1)
    await put(cluster, B, b"second")
    assert bodies(await waiting) == [b"second"]


@pytest.mark.parametrize("fifo", [False, True])
async def test_polls_of_filters_that_no_receive_uses_any_more_are_ended(
    cluster: WholeCluster, fifo: bool
) -> None:
    """A client uses a new filter for each short receive. A former one works again."""
    if fifo:
        await ordered(cluster)
    for number in range(3 * KEPT_POLLS):
        request = s.ReceiveMessageRequest(group=GROUP, batch_size=16)
        request.message_queue.MergeFrom(d.MessageQueue(topic=TOPIC, broker=d.Broker(name=A), id=-1))
        request.filter_expression.expression = f"t{number}"
        request.invisible_duration.seconds = 60
        request.long_polling_timeout.FromMilliseconds(200)
        assert len(await cluster.ask("ReceiveMessage", request)) == 2
    await asyncio.sleep(LATE_S + 0.1)
    for broker in cluster.brokers.values():
        assert 0 < broker.broker.polls.count <= KEPT_POLLS + 1
    first = d.FilterExpression(expression="t0")
    waiting = parked(cluster, A, filter_expression=first)
    await asyncio.sleep(1)
    properties = {"TAGS": "t0"}
    await cluster.brokers[B].send(TOPIC.name, b"x", properties=properties)
    assert bodies(await waiting) == [b"x"]


async def test_names_that_clients_make_up_are_forgotten(cluster: WholeCluster) -> None:
    for number in range(5):
        assert await received(cluster, f"made-up-{number}") == []
    [waiters] = cluster.proxy.receiver._waiters._waiters.values()
    assert set(waiters._brokers) == {A, B}


async def test_a_proxy_that_stops_answers_polls_with_nothing(cluster: WholeCluster) -> None:
    """At once, and those that come meanwhile; what is sent then is leased by nobody."""
    started_s = now_s()
    polls = [parked(cluster, A), parked(cluster, B)]
    await asyncio.sleep(1)
    cluster.proxy.end_long_calls()
    assert await asyncio.gather(*polls) == [[], []]
    assert await received(cluster, A) == []
    assert now_s() - started_s < POLL_S / 2
    await put(cluster, A, b"later")
    assert leased(cluster) == 0
