"""Define `aerobee broker|namesrv|proxy config`: options of running services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import click

from aerobee_cli import output
from aerobee_cli.command_line import Argument, CommandGroup, nearest
from aerobee_cli.doctor.broker_group import look_at, unregistered
from aerobee_cli.options import (
    BadOption,
    Columns,
    Json,
    Namesrv,
    Wide,
    admin_client,
    end,
    listing,
    pairs_of,
)
from aerobee_cli.table import Column, Table
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import ConfigChange, ConfigOption

COLUMNS = (
    Column("key", "key"),
    Column("value", "value"),
    Column("source", "source"),
    Column("changeable", "changeable"),
    Column("process", "address"),
)
CHANGES = (
    Column("process", "address"),
    Column(
        "result",
        "without_effect",
        lambda keys: f"without effect: {', '.join(keys)}" if keys else "changed",
    ),
)

Broker = Annotated[str, Argument(metavar="BROKER", help="Its brokerName, or H:P for one replica.")]
Proxy = Annotated[
    str, Argument(metavar="PROXY", help="Its name in `proxy list`, or H:P of its administration.")
]
Key = Annotated[str | None, Argument(metavar="[KEY]", help="One option. Default: all.")]
Keys = Annotated[list[str], Argument(metavar="KEY...", help="Options.")]
Pairs = Annotated[list[str], Argument(metavar="KEY=VALUE...", help="Options.")]

broker = CommandGroup("config", help="Show and change options of a running broker.")
namesrv = CommandGroup("config", help="Show and change options of running name servers.")
proxy = CommandGroup("config", help="Show and change options of a running proxy.")


@broker.add("get", epilog="Example: aerobee broker config get broker-a fileReservedTime")
def get_of_broker(
    context: click.Context,
    *,
    name: Broker,
    key: Key = None,
    wide: Wide = False,
    columns: Columns = "",
    servers: Namesrv = None,
    json: Json = False,
) -> None:
    """Show the options of each replica of a broker, and from where each value comes.

    A value comes from the first of: command line, run time, environment, file, default. Exit code
    3: a replica does not answer, or is not registered.
    """
    silent: list[MqError] = []
    table = listing(COLUMNS, wide=wide, chosen=columns)
    with admin_client(context, servers) as admin:
        found = admin.broker_config(name, silent=silent)
        missing = _unregistered(admin, name)
    table.show(output.items_of(_matching(found, key)), as_json=json)
    end([*(error.message for error in silent), *missing])


@broker.add("set", epilog="Example: aerobee broker config set broker-a fileReservedTime=48")
def set_of_broker(
    context: click.Context,
    *,
    name: Broker,
    pairs: Pairs,
    servers: Namesrv = None,
    json: Json = False,
) -> None:
    """Change options of a running broker, on each replica, without a restart.

    The changes are kept in config/runtime.json of the store. They stand above the file and the
    environment, and below the command line. Exit code 3: a replica was not changed, or the command
    line of one sets the option.
    """
    silent: list[MqError] = []
    entries = pairs_of("KEY=VALUE", pairs, example="fileReservedTime=48")
    with admin_client(context, servers) as admin:
        changes = admin.update_broker_config(name, entries, silent=silent)
        missing = _unregistered(admin, name)
    _show_changes(changes, json, silent, missing)


@broker.add("unset", epilog="Example: aerobee broker config unset broker-a fileReservedTime")
def unset_of_broker(
    context: click.Context,
    *,
    name: Broker,
    keys: Keys,
    servers: Namesrv = None,
    json: Json = False,
) -> None:
    """Take changes of options back: the file, the environment or the default count again.

    Exit code 3: a replica was not changed.
    """
    silent: list[MqError] = []
    with admin_client(context, servers) as admin:
        changes = admin.update_broker_config(name, {}, unset=keys, silent=silent)
        missing = _unregistered(admin, name)
    _show_changes(changes, json, silent, missing)


@namesrv.add("get", epilog="Example: aerobee namesrv config get orderMessageEnable")
def get_of_namesrv(
    context: click.Context,
    *,
    key: Key = None,
    wide: Wide = False,
    columns: Columns = "",
    servers: Namesrv = None,
    json: Json = False,
) -> None:
    """Show the options of each name server, and from where each value comes.

    Exit code 3: a name server does not answer.
    """
    silent: list[MqError] = []
    table = listing(COLUMNS, wide=wide, chosen=columns)
    with admin_client(context, servers) as admin:
        found = admin.namesrv_config(silent=silent)
    table.show(output.items_of(_matching(found, key)), as_json=json)
    end(error.message for error in silent)


@namesrv.add("set", epilog="Example: aerobee namesrv config set orderMessageEnable=true")
def set_of_namesrv(
    context: click.Context, *, pairs: Pairs, servers: Namesrv = None, json: Json = False
) -> None:
    """Change options of each name server, without a restart.

    The changes are kept in runtime.json beside kvConfigPath. Exit code 3: a name server was not
    changed, or the command line of one sets the option.
    """
    silent: list[MqError] = []
    entries = pairs_of("KEY=VALUE", pairs, example="orderMessageEnable=true")
    with admin_client(context, servers) as admin:
        changes = admin.update_namesrv_config(entries, silent=silent)
    _show_changes(changes, json, silent)


@namesrv.add("unset", epilog="Example: aerobee namesrv config unset orderMessageEnable")
def unset_of_namesrv(
    context: click.Context, *, keys: Keys, servers: Namesrv = None, json: Json = False
) -> None:
    """Take changes of options back: the file, the environment or the default count again.

    Exit code 3: a name server was not changed.
    """
    silent: list[MqError] = []
    with admin_client(context, servers) as admin:
        changes = admin.update_namesrv_config({}, unset=keys, silent=silent)
    _show_changes(changes, json, silent)


@proxy.add("get", epilog="Example: aerobee proxy config get 127.0.0.1:8088 logLevel")
def get_of_proxy(
    context: click.Context,
    *,
    name: Proxy,
    key: Key = None,
    wide: Wide = False,
    columns: Columns = "",
    servers: Namesrv = None,
    json: Json = False,
) -> None:
    """Show the options of a proxy, and from where each value comes.

    The proxy needs enableProxyAdminGrpcServer=true. Exit code 3: it does not answer.
    """
    silent: list[MqError] = []
    table = listing(COLUMNS, wide=wide, chosen=columns)
    with admin_client(context, servers) as admin:
        found = admin.proxy_config(name, silent=silent)
    table.show(output.items_of(_matching(found, key)), as_json=json)
    end(error.message for error in silent)


@proxy.add("set", epilog="Example: aerobee proxy config set 127.0.0.1:8088 logLevel=debug")
def set_of_proxy(
    context: click.Context,
    *,
    name: Proxy,
    pairs: Pairs,
    servers: Namesrv = None,
    json: Json = False,
) -> None:
    """Change options of a running proxy, without a restart.

    With the option runtimeConfigPath, the changes are kept in that file; else until the proxy ends.
    Exit code 3: the proxy was not changed, or its command line sets the option.
    """
    silent: list[MqError] = []
    entries = pairs_of("KEY=VALUE", pairs, example="logLevel=debug")
    with admin_client(context, servers) as admin:
        changes = admin.update_proxy_config(name, entries, silent=silent)
    _show_changes(changes, json, silent)


@proxy.add("unset", epilog="Example: aerobee proxy config unset 127.0.0.1:8088 logLevel")
def unset_of_proxy(
    context: click.Context,
    *,
    name: Proxy,
    keys: Keys,
    servers: Namesrv = None,
    json: Json = False,
) -> None:
    """Take changes of options back: the file, the environment or the default count again.

    Exit code 3: the proxy was not changed.
    """
    silent: list[MqError] = []
    with admin_client(context, servers) as admin:
        changes = admin.update_proxy_config(name, {}, unset=keys, silent=silent)
    _show_changes(changes, json, silent)


def _unregistered(admin: AdminClient, name: str) -> list[str]:
    """Return a sentence for each replica of a broker that the command does not reach."""
    if ":" in name:
        return []
    try:
        return unregistered(name, look_at(admin, name).absent)
    except MqError as error:
        return unregistered(name, error)


def _matching(found: Sequence[ConfigOption], key: str | None) -> Sequence[ConfigOption]:
    """Return the options with this key, ignoring the case; without a key, all. Raises BadOption."""
    if key is None:
        return found
    matching = [each for each in found if each.key.casefold() == key.casefold()]
    if not matching:
        hint = nearest(key, {each.key for each in found}, "leave KEY out to see all")
        raise BadOption(f"unknown option {key!r}: {hint}")
    return matching


def _show_changes(
    changes: Sequence[ConfigChange],
    json: bool,
    silent: Sequence[MqError],
    missing: Sequence[str] = (),
) -> None:
    Table(CHANGES).show(output.items_of(changes), as_json=json)
    notes = [f"not changed: {error.message}" for error in silent]
    notes += [f"not changed: {text}" for text in missing]
    notes += [
        f"{each.address}: {', '.join(each.without_effect)} has no effect, because the command line "
        "sets it: start without that argument"
        for each in changes
        if each.without_effect
    ]
    end(notes)
