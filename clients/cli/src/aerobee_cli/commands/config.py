"""Define `aerobee broker|namesrv|proxy config`: options of running services."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

from aerobee_cli import output
from aerobee_cli.command_line import Argument, CommandGroup, nearest
from aerobee_cli.doctor.broker_group import look_at, unregistered
from aerobee_cli.options import BadOption, ClusterOptions, ListingOptions, end, pairs_of
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
def get_of_broker(*, name: Broker, key: Key = None, options: ListingOptions) -> None:
    """Show the options of each replica of a broker, and from where each value comes.

    A value comes from the first of: command line, run time, environment, file, default. Exit code
    3: a replica does not answer, or is not registered.
    """
    with options.admin() as admin:
        _show(partial(admin.broker_config, name), key, options, partial(_unregistered, admin, name))


@broker.add("set", epilog="Example: aerobee broker config set broker-a fileReservedTime=48")
def set_of_broker(*, name: Broker, pairs: Pairs, options: ClusterOptions) -> None:
    """Change options of a running broker, on each replica, without a restart.

    The changes are kept in config/runtime.json of the store. They stand above the file and the
    environment, and below the command line. Exit code 3: a replica was not changed, or the command
    line of one sets the option.
    """
    entries = pairs_of("KEY=VALUE", pairs, example="fileReservedTime=48")
    _change_broker(name, options, entries)


@broker.add("unset", epilog="Example: aerobee broker config unset broker-a fileReservedTime")
def unset_of_broker(*, name: Broker, keys: Keys, options: ClusterOptions) -> None:
    """Take changes of options back: the file, the environment or the default count again.

    Exit code 3: a replica was not changed.
    """
    _change_broker(name, options, {}, keys)


def _change_broker(
    name: str, options: ClusterOptions, entries: Mapping[str, str], unset: Sequence[str] = ()
) -> None:
    with options.admin() as admin:
        update = partial(admin.update_broker_config, name, entries, unset=unset)
        _change(update, options, partial(_unregistered, admin, name))


@namesrv.add("get", epilog="Example: aerobee namesrv config get orderMessageEnable")
def get_of_namesrv(*, key: Key = None, options: ListingOptions) -> None:
    """Show the options of each name server, and from where each value comes.

    Exit code 3: a name server does not answer.
    """
    with options.admin() as admin:
        _show(admin.namesrv_config, key, options)


@namesrv.add("set", epilog="Example: aerobee namesrv config set orderMessageEnable=true")
def set_of_namesrv(*, pairs: Pairs, options: ClusterOptions) -> None:
    """Change options of each name server, without a restart.

    The changes are kept in runtime.json beside kvConfigPath. Exit code 3: a name server was not
    changed, or the command line of one sets the option.
    """
    entries = pairs_of("KEY=VALUE", pairs, example="orderMessageEnable=true")
    with options.admin() as admin:
        _change(partial(admin.update_namesrv_config, entries), options)


@namesrv.add("unset", epilog="Example: aerobee namesrv config unset orderMessageEnable")
def unset_of_namesrv(*, keys: Keys, options: ClusterOptions) -> None:
    """Take changes of options back: the file, the environment or the default count again.

    Exit code 3: a name server was not changed.
    """
    with options.admin() as admin:
        _change(partial(admin.update_namesrv_config, {}, unset=keys), options)


@proxy.add("get", epilog="Example: aerobee proxy config get 127.0.0.1:8088 logLevel")
def get_of_proxy(*, name: Proxy, key: Key = None, options: ListingOptions) -> None:
    """Show the options of a proxy, and from where each value comes.

    The proxy needs enableProxyAdminGrpcServer=true. Exit code 3: it does not answer.
    """
    with options.admin() as admin:
        _show(partial(admin.proxy_config, name), key, options)


@proxy.add("set", epilog="Example: aerobee proxy config set 127.0.0.1:8088 logLevel=debug")
def set_of_proxy(*, name: Proxy, pairs: Pairs, options: ClusterOptions) -> None:
    """Change options of a running proxy, without a restart.

    With the option runtimeConfigPath, the changes are kept in that file; else until the proxy ends.
    Exit code 3: the proxy was not changed, or its command line sets the option.
    """
    entries = pairs_of("KEY=VALUE", pairs, example="logLevel=debug")
    with options.admin() as admin:
        _change(partial(admin.update_proxy_config, name, entries), options)


@proxy.add("unset", epilog="Example: aerobee proxy config unset 127.0.0.1:8088 logLevel")
def unset_of_proxy(*, name: Proxy, keys: Keys, options: ClusterOptions) -> None:
    """Take changes of options back: the file, the environment or the default count again.

    Exit code 3: the proxy was not changed.
    """
    with options.admin() as admin:
        _change(partial(admin.update_proxy_config, name, {}, unset=keys), options)


def _show(
    read: Callable[..., Sequence[ConfigOption]],
    key: str | None,
    options: ListingOptions,
    missing: Callable[[], Sequence[str]] = tuple,
) -> None:
    """Print the options that `read` returns, and end with the processes that are `missing`."""
    silent: list[MqError] = []
    table = options.listing(COLUMNS)
    found = read(silent=silent)
    lacking = missing()
    table.show(output.items_of(_matching(found, key)), as_json=options.json)
    end([*(error.message for error in silent), *lacking])


def _change(
    update: Callable[..., Sequence[ConfigChange]],
    options: ClusterOptions,
    missing: Callable[[], Sequence[str]] = tuple,
) -> None:
    """Make a change, print its result, and end with the processes that it did not reach."""
    silent: list[MqError] = []
    made = update(silent=silent)
    lacking = missing()
    Table(CHANGES).show(output.items_of(made), as_json=options.json)
    end(
        [
            *(f"not changed: {text}" for text in (*(e.message for e in silent), *lacking)),
            *(
                f"{each.address}: {', '.join(each.without_effect)} has no effect, because the "
                "command line sets it: start without that argument"
                for each in made
                if each.without_effect
            ),
        ]
    )


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
