"""Registration: facts §1.2 and §1.3, step by step, in the order in which they take effect."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee_namesrv.routing.rows import BrokerKey, DataVersion, Reason, Registered
from aerobee_wire.status import Code
from support.codes import raises_code
from support.namesrv.routing_tables import (
    CLUSTER,
    TOPICS,
    V1,
    V2,
    RoutingTables,
    address_of,
    key_of,
    topic,
    until_closed,
)

# ---- §1.2, the steps ----


def test_cluster_holds_every_broker_name_that_registered(tables: RoutingTables) -> None:
    """§1.2 step 1."""
    tables.register("broker-a")
    tables.register("broker-b")
    tables.register("broker-c", cluster="other")
    assert tables.manager.cluster_addr_table == {
        CLUSTER: {"broker-a", "broker-b"},
        "other": {"broker-c"},
    }


def test_registering_again_changes_nothing(tables: RoutingTables) -> None:
    tables.register()
    before = tables.route()
    assert tables.register() == Registered()
    assert tables.route() == before
    assert len(tables.live) == 1


@pytest.mark.parametrize(("given", "stored"), [(True, True), (False, False), (None, False)])
def test_acting_master_and_zone_are_set_every_time(
    tables: RoutingTables, given: bool | None, stored: bool
) -> None:
    """§1.2 step 3: absent is an old broker, taken as false."""
    tables.register(enable_acting_master=not stored, zone_name="old")
    tables.register(enable_acting_master=given, zone_name="new")
    data = tables.manager.broker_addr_table["broker-a"]
    assert (data.enable_acting_master, data.zone_name) == (stored, "new")


def test_broker_that_changed_its_role_leaves_its_old_id(tables: RoutingTables) -> None:
    """§1.2 step 5: the same address under another id."""
    tables.register(broker_id=1, address="10.0.0.1:10911")
    tables.register(broker_id=0, address="10.0.0.1:10911")
    assert tables.addresses() == {0: "10.0.0.1:10911"}


def test_holder_of_the_id_with_newer_state_wins(tables: RoutingTables) -> None:
    """§1.2 step 6: the result is empty, and the loser leaves the live table."""
    tables.register(address="10.0.0.1:10911", version=DataVersion(state_version=7))
    answer = tables.register(address="10.0.0.2:10911", version=DataVersion(state_version=6))
    assert answer == Registered(rejected=True)
    assert tables.addresses() == {0: "10.0.0.1:10911"}
    assert [key.address for key, _ in tables.live.items()] == ["10.0.0.1:10911"]


def test_deposed_master_leaves_the_route_when_its_registration_is_rejected(
    tables: RoutingTables,
) -> None:
    tables.register(version=DataVersion(state_version=5))
    tables.register(broker_id=1, version=DataVersion(state_version=6))
    assert tables.register(version=DataVersion(state_version=5)).rejected
    assert tables.addresses() == {1: address_of("broker-a", 1)}
    assert tables.manager.unregistered[Reason.REJECTED] == 1


def test_rejected_registration_adds_no_cluster(tables: RoutingTables) -> None:
    tables.register(version=DataVersion(state_version=7))
    rejected = tables.register(
        cluster="other", address="10.0.0.2:10911", version=DataVersion(state_version=6)
    )
    assert rejected.rejected
    assert tables.manager.cluster_addr_table.keys() == {CLUSTER}


def test_loser_that_was_alive_under_another_id_leaves_the_live_table(tables: RoutingTables) -> None:
    """§1.2 steps 5 and 6: a replica that claims to be master, and is behind."""
    tables.register(broker_id=0, version=DataVersion(state_version=7))
    tables.register(broker_id=1, address="10.0.0.2:10911", version=DataVersion(state_version=6))
    answer = tables.register(
        broker_id=0, address="10.0.0.2:10911", version=DataVersion(state_version=6)
    )
    assert answer.rejected
    assert tables.addresses() == {0: address_of("broker-a")}
    assert len(tables.live) == 1


def test_slave_with_an_epoch_that_its_group_cannot_have_reached_deposes_no_master(
    tables: RoutingTables,
) -> None:
    wrong = DataVersion(state_version=2**63 - 1)
    tables.register(broker_id=1, address="10.0.0.2:10911", version=wrong)
    for epoch in (7, 8):
        master = DataVersion(state_version=epoch)
        assert not tables.register(broker_id=0, version=master).rejected
        assert tables.manager.members("broker-a").epoch == epoch
    assert tables.addresses() == {0: address_of("broker-a"), 1: "10.0.0.2:10911"}


@pytest.mark.parametrize("state_version", [7, 8])
def test_newcomer_with_no_older_state_replaces_the_holder(
    tables: RoutingTables, state_version: int
) -> None:
    """§1.2 step 6: only a greater stored state version is a reason to refuse; counters are none."""
    tables.register(address="10.0.0.1:10911", version=DataVersion(7, counter=99))
    tables.register(address="10.0.0.2:10911", version=DataVersion(state_version, counter=1))
    assert tables.addresses() == {0: "10.0.0.2:10911"}


def test_holder_that_is_not_alive_is_replaced(tables: RoutingTables) -> None:
    """§1.2 step 6: without live information there is nothing to compare."""
    tables.register(address="10.0.0.1:10911", version=DataVersion(state_version=7))
    tables.live.drop(BrokerKey(CLUSTER, "10.0.0.1:10911"))
    tables.register(address="10.0.0.2:10911", version=DataVersion(state_version=1))
    assert tables.addresses() == {0: "10.0.0.2:10911"}


def test_one_topic_alone_is_refused_from_an_unknown_broker_id(tables: RoutingTables) -> None:
    """§1.2 step 7."""
    with raises_code(Code.SYSTEM_ERROR):
        tables.register(topics=[topic("orders")])
    assert tables.manager.broker_addr_table == {}
    assert tables.manager.cluster_addr_table == {}
    assert len(tables.live) == 0


def test_a_refused_registration_leaves_the_broker_where_it_was(tables: RoutingTables) -> None:
    tables.register("broker-a", address="10.0.0.1:10911")
    with raises_code(Code.SYSTEM_ERROR):
        tables.register("broker-b", address="10.0.0.1:10911", topics=[topic("t")])
    assert tables.addresses() == {0: "10.0.0.1:10911"}


def test_an_outdated_registration_leaves_acting_master_and_zone(tables: RoutingTables) -> None:
    newer, older = DataVersion(state_version=7), DataVersion(state_version=6)
    tables.register(address="10.0.0.1:10911", version=newer, zone_name="new")
    given = {"enable_acting_master": True, "zone_name": "old"}
    tables.register(address="10.0.0.2:10911", version=older, **given)
    data = tables.manager.broker_addr_table["broker-a"]
    assert (data.enable_acting_master, data.zone_name) == (False, "new")


def test_one_topic_alone_is_taken_from_a_known_broker_id(tables: RoutingTables) -> None:
    """§1.2 step 7: legal after a full registration."""
    tables.register()
    tables.register(topics=[topic("refunds")], version=V2)
    assert tables.manager.topic_queue_table.names() == ["orders", "payments", "refunds"]


def test_broker_without_topics_is_taken(tables: RoutingTables) -> None:
    """§1.2 step 7 is about exactly one."""
    tables.register(topics=[])
    assert tables.addresses() == {0: address_of("broker-a")}


def test_topics_of_a_plain_replica_are_not_stored(tables: RoutingTables) -> None:
    """§1.2 step 9: only the master's, or the prime replica's."""
    tables.register(topics=[topic("orders"), topic("payments")])
    tables.register(broker_id=1, topics=[topic("x"), topic("y")], enable_acting_master=True)
    assert tables.manager.topic_queue_table.names() == ["orders", "payments"]


@pytest.mark.parametrize(
    ("enable_acting_master", "permission"), [(True, 4), (False, 6), (None, None)]
)
def test_topics_of_the_prime_replica_are_stored(
    tables: RoutingTables, enable_acting_master: bool | None, permission: int | None
) -> None:
    """§1.2 step 9, §1.3: the lowest id of the group, when it sends enableActingMaster at all; with
    it on, without the write permission.
    """
    tables.register(broker_id=1, enable_acting_master=enable_acting_master)
    queues = tables.manager.topic_queue_table.queues_of("orders")
    stored = queues["broker-a"].permission if queues else None
    assert stored == permission


def test_live_row_has_the_timeout_that_was_asked_for(tables: RoutingTables) -> None:
    """§1.2 step 10: 120 000 ms when none was."""
    tables.register("broker-a", ha_server_address="10.0.0.1:10912")
    tables.register("broker-b", heartbeat_timeout_ms=10_000)
    a, b = tables.live.get(key_of("broker-a")), tables.live.get(key_of("broker-b"))
    assert a is not None and b is not None
    assert (a.heartbeat_timeout_ms, b.heartbeat_timeout_ms) == (120_000, 10_000)
    assert (a.data_version, a.ha_server_address) == (V1, "10.0.0.1:10912")
    assert a.last_update_timestamp_ms == tables.clock.now_ms()


def test_filter_servers_are_left_replaced_or_removed(tables: RoutingTables) -> None:
    """§1.2 step 11: absent leaves, empty removes, else replaces."""
    tables.register(filter_servers=("f1:1", "f2:1"))
    tables.register(filter_servers=None)
    assert tables.route().filter_servers == {address_of("broker-a"): ("f1:1", "f2:1")}
    tables.register(filter_servers=("f3:1",))
    assert tables.route().filter_servers == {address_of("broker-a"): ("f3:1",)}
    tables.register(filter_servers=())
    assert tables.route().filter_servers == {}


def test_replica_gets_the_address_of_its_master(tables: RoutingTables) -> None:
    """§1.2 step 12."""
    master = tables.register(broker_id=0, ha_server_address="10.0.0.1:10912")
    replica = tables.register(broker_id=1)
    assert master == Registered()
    assert replica == Registered(address_of("broker-a"), "10.0.0.1:10912")


def test_replica_gets_no_address_of_a_dead_master(tables: RoutingTables) -> None:
    """§1.2 step 12: only if that master is in the live table."""
    tables.register(broker_id=0, ha_server_address="10.0.0.1:10912")
    tables.live.drop(key_of())
    assert tables.register(broker_id=1) == Registered()


# ---- §1.3, topics ----


def test_topic_is_overwritten_when_the_data_version_changed(tables: RoutingTables) -> None:
    tables.register(topics=TOPICS, version=V1)
    changed = [topic("orders", queues=16, permission=4), topic("payments")]
    tables.register(topics=changed, version=V1)
    assert tables.route().queues[0].read_queue_count == 4
    tables.register(topics=changed, version=V2)
    queue = tables.route().queues[0]
    assert (queue.read_queue_count, queue.write_queue_count, queue.permission) == (16, 16, 4)


@pytest.mark.parametrize(
    "other",
    [
        DataVersion(state_version=0, counter=1, timestamp_ms=1),
        DataVersion(state_version=1, counter=0, timestamp_ms=1),
        DataVersion(state_version=1, counter=1, timestamp_ms=0),
    ],
)
def test_data_versions_are_equal_only_when_all_three_are(
    tables: RoutingTables, other: DataVersion
) -> None:
    """§1.1, §1.3: any difference counts, also towards less."""
    tables.register(version=V1)
    tables.register(topics=[topic("orders", queues=9), topic("payments")], version=other)
    assert tables.route().queues[0].read_queue_count == 9


def test_data_versions_are_ordered_by_state_then_counter_then_timestamp() -> None:
    """§1.1."""
    ascending = [
        DataVersion(state_version=1, counter=1, timestamp_ms=9),
        DataVersion(state_version=1, counter=2, timestamp_ms=1),
        DataVersion(state_version=1, counter=2, timestamp_ms=2),
        DataVersion(state_version=2, counter=0, timestamp_ms=0),
    ]
    shuffled = [ascending[place] for place in (2, 0, 3, 1)]
    assert sorted(shuffled) == ascending


def test_missing_topic_is_stored_whatever_the_version(tables: RoutingTables) -> None:
    """§1.3: OR this topic has no queues of this broker name."""
    tables.register()
    tables.manager.delete_topic("orders")
    tables.register()
    assert [queue.broker_name for queue in tables.route("orders").queues] == ["broker-a"]


def test_topics_are_stored_when_the_broker_id_comes_back(tables: RoutingTables) -> None:
    """§1.2 step 8, §1.3: a first registration overwrites, the version does not matter."""
    tables.register(broker_id=0)
    tables.register(broker_id=1)
    tables.manager.topic_queue_table.wipe_write({"broker-a"})
    tables.manager.broker_addr_table["broker-a"].addresses.pop(0)
    tables.register(broker_id=0)
    assert tables.permission() == 6


def test_incremental_registration_leaves_other_topics(tables: RoutingTables) -> None:
    """§1.9: only the changed topics, with the present version."""
    tables.register()
    more = [topic("refunds"), topic("orders", queues=8)]
    tables.register(topics=more, version=V2, incremental=True)
    assert tables.manager.topic_queue_table.names() == ["orders", "payments", "refunds"]
    assert tables.route("orders").queues[0].read_queue_count == 8
    assert tables.live.data_version(key_of()) == V2


def test_topics_that_a_broker_no_longer_has_are_dropped_on_demand() -> None:
    """§1.3: with the switch on, and only this broker's queues."""
    tables = RoutingTables(delete_topic_with_broker_registration=True)
    tables.register("broker-a")
    tables.register("broker-b")
    tables.register("broker-a", topics=[topic("orders"), topic("refunds")], version=V2)
    assert [queue.broker_name for queue in tables.route("payments").queues] == ["broker-b"]
    tables.register("broker-b", topics=[topic("orders"), topic("refunds")], version=V2)
    assert tables.manager.topic_queue_table.names() == ["orders", "refunds"]


