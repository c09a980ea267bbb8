"""Orderly members: one listener at a time for each queue, in order; failures are tried in place."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.cluster import client_instance
from aerobee_client.consume_result import ConsumeResult, DeadLetter
from aerobee_client.consuming.order import lock_keeper
from aerobee_client.message import ReceivedMessage
from aerobee_wire import properties
from aerobee_wire.status import Code, MqError
from support.client.consumer_group import DEAD, GROUP, TOPIC, Join, committed, fill, owned
from support.client.memory import MemoryBroker, MemoryCluster
from support.clock.polling import until
from support.codes import raises_code

SOON = timedelta(milliseconds=10)


class Record:
    """What the listeners of all members got, queue by queue, and whether two ran at once."""

    def __init__(self) -> None:
        self.seen: defaultdict[int, list[int]] = defaultdict(list)
        self.running: Counter[int] = Counter()
        self.overlapped = False

    @contextmanager
    def listening(self, message: ReceivedMessage) -> Iterator[None]:
        queue_id = message.queue_id
        self.running[queue_id] += 1
        self.overlapped |= self.running[queue_id] > 1
        self.seen[queue_id].append(message.queue_offset)
        try:
            yield
        finally:
            self.running[queue_id] -= 1

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))

    def in_order(self) -> bool:
        return not self.overlapped and all(seen == sorted(seen) for seen in self.seen.values())


def listener(kind: str, record: Record) -> Any:
    def listen(message: ReceivedMessage) -> None:
        with record.listening(message):
            pass

    async def listen_async(message: ReceivedMessage) -> None:
        with record.listening(message):
            await asyncio.sleep(0)

    return listen if kind == "threads" else listen_async


@pytest.mark.parametrize("kind", ["threads", "tasks"])
async def test_each_queue_is_consumed_in_order(broker: MemoryBroker, join: Join, kind: str) -> None:
    fill(broker, 2_000)
    record = Record()
    consumer = await join(listener(kind, record), orderly=True)
    await until(lambda: record.count == 2_000)
    assert record.in_order()
    assert all(seen == list(range(500)) for seen in record.seen.values())
    await consumer.close()
    assert committed(broker) == 2_000
    assert not broker.locks.held


async def test_a_failed_message_is_tried_in_place_and_the_next_ones_wait(
    broker: MemoryBroker, join: Join
) -> None:
    broker.create(TOPIC, 1)
    fill(broker, 3)
    attempts: list[tuple[bytes, int]] = []

    def listen(message: ReceivedMessage) -> ConsumeResult | None:
        attempts.append((message.body, message.reconsume_times))
        if message.body == b"1" and message.reconsume_times < 2:
            raise ValueError("not yet")
        return None

    consumer = await join(listen, orderly=True, suspend_time=SOON)
    await until(lambda: len(attempts) == 5)
    assert attempts == [(b"0", 0), (b"1", 0), (b"1", 1), (b"1", 2), (b"2", 0)]
    await consumer.close()
    assert committed(broker) == 3


async def test_a_message_is_dead_lettered_after_the_maximum_of_the_group(
    broker: MemoryBroker, join: Join
) -> None:
    broker.create(TOPIC, 1)
    broker.max_reconsume_times = 2
    fill(broker, 3)
    seen: list[bytes] = []

    def listen(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"1":
            raise ValueError("never")

    consumer = await join(listen, orderly=True, suspend_time=SOON)
    await until(lambda: len(seen) == 5)
    assert seen == [b"0", b"1", b"1", b"1", b"2"]
    (dead,) = broker.messages(DEAD)
    assert (dead.body, dead.reconsume_times) == (b"1", 3)
    assert dead.properties[properties.DLQ_REASON] == "ValueError"
    assert dead.properties[properties.DLQ_REASON_DESCRIPTION] == "never"
    await consumer.close()
    assert committed(broker) == 3


@pytest.mark.parametrize(("limit", "attempts"), [(0, 1), (1, 2)])
async def test_the_consumer_may_set_another_maximum(
    broker: MemoryBroker, join: Join, limit: int, attempts: int
) -> None:
    broker.create(TOPIC, 1)
    fill(broker, 1)
    seen: list[bytes] = []

    def listen(message: ReceivedMessage) -> ConsumeResult:
        seen.append(message.body)
        return ConsumeResult.RECONSUME_LATER

    await join(listen, orderly=True, suspend_time=SOON, max_reconsume_times=limit)
    await until(lambda: len(broker.messages(DEAD)) == 1)
    assert len(seen) == attempts


async def test_without_a_maximum_a_message_is_tried_for_ever(
    broker: MemoryBroker, join: Join
) -> None:
    broker.create(TOPIC, 1)
    broker.max_reconsume_times = 0
    fill(broker, 2)
    seen: list[bytes] = []

    def listen(message: ReceivedMessage) -> ConsumeResult:
        seen.append(message.body)
        return ConsumeResult.RECONSUME_LATER

    await join(listen, orderly=True, suspend_time=SOON, max_reconsume_times=-1)
    await until(lambda: len(seen) >= 5)
    assert set(seen) == {b"0"}
    assert not broker.messages(DEAD)


async def test_a_message_may_be_dead_lettered_at_once(broker: MemoryBroker, join: Join) -> None:
    broker.create(TOPIC, 1)
    fill(broker, 2)
    seen: list[bytes] = []

    def listen(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"0":
            raise DeadLetter("no use")

    await join(listen, orderly=True)
    await until(lambda: seen == [b"0", b"1"])
    assert [dead.body for dead in broker.messages(DEAD)] == [b"0"]


async def test_the_next_message_waits_until_the_dead_letter_is_stored(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "aerobee_client.consuming.order.orderly_consumption.DEAD_LETTER_AGAIN_S", 0.05
    )
    broker.create(TOPIC, 1)
    fill(broker, 2)
    seen: list[bytes] = []

    def listen(message: ReceivedMessage) -> ConsumeResult:
        seen.append(message.body)
        return ConsumeResult.DEAD_LETTER

    cluster.answers["SendBack"] = MqError(Code.SYSTEM_BUSY, "not now")
    await join(listen, orderly=True)
    await until(lambda: len(cluster.requests("SendBack")) >= 3)
    assert seen == [b"0"]
    del cluster.answers["SendBack"]
    await until(lambda: seen == [b"0", b"1"])


async def test_message_groups_are_consumed_side_by_side(broker: MemoryBroker, join: Join) -> None:
    """One that fails holds up its own group only."""
    broker.create(TOPIC, 1)
    for n in range(30):
        group = properties.encode({properties.SHARDING_KEY: f"group-{n % 3}"})
        broker.append(TOPIC, 0, b"%d" % n, group)
    seen: defaultdict[int, list[int]] = defaultdict(list)
    heal = threading.Event()

    def listen(message: ReceivedMessage) -> None:
        number = int(message.body)
        if number % 3 == 1 and not heal.is_set():
            raise ValueError("this group fails")
        seen[number % 3].append(number)

    consumer = await join(listen, orderly=True, order_by="message_group", suspend_time=SOON)
    await until(lambda: len(seen[0]) == len(seen[2]) == 10)
    assert not seen[1]
    heal.set()
    await until(lambda: len(seen[1]) == 10)
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    await consumer.close()
    assert committed(broker) == 30


async def test_a_batch_goes_on_behind_what_it_consumed(broker: MemoryBroker, join: Join) -> None:
    broker.create(TOPIC, 1)
    fill(broker, 6)
    calls: list[list[bytes]] = []

    def listen(messages: list[ReceivedMessage]) -> list[ConsumeResult]:
        calls.append([message.body for message in messages])
        return [
            ConsumeResult.RECONSUME_LATER
            if message.body == b"1" and not message.reconsume_times
            else ConsumeResult.SUCCESS
            for message in messages
        ]

    await join(
        None,
        batch_listener=listen,
        orderly=True,
        suspend_time=SOON,
        consume_message_batch_max_size=3,
    )
    await until(lambda: sum(map(len, calls)) >= 8)
    assert calls == [[b"0", b"1", b"2"], [b"1", b"2", b"3"], [b"4", b"5"]]


# ---- members that come and go ----


async def test_a_queue_changes_hands_when_its_listener_has_ended(
    broker: MemoryBroker, join: Join
) -> None:
    """Its result is committed first: the new owner goes on behind it."""
    broker.create(TOPIC, 1)
    fill(broker, 1)
    begun, may_end = asyncio.Event(), asyncio.Event()
    second: list[int] = []

    async def slow(message: ReceivedMessage) -> None:
        begun.set()
        await may_end.wait()

    first = await join(slow, orderly=True)
    await begun.wait()
    other = await join(lambda message: second.append(message.queue_offset), orderly=True)
    leaving = asyncio.create_task(first.close())
    fill(broker, 1)
    await broker.wake()
    await asyncio.sleep(0.3)
    assert not second and not owned(other)
    may_end.set()
    await leaving
    await until(lambda: second)
    assert second == [1]


async def test_a_rebalance_starts_the_new_owner_soon(broker: MemoryBroker, join: Join) -> None:
    """It does not wait for the next periodic round, 20 s later."""
    record = Record()
    first = await join(listener("tasks", record), orderly=True)
    await until(lambda: len(owned(first)) == 4)
    second = await join(listener("tasks", record), orderly=True)
    await until(lambda: len(owned(first)) == 2 and len(owned(second)) == 2, timeout_s=5)
    await first.close()
    await until(lambda: len(owned(second)) == 4, timeout_s=5)


async def test_a_member_whose_link_broke_starts_no_listener(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    """Until the broker has granted its locks anew; then it goes on where it was."""
    broker.create(TOPIC, 1)
    fill(broker, 4)
    seen: list[int] = []
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        begun.set()
        if len(seen) == 2:
            await may_end.wait()

    consumer = await join(listen, orderly=True)
    await until(lambda: len(seen) == 2)
    cluster.answers["LockQueues"] = MqError(Code.SYSTEM_BUSY, "not now")
    await cluster.kill(broker)
    cluster.revive(broker)
    may_end.set()
    await until(lambda: broker.members(GROUP) and cluster.requests("LockQueues"))
    await asyncio.sleep(0.2)
    assert seen == [0, 1]
    del cluster.answers["LockQueues"]
    await until(lambda: len(seen) == 4)
    assert seen == [0, 1, 2, 3]
    await consumer.close()
    assert committed(broker) == 4


async def test_queues_of_a_broker_that_is_missing_in_the_routes_are_let_go_in_order(
    cluster: MemoryCluster, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives, and keeps the locks until the offsets are committed: a name server that has just
    started does not know it yet."""
    monkeypatch.setattr(client_instance, "EXPECTANT_REFRESH_INTERVAL_S", 0.05)
    other = MemoryBroker("b", "10.0.0.12:10911")
    other.create(TOPIC, 4)
    cluster.brokers[other.address] = other
    fill(other, 20)
    record = Record()
    consumer = await join(listener("tasks", record), orderly=True)
    await until(lambda: record.count == 20)

    def without(address: str, request: Any) -> Any:
        route = cluster._namesrv_GetTopicRoute(request).route
        for found in (route.queues, route.brokers):
            kept = [data for data in found if data.broker_name != other.name]
            del found[:]
            found.extend(kept)
        return namesrv_pb2.GetTopicRouteResponse(route=route)

    cluster.answers["GetTopicRoute"] = without
    await until(lambda: {queue.broker_name for queue in consumer.queues} == {"a"})
    await until(lambda: not other.locks.held)
    assert committed(other) == 20


