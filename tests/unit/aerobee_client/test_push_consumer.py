"""A group over a cluster in memory: consuming, failing, sharing, coming back."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from aerobee.broker.v1 import message_pb2

from aerobee_client.consume_result import ConsumeResult, DeadLetter, ReconsumeLater
from aerobee_client.consuming import concurrent_consumption, membership, offset_store, puller
from aerobee_client.errors import ClientClosed, NamesrvUnreachable
from aerobee_client.message import ReceivedMessage
from aerobee_client.options import ConsumeFromWhere
from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_wire import properties, record
from aerobee_wire.status import Code, MqError
from support.client.memory_cluster import STORE_TIME_MS, MemoryBroker, MemoryCluster
from support.clock.polling import until

NAMESRV = "10.0.0.1:9876"
TOPIC = "flights"
GROUP = "g"
RETRY = "%RETRY%g"
DEAD = "%DLQ%g"

Consumers = Callable[..., Any]


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker("a", "10.0.0.11:10911")
    broker.create(TOPIC, 4)
    return broker


@pytest.fixture
def cluster(broker: MemoryBroker) -> MemoryCluster:
    return MemoryCluster(broker)


@pytest.fixture
async def join(cluster: MemoryCluster) -> AsyncIterator[Consumers]:
    """Starts a member of the group; all leave at the end."""
    async with AsyncExitStack() as stack:

        async def start(
            listener: Any = None, *, expression: str = "*", **settings: Any
        ) -> AsyncPushConsumer:
            consumer = AsyncPushConsumer(
                GROUP, listener, namesrv=NAMESRV, transport=cluster, **settings
            )
            consumer.subscribe(TOPIC, expression)
            return await stack.enter_async_context(consumer)

        yield start


def fill(broker: MemoryBroker, count: int, *, topic: str = TOPIC, **names: str) -> None:
    queue_count = broker.topics[topic]
    for n in range(count):
        broker.append(topic, n % queue_count, b"%d" % n, properties.encode(names))


def committed(broker: MemoryBroker, topic: str = TOPIC) -> int:
    """Sum of the group's stored offsets."""
    return sum(offset for (_, name, _), offset in broker.offsets.items() if name == topic)


async def test_every_message_reaches_the_listener_once(
    broker: MemoryBroker, join: Consumers
) -> None:
    fill(broker, 1_000)
    seen: list[bytes] = []
    consumer = await join(lambda message: seen.append(message.body))
    await until(lambda: len(seen) >= 1_000)
    await consumer.close()
    assert Counter(seen) == Counter(b"%d" % n for n in range(1_000))
    assert committed(broker) == 1_000


async def test_coroutine_listener_consumes_too(broker: MemoryBroker, join: Consumers) -> None:
    seen: list[bytes] = []
    running: list[int] = []
    together: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        running.append(1)
        await asyncio.sleep(0)
        together.append(len(running))
        running.pop()
        seen.append(message.body)

    await join(listen, concurrency=3)
    fill(broker, 50)
    await broker_wakes(broker)
    await until(lambda: len(seen) == 50)
    assert max(together) <= 3


async def broker_wakes(broker: MemoryBroker) -> None:
    async with broker.arrived:
        broker.arrived.notify_all()


async def test_messages_that_arrive_later_wake_the_pull(
    broker: MemoryBroker, join: Consumers
) -> None:
    seen: list[bytes] = []
    await join(lambda message: seen.append(message.body))
    fill(broker, 10)
    await broker_wakes(broker)
    await until(lambda: len(seen) == 10)


async def test_batch_listener_gets_lists_up_to_its_size(
    broker: MemoryBroker, join: Consumers
) -> None:
    fill(broker, 100)
    sizes: list[int] = []
    await join(
        batch_listener=lambda messages: sizes.append(len(messages)),
        consume_message_batch_max_size=8,
    )
    await until(lambda: sum(sizes) == 100)
    assert max(sizes) == 8


