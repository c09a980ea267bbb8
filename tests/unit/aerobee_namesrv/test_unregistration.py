"""Unregistration and expiry: facts §1.4."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from aerobee_namesrv.app import remove_in_batches, scan_for_expired
from aerobee_namesrv.routing.route_info_manager import MOST_AWAY
from aerobee_namesrv.routing.rows import Reason, Unregistration
from support.clock.polling import until
from support.namesrv.routing_tables import (
    CLUSTER,
    V2,
    RoutingTables,
    address_of,
    key_of,
    topic,
    until_closed,
)


def unregistration(broker_name: str = "broker-a", broker_id: int = 0) -> Unregistration:
    return Unregistration(CLUSTER, broker_name, broker_id, address_of(broker_name, broker_id))


# ---- effect ----


def test_last_member_removes_broker_name_cluster_and_topics(tables: RoutingTables) -> None:
    """§1.4 effect and topics: removed broker."""
    tables.register(filter_servers=("f:1",))
    tables.manager.unregister([unregistration()])
    assert tables.manager.broker_addr_table == {}
    assert tables.manager.cluster_addr_table == {}
    assert tables.manager.filter_server_table == {}
    assert len(tables.live) == 0
    assert len(tables.manager.topic_queue_table) == 0
    assert tables.manager.pickup_topic_route_data("orders") is None


def test_the_brokers_that_had_a_topic_are_known_while_they_are_away(tables: RoutingTables) -> None:
    for name in ("broker-a", "broker-b", "broker-c"):
        tables.register(name, topics=[topic("orders"), topic(f"of-{name}")])
    assert tables.manager.away_brokers_of("orders") == []
    tables.manager.unregister([unregistration("broker-b"), unregistration("broker-a")])
    assert tables.manager.away_brokers_of("orders") == ["broker-a", "broker-b"]
    assert tables.manager.away_brokers_of("of-broker-a") == ["broker-a"]
    assert tables.manager.away_brokers_of("of-broker-c") == []
    assert tables.manager.away_brokers_of("nowhere") == []


def test_a_broker_that_is_back_has_what_it_registers(tables: RoutingTables) -> None:
    tables.register(topics=[topic("orders"), topic("payments")])
    tables.manager.unregister([unregistration()])
    tables.register(topics=[topic("orders"), topic("refunds")], version=V2)
    assert tables.manager.away_brokers_of("payments") == []
    tables.manager.unregister([unregistration()])
    assert tables.manager.away_brokers_of("payments") == []
    assert tables.manager.away_brokers_of("refunds") == ["broker-a"]


def test_a_broker_that_left_is_missing_unless_it_was_drained(tables: RoutingTables) -> None:
    tables.register("broker-b")
    tables.register("broker-a", topics=[topic("orders"), topic("payments", permission=4)])
    tables.register("broker-c", topics=[topic(name, permission=4) for name in ("x", "y")])
    assert tables.manager.missing_brokers() == []
    tables.manager.unregister([unregistration(f"broker-{each}") for each in "abc"])
    missing = tables.manager.missing_brokers()
    assert [(each.cluster, each.broker_name) for each in missing] == [
        (CLUSTER, "broker-a"),
        (CLUSTER, "broker-b"),
    ]
    tables.register("broker-a", version=V2)
    assert [each.broker_name for each in tables.manager.missing_brokers()] == ["broker-b"]


def test_a_broker_that_drained_for_a_restart_is_missing(tables: RoutingTables) -> None:
    tables.register(topics=[topic(name, permission=4) for name in ("x", "y")])
    tables.manager.unregister([replace(unregistration(), will_return=True)])
    assert [each.broker_name for each in tables.manager.missing_brokers()] == ["broker-a"]


def test_a_topic_that_is_deleted_while_its_broker_is_away_is_not_expected(
    tables: RoutingTables,
) -> None:
    tables.register()
    tables.manager.unregister([unregistration()])
    tables.manager.delete_topic("orders")
    assert tables.manager.away_brokers_of("orders") == []
    assert tables.manager.away_brokers_of("payments") == ["broker-a"]


def test_the_topics_of_the_brokers_that_went_last_are_remembered(tables: RoutingTables) -> None:
    names = [f"broker-{number}" for number in range(MOST_AWAY + 1)]
    for name in names:
        tables.register(name)
        tables.manager.unregister([unregistration(name)])
    assert tables.manager.away_brokers_of("orders") == sorted(names[1:])


def test_other_brokers_of_topic_and_cluster_stay(tables: RoutingTables) -> None:
    tables.register("broker-a")
    tables.register("broker-b")
    tables.manager.unregister([unregistration("broker-a")])
    assert tables.manager.cluster_addr_table == {CLUSTER: {"broker-b"}}
    assert [queue.broker_name for queue in tables.route().queues] == ["broker-b"]


def test_batch_removes_all_its_brokers(tables: RoutingTables) -> None:
    for name in ("broker-a", "broker-b", "broker-c"):
        tables.register(name)
    tables.manager.unregister([unregistration("broker-a"), unregistration("broker-c")])
    assert list(tables.manager.broker_addr_table) == ["broker-b"]
    assert tables.manager.unregistered[Reason.REQUESTED] == 2


@pytest.mark.parametrize(
    ("leaves", "enable_acting_master", "permission"), [(1, True, 6), (0, True, 4), (0, False, 6)]
)
def test_topics_become_read_only_when_an_acting_master_takes_over(
    tables: RoutingTables, leaves: int, enable_acting_master: bool, permission: int
) -> None:
    """§1.4 topics: reduced group, acting master enabled, no id 0 left."""
    for broker_id in (0, 1):
        tables.register(broker_id=broker_id, enable_acting_master=enable_acting_master)
    tables.manager.unregister([unregistration(broker_id=leaves)])
    assert tables.addresses() == {1 - leaves: address_of("broker-a", 1 - leaves)}
    assert tables.permission() == permission


def test_batch_that_removes_all_members_removes_the_group(tables: RoutingTables) -> None:
    tables.register(broker_id=0, enable_acting_master=True)
    tables.register(broker_id=1, enable_acting_master=True)
    tables.manager.unregister([unregistration(broker_id=0), unregistration(broker_id=1)])
    assert tables.manager.broker_addr_table == {}
    assert len(tables.manager.topic_queue_table) == 0


def test_broker_is_not_removed_under_another_name(tables: RoutingTables) -> None:
    """It would leave an address in the route that no scan ever finds."""
    tables.register()
    tables.manager.unregister([Unregistration(CLUSTER, "broker-z", 0, address_of("broker-a"))])
    assert tables.live.get(key_of()) is not None


def test_replaced_address_does_not_unregister_its_successor(tables: RoutingTables) -> None:
    """§1.2 step 6, §1.4: removal is by address, not by id."""
    tables.register(address="10.0.0.1:10911")
    tables.register(address="10.0.0.2:10911")
    tables.manager.unregister([Unregistration(CLUSTER, "broker-a", 0, "10.0.0.1:10911")])
    assert tables.addresses() == {0: "10.0.0.2:10911"}
    assert [key.address for key, _ in tables.live.items()] == ["10.0.0.2:10911"]


# ---- silence ----


def test_broker_is_kept_until_its_silence_is_longer_than_its_timeout(tables: RoutingTables) -> None:
    """§1.4: expired when lastUpdate + heartbeatTimeout < now; 120 s by default."""
    tables.register()
    tables.clock.advance(120_000)
    tables.scan()
    assert tables.addresses()
    tables.clock.advance(1)
    tables.scan()
    assert not tables.addresses()
    assert tables.manager.unregistered[Reason.EXPIRED] == 1


def test_each_broker_has_its_own_timeout(tables: RoutingTables) -> None:
    """§1.4: 10 s in slave-acting-master mode."""
    tables.register("broker-a")
    tables.register("broker-b", heartbeat_timeout_ms=10_000)
    tables.clock.advance(10_001)
    tables.scan()
    assert list(tables.manager.broker_addr_table) == ["broker-a"]


def test_every_sign_of_life_counts(tables: RoutingTables) -> None:
    """§1.4: registration and heartbeat refresh the time of the last sign."""
    tables.register()
    tables.clock.advance(100_000)
    assert tables.live.refresh(key_of())
    tables.clock.advance(100_000)
    tables.register()
    tables.clock.advance(100_000)
    tables.scan()
    assert tables.addresses()


def test_heartbeat_of_an_unknown_broker_is_refused(tables: RoutingTables) -> None:
    assert not tables.live.refresh(key_of())
    assert len(tables.live) == 0


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_jump_of_the_time_of_day_expires_nobody_and_spares_nobody(
    tables: RoutingTables, jump_ms: int
) -> None:
    tables.register()
    tables.clock.jump(jump_ms)
    tables.scan()
    assert tables.addresses()
    tables.clock.advance(120_001)
    tables.scan()
    assert not tables.addresses()


def test_sign_of_life_keeps_an_expired_broker(tables: RoutingTables) -> None:
    tables.register()
    tables.clock.advance(120_001)
    assert tables.live.expire() == 1
    tables.live.refresh(key_of())
    tables.remove_waiting()
    assert tables.addresses()


# ---- the end of a watch ----


def test_end_of_the_watch_removes_the_broker(tables: RoutingTables) -> None:
    """§1.4: channel close."""
    tables.register()
    tables.live.end_watch(key_of(), tables.watch())
    tables.remove_waiting()
    assert not tables.addresses()
    assert tables.manager.unregistered[Reason.DISCONNECTED] == 1


def test_watch_is_refused_to_an_unknown_broker(tables: RoutingTables) -> None:
    tables.register()
    assert tables.live.open_watch(key_of(), "broker-a", 1) is None
    assert tables.live.open_watch(key_of(), "broker-z", 0) is None
    assert tables.live.open_watch(key_of("broker-z"), "broker-z", 0) is None


async def test_end_of_a_watch_that_was_replaced_removes_nobody(tables: RoutingTables) -> None:
    tables.register()
    old, new = tables.watch(), tables.watch()
    await until_closed(old)
    tables.live.end_watch(key_of(), old)
    tables.remove_waiting()
    assert tables.addresses()
    tables.live.end_watch(key_of(), new)
    tables.remove_waiting()
    assert not tables.addresses()


def test_watch_outlives_registrations_that_no_other_follows(tables: RoutingTables) -> None:
    tables.register(watch_follows=True)
    watch = tables.watch()
    tables.register()
    tables.live.end_watch(key_of(), watch)
    tables.remove_waiting()
    assert not tables.addresses()


async def test_broker_that_opens_another_watch_survives_the_end_of_the_old_one(
    tables: RoutingTables,
) -> None:
    """kill -9 and restart: the new process registers before the old connection is known to be
    closed. Likewise a candidate that follows a master now: it registers, with the id that it had,
    before the end of its old stream has come.
    """
    tables.register(watch_follows=True)
    watch = tables.watch()
    tables.register(watch_follows=True)
    await until_closed(watch)
    tables.live.end_watch(key_of(), watch)
    tables.remove_waiting()
    assert tables.addresses()


def test_broker_that_took_another_role_survives_the_end_of_the_watch_before(
    tables: RoutingTables,
) -> None:
    """One process, and so one connection: a slave that was elected."""
    address = address_of("broker-a", 1)
    tables.register(broker_id=1, address=address, watch_follows=True)
    of_slave = tables.watch(broker_id=1)
    tables.register(broker_id=0, address=address, watch_follows=True)
    tables.live.end_watch(key_of(broker_id=1), of_slave)
    tables.remove_waiting()
    assert tables.addresses() == {0: address}

    of_master = tables.live.open_watch(key_of(broker_id=1), "broker-a", 0)
    assert of_master is not None
    tables.live.end_watch(key_of(broker_id=1), of_master)
    tables.remove_waiting()
    assert not tables.addresses()


def test_broker_that_registers_after_its_watch_is_kept(tables: RoutingTables) -> None:
    tables.register()
    tables.live.end_watch(key_of(), tables.watch())
    tables.register()
    tables.remove_waiting()
    assert tables.addresses()


async def test_removed_broker_has_its_watch_ended(tables: RoutingTables) -> None:
    """§1.4: expired → close channel."""
    tables.register()
    watch = tables.watch()
    tables.clock.advance(120_001)
    tables.scan()
    await until_closed(watch)


async def test_leaving_name_server_ends_all_watches_and_removes_nobody(
    tables: RoutingTables,
) -> None:
    tables.register()
    watch = tables.watch()
    tables.live.close_watches()
    await until_closed(watch)
    tables.live.end_watch(key_of(), watch)
    assert len(tables.removals) == 0


# ---- the queue ----


def test_queue_refuses_what_is_beyond_its_capacity() -> None:
    """§1.4: bounded."""
    tables = RoutingTables(capacity=2)
    assert [tables.removals.submit(unregistration()) for _ in range(3)] == [True, True, False]
    assert len(tables.removals.drain()) == 2
    assert tables.removals.submit(unregistration())


def test_scan_submits_a_broker_that_the_full_queue_refused() -> None:
    tables = RoutingTables(capacity=1)
    tables.register("broker-a")
    watch = tables.watch()
    tables.removals.submit(unregistration("broker-z"))
    tables.live.end_watch(key_of(), watch)
    tables.remove_waiting()
    assert tables.addresses()
    tables.scan()
    assert not tables.addresses()


async def test_batch_is_all_that_waits(tables: RoutingTables) -> None:
    names = ["broker-a", "broker-b", "broker-c"]
    for name in names:
        tables.removals.submit(unregistration(name))
    batch = await tables.removals.next_batch()
    assert [each.broker_name for each in batch] == names
    assert len(tables.removals) == 0


# ---- test liveness ----
#
# The background coroutines: when they scan and what they remove.


class Stop(Exception):
    """Ends a coroutine that runs for ever."""


class ScriptedSleep:
    """Sleep number n runs step n with the seconds; the sleep after the last step raises Stop."""

    def __init__(self, *steps: Callable[[float], None]) -> None:
        self._steps = iter(steps)
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        step = next(self._steps, None)
        if step is None:
            raise Stop
        self.slept.append(seconds)
        step(seconds)


@pytest.mark.parametrize(("interval_ms", "first_s"), [(5_000, 5), (60_000, 5), (1_000, 1)])
async def test_first_scan_is_after_5_s_and_then_every_interval(
    interval_ms: int, first_s: float
) -> None:
    """§1.4: first run after 5 s, then with a fixed delay."""
    tables = RoutingTables()

    def pass_time(seconds: float) -> None:
        tables.clock.advance(int(seconds * 1_000))

    sleep = ScriptedSleep(pass_time, pass_time, pass_time)
    with pytest.raises(Stop):
        await scan_for_expired(tables.live, tables.clock, interval_ms, sleep)
    assert sleep.slept == [first_s, interval_ms / 1_000, interval_ms / 1_000]


async def test_scan_submits_the_silent() -> None:
    tables = RoutingTables()
    tables.register(heartbeat_timeout_ms=4_999)

    def pass_time(seconds: float) -> None:
        tables.clock.advance(int(seconds * 1_000))

    with pytest.raises(Stop):
        await scan_for_expired(tables.live, tables.clock, 5_000, ScriptedSleep(pass_time))
    assert [each.address for each in tables.removals.drain()] == [address_of("broker-a")]


async def test_scan_after_the_process_itself_was_stopped_is_left_out() -> None:
    """SIGSTOP for ten minutes, then SIGCONT: what brokers sent meanwhile has not been read yet."""
    tables = RoutingTables()
    tables.register()
    waiting: list[int] = []

    def stopped(seconds: float) -> None:
        tables.clock.advance(600_000)

    def pass_time(seconds: float) -> None:
        waiting.append(len(tables.removals))
        tables.live.refresh(key_of())
        tables.clock.advance(int(seconds * 1_000))

    with pytest.raises(Stop):
        await scan_for_expired(tables.live, tables.clock, 5_000, ScriptedSleep(stopped, pass_time))
    assert waiting == [0]
    assert len(tables.removals) == 0


async def test_removal_takes_effect_without_a_scan() -> None:
    tables = RoutingTables()
    tables.register()
    task = asyncio.create_task(remove_in_batches(tables.manager, tables.removals))
    tables.live.end_watch(key_of(), tables.watch())
    await until(lambda: not tables.addresses(), "the broker is removed")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
