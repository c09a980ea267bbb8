"""Define `aerobee proxy`: run a proxy, or list running ones."""

from __future__ import annotations

from inspect import getdoc
from typing import Any

import click

from aerobee_cli.command_line import ServiceGroup
from aerobee_cli.connected import proxies_away
from aerobee_cli.options import ListingOptions, end, refuse_context
from aerobee_cli.processes.become import become, inherit_namesrv
from aerobee_cli.table import Column

PROXY_COLUMNS = (
    Column("proxy", "name"),
    Column("state", "state"),
    Column("version", "version"),
    Column("started", "start_timestamp_ms"),
    Column("missing since", "away_since_ms", extra=True),
    Column("administration", "admin_address", extra=True),
)


@click.pass_context
def proxy(context: click.Context) -> None:
    """Run a proxy in the foreground, to which the official SDKs connect, or list running ones.

    Options: --port P, --host H, --namesrv H:P;H:P, --config FILE, --set key=value, --print-config.
    """
    if context.invoked_subcommand is None:
        refuse_context(context)
        inherit_namesrv(context)
        become("aerobee_proxy", context.obj or [])


app = ServiceGroup(
    "proxy",
    callback=proxy,
    help=getdoc(proxy),
    epilog="Example: aerobee proxy --port 8081 --namesrv 127.0.0.1:9876",
    invoke_without_command=True,
    no_args_is_help=False,
)


@app.add("list", epilog="Example: aerobee proxy list --wide")
def list_proxies(*, options: ListingOptions) -> None:
    """List the processes of proxies that the name server knows, and missing proxies.

    A proxy is missing, for up to 24 hours, if its connection ended and it did not stop in
    order. Exit code 3: a proxy is missing.
    """
    table = options.listing(PROXY_COLUMNS)
    with options.admin() as admin:
        cluster = admin.cluster()
    rows: list[dict[str, Any]] = [
        {
            "name": each.name,
            "state": "up",
            "version": each.version,
            "start_timestamp_ms": each.start_timestamp_ms,
            "away_since_ms": None,
            "admin_address": each.admin_address,
        }
        for each in cluster.proxies
    ]
    rows += [
        {
            "name": each.name,
            "state": "missing",
            "version": None,
            "start_timestamp_ms": None,
            "away_since_ms": each.since_timestamp_ms,
            "admin_address": None,
        }
        for each in cluster.away_proxies
    ]
    table.show(rows, as_json=options.json, empty="no proxy is registered")
    end(proxies_away(cluster.away_proxies))