async def test_only_tags_of_the_expression_are_delivered_though_the_broker_sends_more(
    broker: MemoryBroker, join: Consumers
) -> None:
    """Brokers compare hash codes; "Aa" and "BB" have the same one in Java."""
    for tag in ("Aa", "BB", "UA"):
        fill(broker, 20, TAGS=tag)
    fill(broker, 20)
    seen: list[str] = []
    consumer = await join(lambda message: seen.append(message.tag), expression="Aa || UA")
    await until(lambda: len(seen) == 40)
    await consumer.close()
    assert Counter(seen) == {"Aa": 20, "UA": 20}
    assert committed(broker) == 80  # those of other tags are passed, too


async def test_queue_of_which_nothing_matches_advances(
    broker: MemoryBroker, join: Consumers
) -> None:
    fill(broker, 40, TAGS="UA")
    consumer = await join(print, expression="DL")
    await until(lambda: committed(broker) == 40)  # by the next pulls
    assert len(owned(consumer)) == 4


async def test_failure_is_retried_with_its_reason_under_the_origin_topic(
    broker: MemoryBroker, join: Consumers
) -> None:
    fill(broker, 1, KEYS="UA1545")
    seen: list[ReceivedMessage] = []

    def listen(message: ReceivedMessage) -> None:
        seen.append(message)
        if message.reconsume_times == 0:
            raise ValueError("no arrival time")

    await join(listen)
    await until(lambda: len(seen) == 2)
    retried = seen[1]
    assert (retried.topic, retried.stored_topic, retried.reconsume_times) == (TOPIC, RETRY, 1)
    assert retried.keys == ("UA1545",)
    (stored,) = broker.messages(RETRY)
    assert stored.properties["DLQ_REASON"] == "ValueError"
    assert stored.properties["DLQ_REASON_DESCRIPTION"] == "no arrival time"


async def test_message_is_dead_lettered_after_its_attempts(
    broker: MemoryBroker, join: Consumers
) -> None:
    broker.max_reconsume_times = 2
    fill(broker, 5)
    attempts: Counter[bytes] = Counter()

    def listen(message: ReceivedMessage) -> ConsumeResult:
        attempts[message.body] += 1
        return ConsumeResult.RECONSUME_LATER

    await join(listen)
    await until(lambda: len(broker.messages(DEAD)) == 5)
    assert set(attempts.values()) == {3}


async def test_listener_may_choose_level_or_dead_letter(
    broker: MemoryBroker, cluster: MemoryCluster, join: Consumers
) -> None:
    fill(broker, 2)

    def listen(message: ReceivedMessage) -> None:
        if message.reconsume_times:
            return
        if message.body == b"0":
            raise ReconsumeLater("busy", delay_level=5)
        raise DeadLetter("hopeless")

    await join(listen)
    await until(lambda: broker.messages(DEAD))
    await until(lambda: broker.messages(RETRY))
    entries = [entry for request in cluster.requests("SendBack") for entry in request.entries]
    assert {entry.delay_level for entry in entries} == {5, -1}
    assert [record.body for record in broker.messages(DEAD)] == [b"1"]


async def test_failures_that_wait_together_go_back_together(
    broker: MemoryBroker, cluster: MemoryCluster, join: Consumers
) -> None:
    fill(broker, 200)
    consumer = await join(lambda message: ConsumeResult.DEAD_LETTER)
    await until(lambda: len(broker.messages(DEAD)) == 200)
    assert len(cluster.requests("SendBack")) < 100
    await consumer.close()
    assert committed(broker) == 200


