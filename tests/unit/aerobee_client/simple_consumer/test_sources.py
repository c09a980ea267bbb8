"""The sources of a receive, and the brokers that get a heartbeat before it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from aerobee.namesrv.v1.namesrv_pb2 import BrokerData, QueueData, TopicRoute

from aerobee_client.leasing.receiving.answers import Source
from aerobee_client.leasing.receiving.sources import Sources

ROUTE = TopicRoute(
    queues=[QueueData(broker_name="a", read_queue_count=1, permission=6)],
    brokers=[BrokerData(broker_name="a", addresses={0: "a:10911"})],
)


async def test_the_receive_after_a_cancelled_one_announces_the_group_to_a_new_broker() -> None:
    """The broker may create the group only after a heartbeat."""
    announced: list[str] = []
    answers = asyncio.Event()

    async def announce() -> None:
        announced.append("begun")
        await answers.wait()
        announced.append("done")

    async def route(_topic: str) -> TopicRoute:
        return ROUTE

    routes = SimpleNamespace(route=route, master_addresses=lambda: {"a:10911"})
    instance: Any = SimpleNamespace(routes=routes, announce=announce)
    sources = Sources(instance, "g", "", on_change=lambda: None)
    first = asyncio.create_task(sources.of(["t"]))
    await asyncio.sleep(0.1)
    first.cancel()
    await asyncio.wait([first])
    answers.set()
    assert await sources.of(["t"]) == [Source("t", "a")]
    assert await sources.of(["t"]) == [Source("t", "a")]
    assert announced == ["begun", "begun", "done"]