async def test_a_member_whose_lock_another_one_took_gives_the_queue_up(
    broker: MemoryBroker, join: Join
) -> None:
    broker.create(TOPIC, 1)
    fill(broker, 1)
    seen: list[int] = []
    consumer = await join(lambda message: seen.append(message.queue_offset), orderly=True)
    await until(lambda: seen == [0])
    key = (GROUP, TOPIC, 0)
    broker.locks.give(key, "another")
    broker.offsets[GROUP, TOPIC, 0] = 3  # so far it came
    fill(broker, 4)
    await broker.wake()
    await until(lambda: not owned(consumer))
    assert seen == [0]
    broker.locks.break_all()
    await until(lambda: len(seen) > 1)
    assert seen == [0, 3, 4]


async def test_what_another_member_did_while_the_lock_was_free_is_not_done_again(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    """It had the lock, consumed, committed and left, while this member was cut off."""
    broker.create(TOPIC, 1)
    fill(broker, 1)
    seen: list[int] = []
    await join(lambda message: seen.append(message.queue_offset), orderly=True)
    await until(lambda: seen == [0])
    await cluster.kill(broker)
    fill(broker, 4)
    broker.offsets[GROUP, TOPIC, 0] = 3
    cluster.revive(broker)
    await until(lambda: len(seen) > 1)
    await asyncio.sleep(0.2)
    assert seen == [0, 3, 4]


async def test_an_old_broker_is_named_at_the_start(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    cluster.answers["LockQueues"] = MqError(Code.REQUEST_CODE_NOT_SUPPORTED, "unknown")
    with raises_code(Code.REQUEST_CODE_NOT_SUPPORTED):
        await join(print, orderly=True)
    assert not broker.clients


async def test_a_paused_queue_keeps_its_lock_and_waits(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what is pulled already waits."""
    monkeypatch.setattr(lock_keeper, "RENEW_INTERVAL_S", 0.05)
    broker.create(TOPIC, 1)
    fill(broker, 20)
    seen: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 4:
            consumer.pause(TOPIC)

    consumer = await join(listen, orderly=True)
    await until(lambda: len(seen) == 5)
    renewed = len(cluster.requests("LockQueues"))
    await until(lambda: len(cluster.requests("LockQueues")) > renewed + 2)
    assert seen == [0, 1, 2, 3, 4]
    assert (GROUP, TOPIC, 0) in broker.locks.held
    consumer.resume(TOPIC)
    await until(lambda: len(seen) == 20)
    assert seen == list(range(20))