async def test_message_that_the_broker_does_not_take_back_is_consumed_again_here(
    broker: MemoryBroker, cluster: MemoryCluster, join: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent_consumption, "CONSUME_AGAIN_S", 0.01)

    def refuse(address: str, request: Any) -> None:
        raise MqError(Code.NO_PERMISSION, "the broker is not writable")

    cluster.answers["SendBack"] = refuse
    fill(broker, 1)
    times: list[int] = []

    def listen(message: ReceivedMessage) -> None:
        times.append(message.reconsume_times)
        if len(times) < 3:
            raise ValueError("not yet")

    consumer = await join(listen)
    await until(lambda: len(times) == 3)
    await consumer.close()
    assert times == [0, 1, 2]
    assert committed(broker) == 1
    assert not broker.messages(RETRY)


async def test_members_share_the_queues_and_take_over_from_one_that_leaves(
    broker: MemoryBroker, join: Consumers
) -> None:
    first = await join(print)
    await until(lambda: len(owned(first)) == 4)
    second = await join(print)
    await until(lambda: len(owned(first)) == 2 and len(owned(second)) == 2)
    assert owned(first) | owned(second) == {0, 1, 2, 3}
    await first.close()
    await until(lambda: len(owned(second)) == 4)


def owned(consumer: AsyncPushConsumer) -> set[int]:
    return {queue.queue_id for queue in consumer.queues if queue.topic == TOPIC}


async def test_group_goes_on_where_it_stopped(broker: MemoryBroker, join: Consumers) -> None:
    fill(broker, 40)
    seen: list[bytes] = []
    consumer = await join(lambda message: seen.append(message.body))
    await until(lambda: len(seen) == 40)
    await consumer.close()
    fill(broker, 8)
    await join(lambda message: seen.append(message.body))
    await until(lambda: len(seen) == 48)
    assert committed(broker) >= 40


@pytest.mark.parametrize(
    ("where", "first"),
    [
        (ConsumeFromWhere.FIRST_OFFSET, 5),
        (ConsumeFromWhere.LAST_OFFSET, 10),
        (ConsumeFromWhere.TIMESTAMP, 7),
    ],
)
async def test_group_without_offset_begins_where_it_was_told(
    broker: MemoryBroker, join: Consumers, where: ConsumeFromWhere, first: int
) -> None:
    broker.create("one", 1)
    fill(broker, 10, topic="one")
    broker.min_offsets["one", 0] = 5
    size = broker.physical_offset // 10
    consumer = AsyncPushConsumer(
        GROUP,
        print,
        namesrv=NAMESRV,
        transport=MemoryCluster(broker),
        consume_from_where=where,
        consume_timestamp_ms=STORE_TIME_MS + 7 * size,
    )
    consumer.subscribe("one")
    async with consumer:
        pass
    assert broker.offsets[GROUP, "one", 0] >= first
    (pull, *_) = [
        request
        for request in consumer_requests(consumer)
        if request.topic == "one" and request.queue_id == 0
    ]
    assert pull.queue_offset == first


def consumer_requests(consumer: AsyncPushConsumer) -> list[Any]:
    transport = consumer._transport
    assert isinstance(transport, MemoryCluster)
    return transport.requests("Pull")


async def test_last_offset_misses_nothing_of_a_topic_that_never_lost_a_message(
    broker: MemoryBroker, join: Consumers
) -> None:
    fill(broker, 8)
    seen: list[bytes] = []
    await join(
        lambda message: seen.append(message.body),
        consume_from_where=ConsumeFromWhere.LAST_OFFSET,
    )
    await until(lambda: len(seen) == 8)


async def test_reset_of_the_group_is_followed(broker: MemoryBroker, join: Consumers) -> None:
    fill(broker, 8)
    seen: list[bytes] = []
    await join(lambda message: seen.append(message.body))
    await until(lambda: len(seen) == 8)
    for queue_id in range(4):
        broker.moved[GROUP, TOPIC, queue_id] = 0
    await broker_wakes(broker)
    await until(lambda: len(seen) == 16)


