"""`aerobee cluster` and `aerobee broker status`: which brokers there are and how they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from aerobee_cli import output
from aerobee_cli.errors import INCOMPLETE
from aerobee_cli.options import Json, Namesrv, admin_client
from aerobee_cli.output import Column, items_of, number
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import ReplicaDescription

app = typer.Typer(help="The cluster.", no_args_is_help=True)

COLUMNS = (
    Column("cluster", "cluster"),
    Column("broker", "broker_name"),
    number("broker id", "broker_id"),
    Column("address", "address"),
    Column("role", "role"),
    number("epoch", "epoch"),
    Column("in sync", "in_sync"),
    number("lag (bytes)", "lag_bytes"),
    Column("last heartbeat", "last_update_timestamp_ms"),
)


@app.callback()
def cluster() -> None:
    """The cluster."""


@app.command("list", epilog="Example: aerobee cluster list")
def list_brokers(context: typer.Context, namesrv: Namesrv = None, json: Json = False) -> None:
    """List the brokers that the name server knows, with their replicas.

    Exit code 3: a replica did not answer, and its role is not known.
    """
    silent: list[MqError] = []
    with admin_client(context, namesrv) as admin:
        found = items_of([admin.cluster()])[0]
        names = [broker["broker_name"] for broker in found["brokers"]]
        known = {each.address: each for name in names for each in _told(admin, name, silent)}
    output.show_list(_rows(found, known), COLUMNS, as_json=json)
    for error in silent:
        output.note(error.message)
    if silent:
        raise typer.Exit(INCOMPLETE)


def _told(admin: AdminClient, name: str, silent: list[MqError]) -> list[ReplicaDescription]:
    """What the replicas of a broker say; none where it keeps one copy, or no replica answers."""
    try:
        return admin.replicas(name, silent=silent)
    except MqError as error:
        silent.append(error)
        return []


def _rows(found: dict[str, Any], known: dict[str, ReplicaDescription]) -> list[dict[str, Any]]:
    """One item for each address of each broker."""
    heartbeats = {live["address"]: live["last_update_timestamp_ms"] for live in found["live"]}
    return [
        {
            "cluster": broker["cluster"],
            "broker_name": broker["broker_name"],
            "broker_id": broker_id,
            "address": address,
            "last_update_timestamp_ms": heartbeats.get(address, 0),
            **_role(known.get(address)),
        }
        for broker in found["brokers"]
        for broker_id, address in broker["addresses"].items()
    ]


def _role(replica: ReplicaDescription | None) -> dict[str, Any]:
    """Nothing of a broker that keeps one copy, or that does not answer."""
    if replica is None:
        return {"role": "", "epoch": None, "in_sync": None, "lag_bytes": None}
    return {
        "role": replica.role,
        "epoch": replica.epoch,
        "in_sync": replica.in_sync,
        "lag_bytes": replica.lag_bytes,
    }
