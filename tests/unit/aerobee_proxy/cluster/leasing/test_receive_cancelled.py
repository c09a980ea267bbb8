"""Receives whose client is gone while the broker's answer is on its way: the messages are visible
at once, and the delivery does not count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_proxy.cluster.leasing import receive
from support.proxy.public_requests import GROUP, TOPIC
from support.proxy.whole_cluster import WholeCluster

BROKER = "broker-a"
ON_THE_WAY_S = 0.2


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WholeCluster]:
    """Answers of its broker to pops take ON_THE_WAY_S."""
    cluster = await WholeCluster.begin(tmp_path)
    cluster.topic(TOPIC.name)
    call = cluster.transport.call

    async def slow(address: str, rpc: Any, request: Any, *, timeout_s: float) -> Any:
        answer = await call(address, rpc, request, timeout_s=timeout_s)
        if rpc.method == "Pop":
            await asyncio.sleep(ON_THE_WAY_S)
        return answer

    monkeypatch.setattr(cluster.transport, "call", slow)
    yield cluster
    assert not cluster.transport.defects
    await cluster.end()


def receiving(cluster: WholeCluster, **change: Any) -> asyncio.Task[list[Any]]:
    queue = d.MessageQueue(topic=TOPIC, broker=d.Broker(name=BROKER), id=-1)
    request = s.ReceiveMessageRequest(group=GROUP, message_queue=queue, batch_size=16, **change)
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = 5
    return asyncio.create_task(cluster.ask("ReceiveMessage", request))


async def left(receive: asyncio.Task[list[Any]], after_s: float) -> None:
    await asyncio.sleep(after_s)
    receive.cancel()
    await asyncio.wait([receive])


async def attempts(cluster: WholeCluster) -> list[int]:
    answers = await receiving(cluster)
    return [answer.message.system_properties.delivery_attempt for answer in answers[1:-1]]


@pytest.mark.parametrize("waits", [False, True])
async def test_messages_on_their_way_to_a_client_that_left_are_given_back(
    cluster: WholeCluster, waits: bool
) -> None:
    if waits:
        leaving = receiving(cluster)
        await asyncio.sleep(1)
        await cluster.broker.send(TOPIC.name, b"1", b"2")
    else:
        await cluster.broker.send(TOPIC.name, b"1", b"2")
        leaving = receiving(cluster)
    await left(leaving, ON_THE_WAY_S / 2)
    await asyncio.sleep(ON_THE_WAY_S)
    assert await attempts(cluster) == [1, 1]


async def test_pop_of_a_client_that_left_ends_at_the_broker(cluster: WholeCluster) -> None:
    await left(receiving(cluster), 0.5)
    assert cluster.broker.broker.polls.parked_pops
    await asyncio.sleep(receive.LATE_S + 0.1)
    assert not cluster.broker.broker.polls.parked_pops
    await cluster.broker.send(TOPIC.name, b"1")
    assert await attempts(cluster) == [1]