async def test_consumer_survives_a_broker_that_dies_and_comes_back(
    broker: MemoryBroker, cluster: MemoryCluster, join: Consumers
) -> None:
    seen: list[bytes] = []
    consumer = await join(lambda message: seen.append(message.body))
    fill(broker, 20)
    await broker_wakes(broker)
    await until(lambda: len(seen) == 20)
    await cluster.kill(broker)
    fill(broker, 20)
    cluster.revive(broker)
    await until(lambda: len(seen) >= 40)
    await until(lambda: broker.members(GROUP))
    assert len(owned(consumer)) == 4
    assert Counter(seen) == {b"%d" % n: 2 for n in range(20)}


async def test_consumer_survives_name_servers_that_are_silent(
    broker: MemoryBroker, cluster: MemoryCluster, join: Consumers
) -> None:
    seen: list[bytes] = []
    await join(lambda message: seen.append(message.body))
    cluster.down.add(NAMESRV)
    await cluster.kill(broker)
    cluster.revive(broker)
    fill(broker, 4)
    await until(lambda: len(seen) == 4)


async def test_topic_that_appears_later_is_found(
    broker: MemoryBroker, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "REBALANCE_RETRY_S", 0.05)
    seen: list[bytes] = []
    consumer = AsyncPushConsumer(
        GROUP,
        lambda message: seen.append(message.body),
        namesrv=NAMESRV,
        transport=cluster,
    )
    consumer.subscribe("later")
    async with consumer:
        broker.create("later", 1)
        fill(broker, 3, topic="later")
        await until(lambda: len(seen) == 3)


async def test_subscription_may_change_while_it_runs(broker: MemoryBroker, join: Consumers) -> None:
    broker.create("more", 1)
    fill(broker, 3, topic="more")
    seen: list[str] = []
    consumer = await join(lambda message: seen.append(message.topic))
    consumer.subscribe("more")
    await until(lambda: seen == ["more"] * 3)
    consumer.unsubscribe("more")
    await until(lambda: not any(queue.topic == "more" for queue in consumer.queues))
    assert len(owned(consumer)) == 4


async def test_close_waits_for_the_listener_and_keeps_what_it_did(
    broker: MemoryBroker, join: Consumers
) -> None:
    fill(broker, 40)
    begun = threading.Event()
    finish = threading.Event()
    seen: list[bytes] = []

    def listen(message: ReceivedMessage) -> None:
        begun.set()
        finish.wait(10)
        seen.append(message.body)

    consumer = await join(listen, concurrency=4)
    await until(begun.is_set)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0.05)
    assert not closing.done() and broker.clients
    finish.set()
    await closing
    assert 1 <= len(seen) <= 8  # those that ran, and no further ones
    assert not broker.clients and not consumer.queues
    assert committed(broker) <= len(seen)


async def test_close_gives_up_on_a_listener_that_does_not_end(
    broker: MemoryBroker, join: Consumers
) -> None:
    fill(broker, 1)
    begun = asyncio.Event()

    async def listen(message: ReceivedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    consumer = await join(listen)
    await begun.wait()
    await consumer.close(timedelta(milliseconds=10))
    assert committed(broker) == 0


async def test_message_whose_listener_takes_too_long_is_given_back(
    broker: MemoryBroker, cluster: MemoryCluster, join: Consumers
) -> None:
    fill(broker, 1)
    seen: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.reconsume_times)
        if not message.reconsume_times:
            await asyncio.Event().wait()

    consumer = await join(listen, consume_timeout=timedelta(milliseconds=50))
    await until(lambda: seen == [0, 1])
    ((entry,),) = [request.entries for request in cluster.requests("SendBack")]
    assert (entry.delay_level, entry.failure.reason) == (3, "ConsumeTimeout")
    await consumer.close(timedelta(milliseconds=10))
    assert committed(broker) == 1