@pytest.mark.parametrize(("switch", "left"), [(True, ["orders"]), (False, ["orders", "payments"])])
def test_removed_topics_of_an_incremental_registration(switch: bool, left: list[str]) -> None:
    tables = RoutingTables(delete_topic_with_broker_registration=switch)
    tables.register("broker-a")
    tables.register("broker-b")
    for name in ("broker-a", "broker-b"):
        assert "payments" in tables.manager.topic_queue_table
        removed = {"topics": [], "removed_topics": ["payments", "unknown"]}
        tables.register(name, version=V2, incremental=True, **removed)
    assert tables.manager.topic_queue_table.names() == left


@pytest.mark.parametrize(
    ("switch", "fields"),
    [
        (False, {"topics": [topic("orders"), topic("refunds")]}),
        (True, {"topics": [topic("refunds")], "incremental": True}),
    ],
    ids=["off, as by default", "incremental"],
)
def test_topics_that_a_broker_leaves_out_are_kept(switch: bool, fields: dict[str, Any]) -> None:
    """§1.3: deleteTopicWithBrokerRegistration; an incremental one says nothing of the others."""
    tables = RoutingTables(delete_topic_with_broker_registration=switch)
    tables.register()
    tables.register(version=V2, **fields)
    assert tables.manager.topic_queue_table.names() == ["orders", "payments", "refunds"]


