"""A name server's tables without a process, and brokers that register with them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aerobee_namesrv.config import NamesrvOptions, runtime_config
from aerobee_namesrv.routing.broker_live_table import BrokerLiveTable, RemovalQueue
from aerobee_namesrv.routing.route_info_manager import Conflicts, RouteInfoManager
from aerobee_namesrv.routing.rows import (
    BrokerKey,
    DataVersion,
    QueueData,
    Registered,
    Registration,
    TopicRoute,
)
from aerobee_namesrv.routing.watch import MinBrokerIdChanged, Watch
from support.clock.manual_clock import ManualClock

CLUSTER = "DefaultCluster"
V1 = DataVersion(state_version=1, counter=1, timestamp_ms=1)
V2 = DataVersion(state_version=1, counter=2, timestamp_ms=2)


Topic = tuple[str, QueueData]


def topic(name: str, *, queues: int = 4, permission: int = 6) -> Topic:
    return name, QueueData("", queues, queues, permission)


# Never one alone: that would be a single-topic registration.
TOPICS = (topic("orders"), topic("payments"))


def registration(
    broker_name: str = "broker-a",
    broker_id: int = 0,
    *,
    address: str = "",
    topics: Sequence[Topic] = TOPICS,
    version: DataVersion = V1,
    cluster: str = CLUSTER,
    **fields: Any,
) -> Registration:
    """By default the address tells the broker name and id: "broker-a-0:10911"."""
    return Registration(
        cluster=cluster,
        broker_name=broker_name,
        broker_id=broker_id,
        address=address or address_of(broker_name, broker_id),
        data_version=version,
        topics={name: replace(queue, broker_name=broker_name) for name, queue in topics},
        **fields,
    )


def address_of(broker_name: str, broker_id: int = 0) -> str:
    return f"{broker_name}-{broker_id}:10911"


def key_of(broker_name: str = "broker-a", broker_id: int = 0) -> BrokerKey:
    return BrokerKey(CLUSTER, address_of(broker_name, broker_id))


class RoutingTables:
    """RouteInfoManager with a clock that stands, and a removal queue that the test drains."""

    def __init__(self, *, capacity: int = 3_000, **options: object) -> None:
        self.clock = ManualClock()
        self.options = runtime_config(
            NamesrvOptions.from_values({"kv_config_path": Path("unused.json"), **options})
        )
        self.removals = RemovalQueue(capacity)
        self.live = BrokerLiveTable(self.clock, self.removals)
        self.manager = RouteInfoManager(self.options, self.live, Conflicts(self.clock))

    def register(self, *arguments: Any, **fields: Any) -> Registered:
        return self.manager.register_broker(registration(*arguments, **fields))

    def watch(self, broker_name: str = "broker-a", broker_id: int = 0) -> Watch:
        watch = self.live.open_watch(key_of(broker_name, broker_id), broker_name, broker_id)
        assert watch is not None
        return watch

    def remove_waiting(self) -> None:
        """What the background task does."""
        self.manager.unregister(self.removals.drain())

    def scan(self) -> None:
        """What the expiry scan does, and the removal after it."""
        self.live.expire()
        self.remove_waiting()

    def addresses(self, broker_name: str = "broker-a") -> dict[int, str]:
        data = self.manager.broker_addr_table.get(broker_name)
        return dict(data.addresses) if data else {}

    def route(self, name: str = "orders", zone_name: str = "") -> TopicRoute:
        route = self.manager.pickup_topic_route_data(name, zone_name)
        assert route is not None
        return route

    def permission(self, broker_name: str = "broker-a", name: str = "orders") -> int:
        return self.manager.topic_queue_table.queues_of(name)[broker_name].permission


async def sent(watch: Watch) -> list[MinBrokerIdChanged]:
    """What is on its way to a broker. Ends the watch."""
    watch.close()
    return await until_closed(watch)


async def until_closed(watch: Watch) -> list[MinBrokerIdChanged]:
    """What is on its way to a broker whose watch has been closed. Raises TimeoutError if it was
    not.
    """
    async with asyncio.timeout(5):
        return [notice async for notice in watch.notices()]