async def test_an_overdue_message_that_the_broker_does_not_take_is_given_back_again(
    broker: MemoryBroker, cluster: MemoryCluster, join: Consumers
) -> None:
    fill(broker, 1)
    seen: list[int] = []
    refusals = 2

    def refuse(address: str, request: Any) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals < 0:
            del cluster.answers["SendBack"]
        else:
            raise MqError(Code.SYSTEM_BUSY, "the disk does not keep up")

    cluster.answers["SendBack"] = refuse

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.reconsume_times)
        if not message.reconsume_times:
            await asyncio.Event().wait()

    consumer = await join(listen, consume_timeout=timedelta(milliseconds=50))
    await until(lambda: seen == [0, 1])
    assert refusals < 1
    await consumer.close(timedelta(milliseconds=10))
    assert committed(broker) == 1


async def test_start_without_name_server_is_a_typed_error_and_leaves_nothing(
    cluster: MemoryCluster, join: Consumers
) -> None:
    cluster.down.add(NAMESRV)
    with pytest.raises(NamesrvUnreachable):
        await join(print)


async def test_group_that_every_broker_refuses_is_told_at_start(
    cluster: MemoryCluster, join: Consumers
) -> None:
    def refuse(address: str, request: Any) -> None:
        raise MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, "create the group first")

    cluster.answers["Heartbeat"] = refuse
    with pytest.raises(MqError) as caught:
        await join(print)
    assert caught.value.code is Code.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"consumer_group": "not legal"}, Code.INVALID_PARAMETER),
        ({"concurrency": 0}, Code.INVALID_PARAMETER),
        ({"pull_batch_size": 5_000}, Code.INVALID_PARAMETER),
        ({"batch_listener": print}, Code.INVALID_PARAMETER),
        ({"consume_timeout": timedelta(0)}, Code.INVALID_PARAMETER),
        ({"max_reconsume_times": -1}, Code.INVALID_PARAMETER),
        ({"max_reconsume_times": 1 << 31}, Code.INVALID_PARAMETER),
        ({"consume_timestamp_ms": -1}, Code.INVALID_PARAMETER),
        ({"consume_timestamp_ms": 1 << 63}, Code.INVALID_PARAMETER),
    ],
)
def test_bad_setting_is_refused(arguments: dict[str, Any], code: Code) -> None:
    with pytest.raises(MqError) as caught:
        AsyncPushConsumer(**{"consumer_group": GROUP, "listener": print, **arguments})
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("topic", "expression", "code"),
    [("not legal", "*", Code.INVALID_PARAMETER), ("t", "||", Code.SUBSCRIPTION_PARSE_FAILED)],
)
def test_bad_subscription_is_refused(topic: str, expression: str, code: Code) -> None:
    consumer = AsyncPushConsumer(GROUP, print, namesrv=NAMESRV)
    with pytest.raises(MqError) as caught:
        consumer.subscribe(topic, expression)
    assert caught.value.code is code


async def test_member_that_a_broker_forgot_announces_itself_again(
    broker: MemoryBroker, join: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "REBALANCE_RETRY_S", 0.05)
    monkeypatch.setattr(membership, "REBALANCE_INTERVAL_S", 0.05)
    consumer = await join(print)
    broker.clients.clear()
    await until(lambda: broker.members(GROUP))
    assert len(owned(consumer)) == 4


async def test_another_expression_holds_for_what_comes_after_it(
    broker: MemoryBroker, join: Consumers
) -> None:
    seen: list[str] = []
    consumer = await join(lambda message: seen.append(message.tag), expression="A")
    await broker_wakes(broker)
    consumer.subscribe(TOPIC, "B")
    fill(broker, 8, **{properties.TAGS: "B"})
    fill(broker, 8, **{properties.TAGS: "A"})
    await broker_wakes(broker)
    await until(lambda: len(seen) >= 8)
    assert seen == ["B"] * 8