# ---- an address belongs to one broker name ----


async def test_address_that_comes_back_under_another_name_leaves_the_old_one(
    tables: RoutingTables,
) -> None:
    address = "10.0.0.1:10911"
    tables.register("broker-a", address=address)
    watch = tables.live.open_watch(key_of()._replace(address=address), "broker-a", 0)
    assert watch is not None
    tables.register("broker-b", address=address)
    assert list(tables.manager.broker_addr_table) == ["broker-b"]
    assert tables.manager.cluster_addr_table == {CLUSTER: {"broker-b"}}
    assert [queue.broker_name for queue in tables.route().queues] == ["broker-b"]
    await until_closed(watch)


def test_address_that_comes_back_in_another_cluster_leaves_the_old_one(
    tables: RoutingTables,
) -> None:
    tables.register(cluster="old")
    tables.register(cluster="new")
    assert tables.manager.cluster_addr_table == {"new": {"broker-a"}}
    assert [key.cluster for key, _ in tables.live.items()] == ["new"]
    assert tables.route().brokers[0].cluster == "new"


def test_route_is_a_copy_of_the_members(tables: RoutingTables) -> None:
    """§1.6: clones."""
    tables.register()
    tables.route().brokers[0].addresses[5] = "intruder:1"
    assert tables.addresses() == {0: address_of("broker-a")}
