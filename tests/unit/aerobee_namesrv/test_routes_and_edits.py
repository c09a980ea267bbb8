"""Queries and edits: facts §1.6."""

from __future__ import annotations

import pytest

from aerobee_namesrv.routing.rows import QueueData, Unregistration
from support.namesrv.routing_tables import CLUSTER, V2, RoutingTables, address_of, topic

UNIT = 1  # a flag of a topic


# ---- routes ----


def test_route_names_queues_and_members_of_every_broker(tables: RoutingTables) -> None:
    tables.register("broker-b", topics=[topic("orders", queues=8), topic("x")])
    tables.register("broker-a", broker_id=0)
    tables.register("broker-a", broker_id=1)
    route = tables.route("orders")
    queues = [(q.broker_name, q.read_queue_count, q.permission) for q in route.queues]
    assert queues == [("broker-a", 4, 6), ("broker-b", 8, 6)]
    assert [broker.addresses for broker in route.brokers] == [
        {0: address_of("broker-a"), 1: address_of("broker-a", 1)},
        {0: address_of("broker-b")},
    ]


def test_attributes_and_flags_travel_with_the_queues(tables: RoutingTables) -> None:
    fifo = "fifo", QueueData("", 2, 3, 6, UNIT, {"message.type": "FIFO"})
    tables.register(topics=[fifo, topic("x")])
    assert tables.route("fifo").queues == (
        QueueData("broker-a", 2, 3, 6, UNIT, {"message.type": "FIFO"}),
    )


def test_unknown_topic_has_no_route(tables: RoutingTables) -> None:
    tables.register()
    assert tables.manager.pickup_topic_route_data("nowhere") is None


def test_unknown_broker_names_are_passed_over(tables: RoutingTables) -> None:
    tables.register("broker-a")
    tables.manager.topic_queue_table.put("orders", [QueueData("broker-z", 1, 1, 6)])
    assert [broker.broker_name for broker in tables.route().brokers] == ["broker-a"]
    tables.manager.topic_queue_table.put("ghost", [QueueData("broker-z", 1, 1, 6)])
    assert tables.manager.pickup_topic_route_data("ghost") is None


# ---- acting master ----


def lose_master(tables: RoutingTables, *, enable_acting_master: bool = True) -> None:
    for broker_id in (0, 1, 2):
        tables.register(broker_id=broker_id, enable_acting_master=enable_acting_master)
    tables.manager.unregister([Unregistration(CLUSTER, "broker-a", 0, address_of("broker-a"))])


def test_lowest_replica_stands_under_id_0_when_the_master_is_lost() -> None:
    tables = RoutingTables(support_acting_master=True)
    lose_master(tables)
    assert tables.route().brokers[0].addresses == {
        0: address_of("broker-a", 1),
        2: address_of("broker-a", 2),
    }
    assert tables.addresses().keys() == {1, 2}, "a view only"


@pytest.mark.parametrize(
    ("supported", "allowed", "writable"),
    [(False, True, False), (True, False, False), (True, True, True)],
    ids=["off, as by default", "not allowed by the group", "while the queues are writable"],
)
def test_nobody_stands_in(supported: bool, allowed: bool, writable: bool) -> None:
    """§1.6: supportActingMaster."""
    tables = RoutingTables(support_acting_master=supported)
    lose_master(tables, enable_acting_master=allowed)
    change = "add_write" if writable else "wipe_write"
    getattr(tables.manager.topic_queue_table, change)({"broker-a"})
    assert tables.route().brokers[0].addresses.keys() == {1, 2}


def test_master_that_is_there_stays_the_master() -> None:
    tables = RoutingTables(support_acting_master=True)
    tables.register(broker_id=0, enable_acting_master=True)
    tables.register(broker_id=1, enable_acting_master=True)
    tables.manager.topic_queue_table.wipe_write({"broker-a"})
    assert tables.route().brokers[0].addresses == tables.addresses()


def test_topics_that_keep_members_in_step_show_who_is_there() -> None:
    tables = RoutingTables(support_acting_master=True)
    name = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    for broker_id in (0, 1):
        tables.register(
            broker_id=broker_id, topics=[topic(name), topic("orders")], enable_acting_master=True
        )
    tables.manager.unregister([Unregistration(CLUSTER, "broker-a", 0, address_of("broker-a"))])
    assert tables.route(name).brokers[0].addresses.keys() == {1}
    assert tables.route("orders").brokers[0].addresses.keys() == {0}


# ---- zones ----