async def test_broker_that_does_not_answer_keeps_nobody_from_the_queues_of_another(
    broker: MemoryBroker, cluster: MemoryCluster, join: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = offset_store.OffsetStore.load

    async def load(self: Any, topic: str, broker_name: str) -> dict[int, int]:
        if broker_name == broker.name:
            raise MqError(Code.REQUEST_TIMEOUT, "it hangs")
        return await good(self, topic, broker_name)

    monkeypatch.setattr(offset_store.OffsetStore, "load", load)
    other = MemoryBroker("b", "10.0.0.12:10911")
    other.create(TOPIC, 2)
    cluster.brokers[other.address] = other
    seen: list[bytes] = []
    await join(lambda message: seen.append(message.body))
    fill(other, 4)
    await broker_wakes(other)
    await until(lambda: len(seen) == 4)
    assert sorted(seen) == [b"0", b"1", b"2", b"3"]


async def test_close_that_is_cancelled_leaves_the_group_all_the_same(
    broker: MemoryBroker, join: Consumers
) -> None:
    """Who still beats keeps its queues, and nobody would consume them."""
    fill(broker, 1)
    begun = asyncio.Event()

    async def listen(message: ReceivedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    consumer = await join(listen)
    await begun.wait()
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not broker.clients
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_listener_that_closes_its_own_consumer_is_told_so(
    broker: MemoryBroker, join: Consumers
) -> None:
    fill(broker, 1)
    told: list[MqError] = []

    async def listen(message: ReceivedMessage) -> None:
        try:
            await consumer.close()
        except MqError as error:
            told.append(error)

    consumer = await join(listen)
    await until(lambda: told)
    assert told[0].code is Code.ILLEGAL_OPERATION
    assert len(owned(consumer)) == 4


async def test_topic_that_is_made_again_is_consumed_from_its_first_message(
    broker: MemoryBroker, join: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "REBALANCE_RETRY_S", 0.05)
    fill(broker, 40)
    seen: list[bytes] = []
    consumer = await join(lambda message: seen.append(message.body))
    await until(lambda: len(seen) == 40)
    delete(broker)
    await broker_wakes(broker)
    await until(lambda: not owned(consumer))
    seen.clear()
    broker.create(TOPIC, 4)
    fill(broker, 8)
    await until(lambda: len(seen) == 8)
    await consumer.close()
    assert committed(broker) == 8


def delete(broker: MemoryBroker, topic: str = TOPIC) -> None:
    """As a broker does: with its messages and the offsets of all groups."""
    del broker.topics[topic]
    broker.queues = {key: kept for key, kept in broker.queues.items() if key[0] != topic}
    broker.offsets = {key: kept for key, kept in broker.offsets.items() if key[1] != topic}


async def test_offset_of_a_deleted_topic_is_not_committed_in_the_one_that_is_made_again(
    broker: MemoryBroker, join: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listener is busy, so nothing is pulled while the topic is away."""
    monkeypatch.setattr(membership, "REBALANCE_RETRY_S", 0.05)
    monkeypatch.setattr(membership, "COMMIT_INTERVAL_S", 0.05)
    fill(broker, 4_000)
    hold = asyncio.Event()
    seen: list[bytes] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if len(seen) > 2_000:
            await hold.wait()

    consumer = await join(listen, pull_threshold_for_queue=10, concurrency=1)
    await until(lambda: len(seen) > 2_000)
    delete(broker)
    hold.set()
    await until(lambda: not owned(consumer))
    seen.clear()
    broker.create(TOPIC, 4)
    fill(broker, 8)
    await until(lambda: {b"%d" % n for n in range(8)} <= set(seen))


async def test_reset_to_where_it_reads_skips_what_still_waits(
    broker: MemoryBroker, join: Consumers
) -> None:
    broker.create("one", 1)
    fill(broker, 50, topic="one")
    hold = asyncio.Event()
    seen: list[bytes] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.body)
        await hold.wait()

    consumer = await join(listen, concurrency=1)
    consumer.subscribe("one")
    await until(lambda: seen)
    broker.moved[GROUP, "one", 0] = 50
    await broker_wakes(broker)
    await until(lambda: not broker.moved)
    hold.set()
    fill(broker, 1, topic="one")
    await broker_wakes(broker)
    await until(lambda: len(seen) >= 2)
    assert seen == [b"0", b"0"]  # the one that ran, and the one after the reset
    await consumer.close()
    assert committed(broker, "one") == 51


async def test_reset_reaches_a_member_that_has_no_room_to_pull(
    broker: MemoryBroker, join: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker remembers a reset for a minute only."""
    monkeypatch.setattr(puller, "RESET_CHECK_INTERVAL_S", 0.05)
    broker.create("one", 1)
    fill(broker, 50, topic="one")
    hold = asyncio.Event()
    seen: list[bytes] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.body)
        await hold.wait()

    consumer = await join(listen, concurrency=1, pull_threshold_for_queue=5, pull_batch_size=10)
    consumer.subscribe("one")
    await until(lambda: seen)
    broker.moved[GROUP, "one", 0] = 49
    await until(lambda: not broker.moved)
    hold.set()
    await until(lambda: len(seen) >= 2)
    assert seen == [b"0", b"49"]


async def test_subscription_that_changes_during_a_rebalance_is_announced(
    broker: MemoryBroker, cluster: MemoryCluster, join: Consumers
) -> None:
    consumer = await join(print)
    await until(lambda: len(owned(consumer)) == 4)
    asked = asyncio.Event()

    def answer(address: str, request: Any) -> Any:
        if asked.is_set():
            return None
        asked.set()
        consumer.subscribe("more")
        return None

    broker.create("more", 1)
    cluster.answers["ListGroupMembers"] = answer
    consumer.subscribe(TOPIC)
    await until(asked.is_set)
    await until(
        lambda: any(
            subscription.topic == "more"
            for beat in broker.clients.values()
            for one in beat.consumers
            for subscription in one.subscriptions
        ),
        timeout_s=3,
    )


@pytest.mark.parametrize("code", [Code.SYSTEM_ERROR, Code.MESSAGE_CORRUPTED])
async def test_message_whose_record_is_gone_is_retried_all_the_same(
    broker: MemoryBroker, cluster: MemoryCluster, join: Consumers, code: Code
) -> None:
    """Expired, or damaged, while its listener had it: nobody would ever take it back."""
    cluster.answers["SendBack"] = lambda _, request: message_pb2.SendBackResponse(
        results=[{"code": int(code), "message": "no such record"} for _ in request.entries]
    )
    body = zlib.compress(b"body")
    broker.append(
        TOPIC,
        0,
        body,
        properties.encode({"UNIQ_KEY": "U1", "KEYS": "k", "TRAN_MSG": "true", "DELAY": "1"}),
        flag=7,
        sys_flag=record.COMPRESSED,
    )
    (first,) = broker.messages(TOPIC)
    seen: list[ReceivedMessage] = []

    def listen(message: ReceivedMessage) -> None:
        seen.append(message)
        if len(seen) == 1:
            raise ValueError("not\x02yet")

    consumer = await join(listen, max_reconsume_times=5)
    await until(lambda: len(seen) == 2)
    await consumer.close()
    assert committed(broker) == 1
    (sent,) = [request.messages[0] for request in cluster.requests("Send")]
    assert (sent.topic, sent.body, sent.flag, sent.reconsume_times) == (RETRY, body, 7, 1)
    assert sent.sys_flag == record.COMPRESSED
    assert (sent.born_timestamp_ms, sent.born_host) == (STORE_TIME_MS, broker.address)
    assert dict(sent.properties) == {
        "UNIQ_KEY": "U1",
        "KEYS": "k",
        "TRAN_MSG": "true",
        "RETRY_TOPIC": TOPIC,
        "ORIGIN_MESSAGE_ID": first.offset_message_id,
        "DLQ_REASON": "ValueError",
        "DLQ_REASON_DESCRIPTION": "not yet",
        "MAX_RECONSUME_TIMES": "5",
        "DELAY": "3",
    }
    assert seen[1].topic == TOPIC and seen[1].origin_message_id == first.offset_message_id


async def test_message_whose_record_is_gone_may_be_dead_lettered_too(
    broker: MemoryBroker, cluster: MemoryCluster, join: Consumers
) -> None:
    cluster.answers["SendBack"] = lambda _, request: message_pb2.SendBackResponse(
        results=[{"code": 1, "message": "no such record"} for _ in request.entries]
    )
    fill(broker, 1)
    await join(lambda message: ConsumeResult.DEAD_LETTER if not message.reconsume_times else None)
    await until(lambda: cluster.requests("Send"))
    (sent,) = [request.messages[0] for request in cluster.requests("Send")]
    assert sent.reconsume_times > int(sent.properties["MAX_RECONSUME_TIMES"])


async def test_close_asks_a_broker_that_takes_nothing_back_only_once_more(
    broker: MemoryBroker, cluster: MemoryCluster, join: Consumers
) -> None:
    """Each request may take 5 s, and thousands of messages may wait."""
    fill(broker, 800)
    frozen = asyncio.Event()

    async def hang() -> None:
        await frozen.wait()
        raise MqError(Code.REQUEST_TIMEOUT, "it is frozen")

    cluster.answers["SendBack"] = lambda address, request: hang()
    seen: list[bytes] = []

    async def listen(message: ReceivedMessage) -> ConsumeResult:
        seen.append(message.body)
        return ConsumeResult.RECONSUME_LATER

    consumer = await join(listen)
    await until(lambda: len(seen) == 800)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0.1)  # it waits for the broker by now
    frozen.set()
    await closing
    assert len(cluster.requests("SendBack")) <= 2
    assert committed(broker) == 0


async def test_close_commits_what_a_rebalance_was_about_to_commit(
    broker: MemoryBroker, cluster: MemoryCluster, join: Consumers
) -> None:
    fill(broker, 40)
    seen: list[bytes] = []
    consumer = await join(lambda message: seen.append(message.body))
    await until(lambda: len(seen) == 40)
    broker.offsets.clear()
    asked: list[str] = []

    def hang_once(address: str, request: Any) -> Any:
        asked.append(address)
        return asyncio.Event().wait() if len(asked) == 1 else None

    cluster.answers["UpdateConsumerOffsets"] = hang_once
    consumer.unsubscribe(TOPIC)
    await until(lambda: asked)
    await consumer.close()
    assert committed(broker) == 40


async def test_batch_listener_may_do_with_its_list_what_it_likes(
    broker: MemoryBroker, join: Consumers
) -> None:
    fill(broker, 40)
    seen: list[bytes] = []

    def listen(messages: list[ReceivedMessage]) -> None:
        while messages:
            seen.append(messages.pop().body)

    consumer = await join(batch_listener=listen, consume_message_batch_max_size=8)
    await until(lambda: len(seen) == 40)
    await consumer.close()
    assert committed(broker) == 40


async def test_close_in_the_middle_of_the_start_leaves_nothing(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    beaten, go_on = asyncio.Event(), asyncio.Event()

    async def beat(address: str, request: Any) -> Any:
        beaten.set()
        await go_on.wait()
        return cluster._Heartbeat(broker, request)

    cluster.answers["Heartbeat"] = beat
    consumer = AsyncPushConsumer(GROUP, print, namesrv=NAMESRV, transport=cluster)
    consumer.subscribe(TOPIC)
    starting = asyncio.create_task(consumer.start())
    await beaten.wait()
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    async with asyncio.timeout(10):
        with pytest.raises(ClientClosed):
            await starting
    assert not broker.clients and not consumer.queues
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@pytest.mark.parametrize("turns", range(1, 24))
async def test_close_may_be_cancelled_at_any_step(
    broker: MemoryBroker, join: Consumers, turns: int
) -> None:
    fill(broker, 8)
    seen: list[bytes] = []
    consumer = await join(lambda message: seen.append(message.body), concurrency=2)
    await until(lambda: len(seen) == 8)
    closing = asyncio.create_task(consumer.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert not broker.clients
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
