"""Where a group starts, resumes, and is reset to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee_client.consuming import puller
from aerobee_client.message import ReceivedMessage
from aerobee_client.options.consumer import ConsumeFromWhere
from aerobee_client.push_consumer import AsyncPushConsumer
from support.client.consumer_group import GROUP, TOPIC, Join, committed, fill
from support.client.memory import NAMESRV, STORE_TIME_MS, MemoryBroker, MemoryCluster
from support.clock.manual_clock import ManualClock
from support.clock.polling import until


def consumer_requests(consumer: AsyncPushConsumer) -> list[Any]:
    transport = consumer._connection.transport
    assert isinstance(transport, MemoryCluster)
    return transport.requests("Pull")


async def test_a_group_resumes_at_its_committed_offsets(broker: MemoryBroker, join: Join) -> None:
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
async def test_a_group_without_offsets_starts_at_the_given_position(
    broker: MemoryBroker, join: Join, where: ConsumeFromWhere, first: int
) -> None:
    broker.create("single", 1)
    fill(broker, 10, topic="single")
    broker.min_offsets["single", 0] = 5
    size = broker.physical_offset // 10
    consumer = AsyncPushConsumer(
        GROUP,
        print,
        namesrv=NAMESRV,
        transport=MemoryCluster(broker),
        consume_from_where=where,
        consume_timestamp_ms=STORE_TIME_MS + 7 * size,
    )
    consumer.subscribe("single")
    async with consumer:
        pass
    assert broker.offsets[GROUP, "single", 0] >= first
    (pull, *_) = [
        request
        for request in consumer_requests(consumer)
        if request.topic == "single" and request.queue_id == 0
    ]
    assert pull.queue_offset == first


async def test_last_offset_misses_nothing_of_a_new_topic(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 8)
    seen: list[bytes] = []
    await join(
        lambda message: seen.append(message.body), consume_from_where=ConsumeFromWhere.LAST_OFFSET
    )
    await until(lambda: len(seen) == 8)


async def test_a_reset_is_followed(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 8)
    seen: list[bytes] = []
    await join(lambda message: seen.append(message.body))
    await until(lambda: len(seen) == 8)
    for queue_id in range(4):
        broker.moved[GROUP, TOPIC, queue_id] = 0
    await broker.wake()
    await until(lambda: len(seen) == 16)


async def test_a_reset_to_the_pull_offset_drops_what_waits(
    broker: MemoryBroker, join: Join
) -> None:
    broker.create("single", 1)
    fill(broker, 50, topic="single")
    hold = asyncio.Event()
    seen: list[bytes] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.body)
        await hold.wait()

    consumer = await join(listen, concurrency=1)
    consumer.subscribe("single")
    await until(lambda: seen)
    broker.moved[GROUP, "single", 0] = 50
    await broker.wake()
    await until(lambda: not broker.moved)
    hold.set()
    fill(broker, 1, topic="single")
    await broker.wake()
    await until(lambda: len(seen) >= 2)
    assert seen == [b"0", b"0"]  # the running one, and the first after the reset
    await consumer.close()
    assert committed(broker, "single") == 51


async def test_a_reset_reaches_a_full_process_queue(
    broker: MemoryBroker, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker remembers a reset for a minute."""
    monkeypatch.setattr(puller, "RESET_CHECK_INTERVAL_S", 0.05)
    broker.create("single", 1)
    fill(broker, 50, topic="single")
    hold = asyncio.Event()
    seen: list[bytes] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.body)
        await hold.wait()

    consumer = await join(listen, concurrency=1, pull_threshold_for_queue=5, pull_batch_size=10)
    consumer.subscribe("single")
    await until(lambda: seen)
    broker.moved[GROUP, "single", 0] = 49
    await until(lambda: not broker.moved)
    hold.set()
    await until(lambda: len(seen) >= 2)
    assert seen == [b"0", b"49"]


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 3_600_000])
async def test_group_starts_half_an_hour_ago_by_the_clock_of_the_broker(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join, ahead_ms: int
) -> None:
    clock = ManualClock(STORE_TIME_MS)

    def beat(_: str, request: Any) -> Any:
        answer = cluster._Heartbeat(broker, request)
        answer.now_timestamp_ms = STORE_TIME_MS + ahead_ms
        return answer

    cluster.answers["Heartbeat"] = beat
    await join(print, clock=clock, consume_from_where=ConsumeFromWhere.TIMESTAMP)
    asked = cluster.requests("SearchOffset")
    assert {request.timestamp_ms for request in asked} == {STORE_TIME_MS + ahead_ms - 1_800_000}
