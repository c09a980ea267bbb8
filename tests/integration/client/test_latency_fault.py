"""A producer with two real brokers, of which one is slow, or gone and back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from aerobee_client import AsyncAdminClient, AsyncProducer, Message, MqError
from support.clock.polling import until
from support.processes.service import ServiceProcess, namesrv_and_brokers

TOPIC = "latency"
HOUR = timedelta(hours=1)
SLOW = timedelta(milliseconds=900)
# What is slow or failed is avoided for an hour, so that only the detector can end that.
TABLE = [(SLOW, HOUR), (timedelta(milliseconds=1), timedelta(0))]


@dataclass(frozen=True)
class TwoBrokers:
    namesrv: str
    other: ServiceProcess


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[TwoBrokers]:
    with namesrv_and_brokers(tmp_path) as (namesrv, brokers):
        async with AsyncAdminClient(namesrv.address) as admin:
            await until(lambda: _both(admin), retry_on=(MqError,))
            await admin.create_topic(TOPIC, queues=2)
        yield TwoBrokers(namesrv.address, brokers["broker-b"])


async def _both(admin: AsyncAdminClient) -> bool:
    return len((await admin.cluster()).brokers) == 2


def a_producer(namesrv: str) -> AsyncProducer:
    return AsyncProducer(
        "p",
        namesrv=namesrv,
        send_timeout=timedelta(seconds=10),
        latency_fault=True,
        latency_table=TABLE,
        latency_detector=True,
    )


async def takers(producer: AsyncProducer) -> set[str]:
    """The brokers that get messages now."""
    sends = [await producer.send(Message(TOPIC, b"x"), accumulate=False) for _ in range(8)]
    return {sent.queue.broker_name for sent in sends}


async def test_a_slow_broker_is_avoided_although_it_answers_the_detector(
    brokers: TwoBrokers,
) -> None:
    async with a_producer(brokers.namesrv) as producer:
        await until(lambda: _takes(producer, {"broker-a", "broker-b"}))
        (queue, *_) = [q for q in await producer.queues(TOPIC) if q.broker_name == "broker-b"]
        brokers.other.send_signal(signal.SIGSTOP)
        sending = asyncio.create_task(
            producer.send(Message(TOPIC, b"slow"), queue=queue, accumulate=False)
        )
        await asyncio.sleep(SLOW.total_seconds() * 1.2)
        brokers.other.send_signal(signal.SIGCONT)
        await sending
        assert await takers(producer) == {"broker-a"}
        await asyncio.sleep(2.5)  # the detector asks every 2 s
        assert await takers(producer) == {"broker-a"}


async def test_a_broker_that_was_gone_is_used_before_its_isolation_ends(
    brokers: TwoBrokers,
) -> None:
    async with a_producer(brokers.namesrv) as producer:
        await until(lambda: _takes(producer, {"broker-a", "broker-b"}))
        brokers.other.kill()
        await takers(producer)
        assert await takers(producer) == {"broker-a"}
        brokers.other.restart()
        await until(lambda: _takes(producer, {"broker-a", "broker-b"}))


async def _takes(producer: AsyncProducer, expected: set[str]) -> bool:
    return await takers(producer) == expected
