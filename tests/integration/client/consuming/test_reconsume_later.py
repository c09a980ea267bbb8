"""Refusals with a delay of their own, and such that count as no attempt, against real processes."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import timedelta
from pathlib import Path

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPushConsumer,
    Message,
    MqError,
    ReceivedMessage,
    ReconsumeLater,
)
from support.clock.polling import until
from support.processes.service import broker_process, namesrv_process

DELAY = timedelta(milliseconds=1_700)


async def test_an_uncounted_refusal_waits_for_its_delay_and_is_no_attempt(namesrv: str) -> None:
    """Five times; then the one attempt that the group allows is still there to be used up."""
    at: list[float] = []

    def listen(message: ReceivedMessage) -> None:
        at.append(time.monotonic())
        assert message.reconsume_times == 0
        if len(at) <= 3:
            raise ReconsumeLater("no connection", delay=DELAY, counted=False)
        raise ValueError("bad")

    async with AsyncAdminClient(namesrv) as admin, AsyncProducer(namesrv=namesrv) as producer:
        await admin.create_group("uncounted-g", max_attempts=1)
        await producer.send(Message("uncounted", b"x"))
        consumer = AsyncPushConsumer("uncounted-g", listen, namesrv=namesrv)
        consumer.subscribe("uncounted")
        async with consumer:
            dead = await until(
                lambda: _browse(admin, "%DLQ%uncounted-g"), retry_on=(MqError,), timeout_s=30
            )
    assert [message.failure_reason for message in dead] == ["ValueError"]
    waits = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert len(waits) == 3 and min(waits) >= DELAY.total_seconds()


async def _browse(admin: AsyncAdminClient, topic: str) -> list[ReceivedMessage]:
    browsed = await admin.browse(topic, "broker-a", 0, 0)
    return browsed.messages()


async def test_a_delay_survives_a_killed_broker(tmp_path: Path) -> None:
    """What was answered is durable: due time and count are those that the listener asked for."""
    at: list[tuple[float, int]] = []

    def listen(message: ReceivedMessage) -> None:
        at.append((time.time(), message.reconsume_times))
        if len(at) == 1:
            raise ReconsumeLater(delay=timedelta(seconds=6), counted=False)

    with (
        namesrv_process(tmp_path) as namesrv,
        broker_process(tmp_path, namesrv=namesrv.address) as broker,
    ):
        async with AsyncProducer(namesrv=namesrv.address) as producer:
            await producer.send(Message("t", b"x"))
        consumer = AsyncPushConsumer("g", listen, namesrv=namesrv.address)
        consumer.subscribe("t")
        async with consumer, AsyncAdminClient(namesrv.address) as admin:
            await until(lambda: _waits(admin), retry_on=(MqError,))
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            await until(lambda: len(at) == 2, timeout_s=40)
    (first, _), (second, times) = at
    assert second - first >= 6 and times == 0


async def _waits(admin: AsyncAdminClient) -> bool:
    """Whether the group has consumed the message: its retry is stored."""
    progress = await admin.consume_progress("g", "t")
    return any(queue.consumer_offset == 1 for queue in progress)
