"""What clients hear of the members of broker names, and which registrations an election refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aerobee_namesrv.routing.rows import BrokerMembers, DataVersion, Unregistration
from aerobee_namesrv.routing.watch import BrokerWatch
from support.namesrv.routing_tables import CLUSTER, RoutingTables, address_of


@pytest.fixture
def tables() -> RoutingTables:
    return RoutingTables()


def epoch(number: int) -> DataVersion:
    return DataVersion(state_version=number, counter=1, timestamp_ms=1)


def leave(tables: RoutingTables, broker_id: int, address: str = "") -> None:
    held = address or address_of("broker-a", broker_id)
    tables.manager.unregister([Unregistration(CLUSTER, "broker-a", broker_id, held)])


async def heard(watch: BrokerWatch) -> list[str]:
    """What has changed since it was asked last; empty: nothing."""
    changes: AsyncIterator[list[str]] = watch.changes()
    waiting = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if waiting.done():
        return waiting.result()
    waiting.cancel()
    return []


async def test_each_change_of_members_is_heard_once(tables: RoutingTables) -> None:
    watch = tables.manager.watch_brokers()
    tables.register(version=epoch(1))
    tables.register(version=epoch(1))
    tables.register("broker-b")
    assert await heard(watch) == ["broker-a", "broker-b"]
    tables.register(version=epoch(1))
    assert await heard(watch) == []
    tables.register(broker_id=1)
    assert await heard(watch) == ["broker-a"]
    tables.register(version=epoch(2))
    assert await heard(watch) == ["broker-a"]
    leave(tables, 1)
    assert await heard(watch) == ["broker-a"]


async def test_a_watch_that_has_ended_hears_nothing(tables: RoutingTables) -> None:
    watch = tables.manager.watch_brokers()
    tables.manager.end_broker_watch(watch)
    tables.register()
    assert await heard(watch) == []


async def test_the_streams_end_with_the_name_server(tables: RoutingTables) -> None:
    watch = tables.manager.watch_brokers()
    tables.manager.close_broker_watches()
    assert [names async for names in watch.changes()] == []


def test_members_are_reported_with_the_highest_epoch(tables: RoutingTables) -> None:
    assert tables.manager.members("broker-a") == BrokerMembers("", "broker-a")
    tables.register(version=epoch(3))
    tables.register(broker_id=1, version=epoch(4))
    assert tables.manager.members("broker-a") == BrokerMembers(
        CLUSTER,
        "broker-a",
        {0: address_of("broker-a", 0), 1: address_of("broker-a", 1)},
        4,
    )


def test_the_epoch_of_a_master_that_is_gone_is_reported_with_its_slaves(
    tables: RoutingTables,
) -> None:
    tables.register(broker_id=1, version=epoch(3))
    tables.register(version=epoch(4))
    leave(tables, 0)
    assert tables.manager.members("broker-a").epoch == 4
    assert [broker.epoch for broker in tables.route().brokers] == [4]
    leave(tables, 1)
    assert tables.manager.members("broker-a").epoch == 0


def test_a_replica_that_is_elected_takes_the_place_of_the_master(tables: RoutingTables) -> None:
    tables.register(version=epoch(1))
    tables.register(broker_id=1, version=epoch(1))
    replica = address_of("broker-a", 1)

    assert not tables.register(address=replica, version=epoch(2)).rejected

    assert tables.addresses() == {0: replica}
    assert tables.register(version=epoch(1)).rejected
    assert tables.addresses() == {0: replica}


def test_a_deposed_master_is_refused_while_the_new_one_is_known_as_a_replica_only(
    tables: RoutingTables,
) -> None:
    tables.register(broker_id=1, version=epoch(2))
    assert tables.register(version=epoch(1)).rejected
    assert not tables.register(version=epoch(2)).rejected


def test_a_deposed_master_registers_as_a_replica(tables: RoutingTables) -> None:
    replica, master = address_of("broker-a", 1), address_of("broker-a", 0)
    tables.register(version=epoch(1))
    tables.register(address=replica, version=epoch(2))
    assert not tables.register(broker_id=2, address=master, version=epoch(1)).rejected
    assert tables.addresses() == {0: replica, 2: master}


def test_topics_of_a_broker_name_without_a_master_are_those_of_its_lowest_replica(
    tables: RoutingTables,
) -> None:
    """After a restart of the name server, for example."""
    tables.register(broker_id=2, enable_acting_master=False)
    route = tables.route()
    assert [broker.addresses for broker in route.brokers] == [{2: address_of("broker-a", 2)}]
    assert tables.permission() == 6


def test_a_lost_master_leaves_its_topics_to_its_replicas(tables: RoutingTables) -> None:
    tables.register(enable_acting_master=False)
    tables.register(broker_id=1, enable_acting_master=False)
    leave(tables, 0)
    assert [broker.addresses for broker in tables.route().brokers] == [
        {1: address_of("broker-a", 1)}
    ]
    assert tables.permission() == 6


def test_routes_and_the_list_of_brokers_have_the_epoch_too(tables: RoutingTables) -> None:
    tables.register(version=epoch(3))
    tables.register(broker_id=1, version=epoch(4))
    assert [broker.epoch for broker in tables.route().brokers] == [4]
    assert tables.manager.broker_addr_table["broker-a"].epoch == 4
