"""Two processes with the number of one broker: the one that lives stays, whoever comes second."""

from __future__ import annotations

from typing import Any

from aerobee_namesrv.routing.route_info_manager import KEPT_MS
from aerobee_namesrv.routing.rows import BrokerProcess, DataVersion, Registered
from support.namesrv.routing_tables import CLUSTER, RoutingTables, registration
from support.namesrv.routing_tables import key_of as key

OLD, NEW = "old:10911", "new:10911"
NEWER = DataVersion(state_version=9)


def process(name: str, number: int = 0) -> BrokerProcess:
    return BrokerProcess(name, number, store_id=f"store of {name}", start_timestamp_ms=1)


def register(
    tables: RoutingTables, name: str, address: str, *, number: int = 0, **fields: Any
) -> Registered:
    given = registration(
        address=address, process=process(name, number), watch_follows=True, **fields
    )
    return tables.manager.register_broker(given)


def addresses(tables: RoutingTables) -> dict[int, str]:
    return dict(tables.manager.members("broker-a").addresses)


def begun(tables: RoutingTables, broker_id: int = 0, number: int = 0, **fields: Any) -> Any:
    """The older process, with an open stream."""
    assert not register(tables, "old", OLD, broker_id=broker_id, number=number, **fields).rejected
    found = key()._replace(address=OLD)
    return tables.live.open_watch(found, "broker-a", broker_id)


def test_newcomer_is_rejected_while_the_stream_of_the_other_is_open() -> None:
    tables = RoutingTables()
    begun(tables)
    for _ in range(3):
        rejected = register(tables, "new", NEW)
        assert rejected.rejected and rejected.conflict is not None
        assert rejected.conflict.holder_address == OLD
        assert rejected.conflict.holder.store_id == "store of old"
    assert addresses(tables) == {0: OLD}
    assert tables.live.get(key()._replace(address=NEW)) is None


def test_newcomer_replaces_one_whose_stream_has_ended() -> None:
    """Also before it is removed from the tables."""
    tables = RoutingTables()
    watch = begun(tables)
    assert register(tables, "new", NEW).rejected
    tables.live.end_watch(key()._replace(address=OLD), watch)
    assert not register(tables, "new", NEW).rejected
    assert addresses(tables) == {0: NEW}
    assert tables.manager.conflicts.all() == []


def test_newcomer_replaces_one_that_has_not_opened_its_stream() -> None:
    tables = RoutingTables()
    register(tables, "old", OLD)
    assert not register(tables, "new", NEW).rejected


def test_process_that_starts_again_at_its_address_is_no_newcomer() -> None:
    tables = RoutingTables()
    begun(tables)
    assert not register(tables, "started again", OLD).rejected


def test_one_process_may_register_in_another_role() -> None:
    """A replica that becomes master keeps its number, and takes id 0 from another."""
    tables = RoutingTables()
    begun(tables, broker_id=0, number=1)
    assert not register(tables, "new", NEW, broker_id=2, number=2).rejected
    assert not register(tables, "new", NEW, broker_id=0, number=2, version=NEWER).rejected
    assert addresses(tables)[0] == NEW
    assert not register(tables, "old", OLD, broker_id=1, number=1, version=NEWER).rejected
    assert addresses(tables) == {0: NEW, 1: OLD}


def test_replica_with_the_number_of_the_master_is_rejected_in_whatever_role() -> None:
    tables = RoutingTables()
    begun(tables, broker_id=0, number=1)
    assert register(tables, "new", NEW, broker_id=1, number=1, version=NEWER).rejected
    assert register(tables, "new", NEW, broker_id=0, number=1, version=NEWER).rejected
    assert addresses(tables) == {0: OLD}


def test_brokers_of_another_name_or_cluster_have_numbers_of_their_own() -> None:
    tables = RoutingTables()
    begun(tables)
    assert not register(tables, "new", NEW, broker_name="broker-b").rejected
    assert not register(tables, "third", "third:10911", cluster="other").rejected


def test_early_broker_replaces_another_as_before() -> None:
    tables = RoutingTables()
    begun(tables)
    assert not tables.manager.register_broker(registration(address=NEW)).rejected
    assert addresses(tables) == {0: NEW}


def test_conflict_is_listed_once_and_forgotten_when_the_newcomer_is_silent() -> None:
    tables = RoutingTables()
    begun(tables)
    for _ in range(3):
        register(tables, "new", NEW)
        tables.clock.advance(1_000)
    (conflict,) = tables.manager.conflicts.all()
    assert (conflict.cluster, conflict.broker_name) == (CLUSTER, "broker-a")
    assert (conflict.holder_address, conflict.newcomer_address) == (OLD, NEW)
    assert conflict.newcomer == process("new")
    tables.clock.advance(KEPT_MS)
    assert tables.manager.conflicts.all() == []


def test_old_conflicts_are_forgotten_although_they_are_not_listed() -> None:
    """A process that restarts may have another port each time."""
    tables = RoutingTables()
    begun(tables)
    for port in range(1, 50):
        register(tables, "new", f"new:{port}")
        tables.clock.advance(KEPT_MS + 1)
    assert len(tables.manager.conflicts) == 1