def test_zone_leaves_out_brokers_of_other_zones(tables: RoutingTables) -> None:
    tables.register("broker-a", zone_name="East", filter_servers=("fa:1",))
    tables.register("broker-b", zone_name="west", filter_servers=("fb:1",))
    route = tables.route(zone_name="eaST")
    assert [broker.broker_name for broker in route.brokers] == ["broker-a"]
    assert [queue.broker_name for queue in route.queues] == ["broker-a"]
    assert list(route.filter_servers) == [address_of("broker-a")]
    assert len(tables.route().brokers) == 2


def test_broker_without_a_master_is_kept_in_every_zone(tables: RoutingTables) -> None:
    tables.register("broker-a", zone_name="east")
    tables.register("broker-b", broker_id=0, zone_name="west")
    tables.register("broker-b", broker_id=1, zone_name="west")
    tables.manager.unregister([Unregistration(CLUSTER, "broker-b", 0, address_of("broker-b"))])
    names = [broker.broker_name for broker in tables.route(zone_name="east").brokers]
    assert names == ["broker-a", "broker-b"]


# ---- write permission ----


def test_wiped_broker_can_still_be_read(tables: RoutingTables) -> None:
    tables.register("broker-a", topics=[topic("orders"), topic("readonly", permission=4)])
    tables.register("broker-b")
    assert tables.manager.topic_queue_table.wipe_write({"broker-a"}) == 1
    assert (tables.permission("broker-a"), tables.permission("broker-b")) == (4, 6)


def test_wiping_lasts_until_the_data_version_changes(tables: RoutingTables) -> None:
    """§1.6: not sticky."""
    tables.register()
    tables.manager.topic_queue_table.wipe_write({"broker-a"})
    tables.register()
    assert tables.permission() == 4
    tables.register(version=V2)
    assert tables.permission() == 6


def test_write_permission_is_given_back_with_read(tables: RoutingTables) -> None:
    """§1.6: perm = 6, whatever it was."""
    tables.register(topics=[topic("orders", permission=0), topic("payments", permission=6)])
    assert tables.manager.topic_queue_table.add_write({"broker-a"}) == 1
    assert tables.permission() == 6


def test_unknown_broker_has_no_topic_to_change(tables: RoutingTables) -> None:
    tables.register()
    assert tables.manager.topic_queue_table.wipe_write({"broker-z"}) == 0


# ---- topics by hand ----


def test_deleted_topic_is_forgotten_on_every_broker(tables: RoutingTables) -> None:
    tables.register("broker-a")
    tables.register("broker-b")
    tables.manager.delete_topic("orders")
    tables.manager.delete_topic("never-there")
    assert tables.manager.topic_queue_table.names() == ["payments"]


def test_topic_is_deleted_in_one_cluster_only(tables: RoutingTables) -> None:
    tables.register("broker-a", cluster="one")
    tables.register("broker-b", cluster="two")
    tables.manager.delete_topic("orders", "unknown")
    tables.manager.delete_topic("orders", "one")
    assert [queue.broker_name for queue in tables.route("orders").queues] == ["broker-b"]
    tables.manager.delete_topic("orders", "two")
    assert "orders" not in tables.manager.topic_queue_table


def test_topic_is_registered_by_hand_beside_what_is_there(tables: RoutingTables) -> None:
    tables.register("broker-a")
    tables.register("broker-b", topics=[])
    assert tables.manager.register_topic("orders", [QueueData("broker-b", 1, 1, 6)])
    assert [queue.broker_name for queue in tables.route().queues] == ["broker-a", "broker-b"]


def test_topic_with_an_unknown_broker_is_not_registered(tables: RoutingTables) -> None:
    tables.register("broker-a")
    queues = [QueueData("broker-a", 1, 1, 6), QueueData("broker-z", 1, 1, 6)]
    assert not tables.manager.register_topic("new", queues)
    assert "new" not in tables.manager.topic_queue_table


# ---- lists ----


def test_topics_are_listed_by_cluster(tables: RoutingTables) -> None:
    tables.register("broker-a", cluster="one", topics=[topic("b"), topic("a")])
    tables.register("broker-b", cluster="two", topics=[topic("c"), topic("a")])
    assert tables.manager.topic_queue_table.names() == ["a", "b", "c"]
    assert tables.manager.topics_of_cluster("two") == ["a", "c"]
    assert tables.manager.topics_of_cluster("three") == []


def test_system_topics_are_clusters_and_brokers(tables: RoutingTables) -> None:
    assert tables.manager.system_topics() == ([], "")
    tables.register("broker-a")
    tables.register("broker-b", cluster="other")
    names, address = tables.manager.system_topics()
    assert names == [CLUSTER, "broker-a", "broker-b", "other"]
    assert address == address_of("broker-a")
