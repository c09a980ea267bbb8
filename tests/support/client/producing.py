"""Producers over a cluster in memory."""

from __future__ import annotations

from typing import Any

from aerobee_client.message import Message
from aerobee_client.producer import AsyncProducer
from support.client.memory import NAMESRV, MemoryCluster

TOPIC = "flights"


def producer(cluster: MemoryCluster, **settings: Any) -> AsyncProducer:
    return AsyncProducer("p", namesrv=NAMESRV, transport=cluster, **settings)


def messages(count: int, **arguments: Any) -> list[Message]:
    """Messages "0", "1", … to TOPIC."""
    return [Message(TOPIC, b"%d" % n, **arguments) for n in range(count)]
