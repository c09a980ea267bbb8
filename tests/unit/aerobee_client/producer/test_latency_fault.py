"""Avoiding brokers that fail or are slow: the table as an option, and the detector."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from aerobee_client.message import Message
from aerobee_client.producer import AsyncProducer
from aerobee_wire.status import Code
from support.client.memory import MemoryBroker, MemoryCluster
from support.client.producing import TOPIC, producer
from support.clock.polling import until
from support.codes import raises_code

HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=100)


async def takers(sender: AsyncProducer, count: int = 12) -> set[str]:
    """The brokers that get messages now."""
    sends = [await sender.send(Message(TOPIC, b"x"), accumulate=False) for _ in range(count)]
    return {sent.queue.broker_name for sent in sends}


@pytest.mark.parametrize(("detects", "expected"), [(True, {"a", "b"}), (False, {"a"})])
async def test_a_broker_that_is_back_is_used_before_its_isolation_ends(
    cluster: MemoryCluster, other: MemoryBroker, detects: bool, expected: set[str]
) -> None:
    """A failed request counts as 10 s, for which this table isolates a broker for an hour."""
    cluster.brokers[other.address] = other
    settings: dict[str, Any] = {"latency_table": [(timedelta(seconds=10), HOUR)]}
    if detects:
        settings |= {"latency_detector": True, "detect_interval": SOON, "detect_timeout": SOON}
    async with producer(cluster, latency_fault=True, **settings) as sender:
        assert await takers(sender) == {"a", "b"}
        await cluster.kill(other)
        assert "a" in await takers(sender)
        assert await takers(sender) == {"a"}
        cluster.revive(other)
        if detects:
            await until(lambda: takers_again(sender))
        else:
            assert sender._instance is not None
            await sender._instance.routes.refresh(TOPIC)
        assert await takers(sender) == expected


async def takers_again(sender: AsyncProducer) -> bool:
    return await takers(sender) == {"a", "b"}


@pytest.mark.parametrize(
    ("settings", "about"),
    [
        ({"latency_detector": True}, "latency_detector"),
        ({"latency_table": [(-HOUR, HOUR)]}, "latency_table"),
        ({"detect_timeout": timedelta(0)}, None),
    ],
)
def test_settings_without_meaning_are_refused(settings: dict[str, Any], about: str | None) -> None:
    with raises_code(Code.INVALID_PARAMETER, about=about):
        AsyncProducer("p", namesrv="n:1", **settings)
