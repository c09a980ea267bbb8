"""Define `aerobee cluster`: list the brokers and their replicas."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from aerobee_cli.command_line import CommandGroup
from aerobee_cli.doctor.broker_group import AbsentReplica, BrokerGroup, absent_replicas
from aerobee_cli.options import ListingOptions, at_once, end
from aerobee_cli.table import Column, number
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import BrokerDescription, ReplicaDescription

app = CommandGroup("cluster", help="Show the cluster.")

COLUMNS = (
    Column("broker", "broker_name"),
    Column("address", "address"),
    Column("last heartbeat", "last_update_timestamp_ms"),
    Column("role", "role", text=True),
    number("replica", "replica_id", extra=True),
    Column("in sync", "in_sync", extra=True),
    number("lag (bytes)", "lag_bytes", extra=True),
    number("epoch", "epoch", extra=True),
    Column("cluster", "cluster", extra=True),
)


@app.add("list", epilog="Example: aerobee cluster list")
def list_brokers(*, options: ListingOptions) -> None:
    """List the brokers that the name server knows, with their replicas.

    The column "replica" has the replica id, which `promote --to` takes. In JSON, broker_id is the
    registration id, which is 0 for the master. Exit code 3: a replica does not answer, or a broker
    has no master or is not registered any more.
    """
    table = options.listing(COLUMNS)
    notes: list[str] = []
    rows: list[dict[str, Any]] = []
    with options.admin() as admin:
        found = admin.cluster()
        heartbeats = {live.address: live.last_update_timestamp_ms for live in found.live}
        groups = at_once(partial(_group, admin), found.brokers)
        for broker, group in zip(found.brokers, groups, strict=True):
            rows += _rows(broker, group, heartbeats)
            notes += group.notes
    notes += [
        f"{name} is not registered any more: start it again, or drain a broker before you remove it"
        for name in found.away
    ]
    if not options.json:
        rows = [row | {"role": _role_text(row)} for row in rows]
    table.show(rows, as_json=options.json, empty="no broker is registered")
    end(notes)


def _group(admin: AdminClient, broker: BrokerDescription) -> BrokerGroup:
    """Return the replicas of a broker; none if the broker keeps one copy or no replica answers."""
    silent: list[MqError] = []
    name = broker.broker_name
    try:
        replicas = admin.replicas(name, silent=silent)
    except MqError as error:
        away = [AbsentReplica(None, address) for address in broker.addresses.values()]
        return BrokerGroup(name, [], away, [error])
    return BrokerGroup(name, replicas, absent_replicas(replicas, broker.addresses), silent)


def _rows(
    broker: BrokerDescription, group: BrokerGroup, heartbeats: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return an item for each address of a broker, and for each replica that is not registered."""
    replicas = {each.address: each for each in group.replicas}
    absent = {each.address: each.replica_id for each in group.absent if each.address}
    unregistered = [each.replica_id for each in group.absent if not each.address]
    rows = [
        {
            "cluster": broker.cluster,
            "broker_name": broker.broker_name,
            "broker_id": broker_id,
            "replica_id": absent.get(address),
            "address": address,
            "last_update_timestamp_ms": heartbeats.get(address, 0),
            "answers": address not in absent,
            **_replica_fields(replicas.get(address)),
        }
        for broker_id, address in broker.addresses.items()
    ]
    unknown = dict.fromkeys(rows[0]) if rows else {}
    return rows + [
        unknown
        | {
            "cluster": broker.cluster,
            "broker_name": broker.broker_name,
            "replica_id": replica_id,
            "address": "",
            "last_update_timestamp_ms": 0,
            "answers": False,
            "role": "",
        }
        for replica_id in unregistered
    ]


def _replica_fields(replica: ReplicaDescription | None) -> dict[str, Any]:
    """Return the fields of a replica, or empty values if `replica` is None."""
    if replica is None:
        return {"role": "", "epoch": None, "in_sync": None, "lag_bytes": None}
    names = ("replica_id", "role", "epoch", "in_sync", "lag_bytes")
    return {name: getattr(replica, name) for name in names}


def _role_text(row: dict[str, Any]) -> str:
    if row["answers"]:
        return str(row["role"])
    return AbsentReplica(row["replica_id"], row["address"]).problem
