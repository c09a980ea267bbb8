"""Notices that the lowest broker id of a group changed: facts §1.2 step 4 and 13, §1.5."""

from __future__ import annotations

import pytest

from aerobee_namesrv.routing.rows import Unregistration
from aerobee_namesrv.routing.watch import MinBrokerIdChanged
from support.namesrv.routing_tables import CLUSTER, RoutingTables, address_of, sent


@pytest.fixture
def tables() -> RoutingTables:
    return RoutingTables(notify_min_broker_id_changed=True)


def join(tables: RoutingTables, broker_id: int, *, enable_acting_master: bool = True) -> None:
    tables.register(
        broker_id=broker_id,
        enable_acting_master=enable_acting_master,
        ha_server_address=f"ha-{broker_id}:10912",
    )


def leave(tables: RoutingTables, broker_id: int) -> None:
    address = address_of("broker-a", broker_id)
    tables.manager.unregister([Unregistration(CLUSTER, "broker-a", broker_id, address)])


async def test_newcomer_with_a_lower_id_is_reported_to_all_others(tables: RoutingTables) -> None:
    """§1.5: a smaller id came online: everyone except that new minimum."""
    join(tables, 2)
    join(tables, 3)
    second, third = tables.watch(broker_id=2), tables.watch(broker_id=3)
    join(tables, 1)
    notice = MinBrokerIdChanged(1, address_of("broker-a", 1), "", "ha-1:10912")
    assert await sent(second) == [notice]
    assert await sent(third) == [notice]
    assert await sent(tables.watch(broker_id=1)) == []


@pytest.mark.parametrize(("members", "joins"), [((1,), 2), ((0, 1), 0)])
async def test_unchanged_lowest_id_is_not_reported(
    tables: RoutingTables, members: tuple[int, ...], joins: int
) -> None:
    """A newcomer with a higher id; the lowest that registers again."""
    for broker_id in members:
        join(tables, broker_id)
    watch = tables.watch(broker_id=1)
    join(tables, joins)
    assert await sent(watch) == []


async def test_new_master_is_not_notified_of_itself(tables: RoutingTables) -> None:
    """§1.2 step 5, §1.5: it comes with its watch open."""
    for broker_id in (1, 2):
        join(tables, broker_id)
    first, second = tables.watch(broker_id=1), tables.watch(broker_id=2)
    address = address_of("broker-a", 2)
    tables.register(broker_id=0, address=address, enable_acting_master=True)
    assert await sent(first) == [MinBrokerIdChanged(0, address, "", "")]
    assert await sent(second) == []


async def test_first_member_is_not_reported(tables: RoutingTables) -> None:
    """§1.2 step 4: the previous minimum of an empty group is 0."""
    join(tables, 5)
    assert await sent(tables.watch(broker_id=5)) == []


async def test_lowest_that_leaves_is_reported_to_all_that_remain(tables: RoutingTables) -> None:
    """§1.5: when someone went offline all remaining members are told."""
    for broker_id in (0, 1, 2):
        join(tables, broker_id)
    first, second = tables.watch(broker_id=1), tables.watch(broker_id=2)
    leave(tables, 0)
    notice = MinBrokerIdChanged(1, address_of("broker-a", 1), address_of("broker-a", 0), "")
    assert await sent(first) == [notice]
    assert await sent(second) == [notice]


async def test_higher_one_that_leaves_is_not_reported(tables: RoutingTables) -> None:
    for broker_id in (0, 1, 2):
        join(tables, broker_id)
    watch = tables.watch(broker_id=0)
    leave(tables, 2)
    assert await sent(watch) == []


async def test_departure_is_reported_only_in_groups_with_an_acting_master(
    tables: RoutingTables,
) -> None:
    """§1.5: on unregister only for groups with enableActingMaster."""
    join(tables, 0, enable_acting_master=False)
    join(tables, 1, enable_acting_master=False)
    watch = tables.watch(broker_id=1)
    leave(tables, 0)
    assert await sent(watch) == []


async def test_nothing_is_reported_by_default() -> None:
    """§1.5: gated by notifyMinBrokerIdChanged."""
    tables = RoutingTables()
    join(tables, 1)
    watch = tables.watch(broker_id=1)
    join(tables, 0)
    leave(tables, 0)
    assert await sent(watch) == []
