"""`aerobee cluster` and `aerobee broker status`: which brokers there are and how they do."""

from __future__ import annotations

from typing import Any

import typer

from aerobee_cli import output
from aerobee_cli.options import Json, Namesrv, admin_client
from aerobee_cli.output import Column, items_of

app = typer.Typer(help="The cluster.", no_args_is_help=True)

COLUMNS = (
    Column("cluster", "cluster"),
    Column("broker", "broker_name"),
    output.number("broker id", "broker_id"),
    Column("address", "address"),
    Column("last heartbeat", "last_update_timestamp_ms"),
)


@app.callback()
def cluster() -> None:
    """The cluster."""


@app.command("list", epilog="Example: aerobee cluster list")
def list_brokers(context: typer.Context, namesrv: Namesrv = None, json: Json = False) -> None:
    """List the brokers that the name server knows."""
    with admin_client(context, namesrv) as admin:
        found = items_of([admin.cluster()])[0]
    output.show_list(_replicas(found), COLUMNS, as_json=json)


def _replicas(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One item for each address of each broker."""
    heartbeats = {live["address"]: live["last_update_timestamp_ms"] for live in found["live"]}
    return [
        {
            "cluster": broker["cluster"],
            "broker_name": broker["broker_name"],
            "broker_id": broker_id,
            "address": address,
            "last_update_timestamp_ms": heartbeats.get(address, 0),
        }
        for broker in found["brokers"]
        for broker_id, address in broker["addresses"].items()
    ]
