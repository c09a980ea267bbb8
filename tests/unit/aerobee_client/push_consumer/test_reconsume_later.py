"""ReconsumeLater: any delay, and refusals that count as no attempt."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from aerobee_client.consume_result import ReconsumeLater
from aerobee_client.consuming import concurrent_consumption
from aerobee_client.message import ReceivedMessage
from aerobee_wire import properties
from aerobee_wire.status import Code
from support.client.consumer_group import RETRY, Join, committed, fill
from support.client.memory import MemoryBroker, MemoryCluster
from support.clock.polling import until

SOON = timedelta(milliseconds=50)


class Refusing:
    """A listener that refuses each message `times` times."""

    def __init__(self, times: int, **verdict: Any) -> None:
        self.seen: list[tuple[str, int]] = []
        self._times = times
        self._verdict = verdict

    def __call__(self, message: ReceivedMessage) -> None:
        self.seen.append((message.stored_topic, message.reconsume_times))
        if len(self.seen) <= self._times:
            raise ReconsumeLater("busy", **self._verdict)


async def test_delay_and_count_reach_the_broker(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    listener = Refusing(2, delay=timedelta(hours=30), counted=False)
    fill(broker, 1)
    await join(listener)
    await until(lambda: len(listener.seen) == 3)
    entries = [request.entries[0] for request in cluster.requests("SendBack")]
    assert [(entry.delay_ms, entry.uncounted) for entry in entries] == [(108_000_000, True)] * 2
    assert [times for _, times in listener.seen] == [0, 0, 0]


async def test_an_older_broker_is_not_asked_for_what_it_would_ignore(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    """The member keeps the message for the delay, and counts as asked."""
    broker.capabilities = ()
    listener = Refusing(3, delay=SOON, counted=False)
    fill(broker, 1)
    await join(listener)
    await until(lambda: len(listener.seen) == 4)
    assert listener.seen == [("flights", 0)] * 4
    assert cluster.requests("SendBack") == [] and broker.messages(RETRY) == []


async def test_an_older_broker_still_takes_the_others(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    broker.capabilities = ()
    fill(broker, 20)
    tried: list[bytes] = []

    def listen(message: ReceivedMessage) -> None:
        tried.append(message.body)
        if tried.count(message.body) == 1:
            delay = SOON if int(message.body) % 2 else None
            raise ReconsumeLater(delay=delay)

    consumer = await join(listen)
    await until(lambda: len(tried) == 40)
    await consumer.close()
    assert committed(broker) == 20
    assert {int(message.body) % 2 for message in broker.messages(RETRY)} == {0}


async def test_a_refused_delay_is_kept_by_the_member(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent_consumption, "CONSUME_AGAIN_S", 60)
    cluster.refuse("SendBack", broker.address, Code.FLOW_CONTROL)
    listener = Refusing(1, delay=SOON)
    fill(broker, 1)
    await join(listener)
    await until(lambda: len(listener.seen) == 2)
    assert listener.seen == [("flights", 0), ("flights", 1)]


async def test_a_copy_of_an_expired_record_has_the_delay_too(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    fill(broker, 1, TIMER_OUT_MS="1")
    listener = Refusing(1, delay=timedelta(seconds=90), counted=False)

    def listen(message: ReceivedMessage) -> None:
        message._record.physical_offset = 1 << 40
        listener(message)

    await join(listen)
    await until(lambda: broker.messages(RETRY))
    await asyncio.sleep(0)
    (copy,) = broker.messages(RETRY)
    assert copy.properties[properties.TIMER_DELAY_MS] == "90000"
    assert copy.reconsume_times == 0
    assert copy.properties.keys().isdisjoint({properties.DELAY, properties.TIMER_OUT_MS})
