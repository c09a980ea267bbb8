"""Define options that several commands share, and create clients from them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import click
from click.core import ParameterSource

from aerobee_cli.command_line import Argument, Option
from aerobee_cli.contexts import Connection, Contexts, default_directory, enter
from aerobee_cli.errors import INCOMPLETE
from aerobee_cli.output import note, silence_client
from aerobee_cli.table import Column, Table
from aerobee_cli.times import Moment, parse_moment

if TYPE_CHECKING:
    from aerobee_client import AdminClient, Producer
    from aerobee_wire.status import MqError

DEFAULT_NAMESRV = "127.0.0.1:9876"
MAX_CALLS = 16  # at the same time
T = TypeVar("T")
R = TypeVar("R")
DEFAULT_CLUSTER = "DefaultCluster"
# The producer group of the messages that this command sends.
PRODUCER_GROUP = "aerobee-cli"

Namesrv = Annotated[
    str | None,
    Option(
        "--namesrv",
        metavar="H:P;H:P",
        help="Name servers. Default: NAMESRV_ADDR, or 127.0.0.1:9876.",
    ),
]
Json = Annotated[bool, Option("--json", help="Print JSON: an array for a list.")]
Wide = Annotated[bool, Option("--wide", help="Show all columns.")]
Columns = Annotated[
    str,
    Option("--columns", metavar="A,B", help="Show these columns, by their titles with '-'."),
]
Yes = Annotated[
    bool, Option("--yes", "-y", help="Do not ask. Required if stdin is not a terminal.")
]
Topic = Annotated[str, Argument(metavar="TOPIC", help="Name of the topic.")]
OneTopic = Annotated[
    str | None, Argument(metavar="[TOPIC]", help="Name of the topic, unless --from.")
]
OneGroup = Annotated[
    str | None, Argument(metavar="[GROUP]", help="Name of the group, unless --from.")
]
CreateMissing = Annotated[
    bool, Option("--create", help="Create what does not exist, instead of an error.")
]
From = Annotated[
    Path | None,
    Option(
        "--from",
        metavar="FILE.yaml",
        help="A list of them, in place of one; docs/usage.md shows it.",
    ),
]
DryRun = Annotated[bool, Option("--dry-run", help="Show what would be changed; change nothing.")]
Attributes = Annotated[
    list[str] | None,
    Option("--attribute", metavar="NAME=VALUE", help="As often as needed; NAME= removes it."),
]
Group = Annotated[str, Argument(metavar="GROUP", help="Name of the consumer group.")]


class BadOption(click.BadParameter):
    """An invalid value of an option that the command itself detects, not the option parser."""


def moment_of(text: str | Moment) -> Moment:
    """Parse the value of an option that is a time. Raises BadOption."""
    if isinstance(text, Moment):
        return text
    try:
        return parse_moment(text)
    except ValueError as error:
        raise BadOption(str(error)) from None


def pairs_of(option: str, given: Sequence[str], *, example: str) -> dict[str, str]:
    """Return the values of a repeatable option "NAME=VALUE" by name.

    `example` shows the user how to write a pair. Raises BadOption for an invalid pair, and for a
    name that is given twice.
    """
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadOption(f"{option} {text!r}: write {example}")
        if name in pairs:
            raise BadOption(f"{option} {name} is given twice: give it once")
        pairs[name] = value
    return pairs


def context_named(context: click.Context) -> str:
    """Return the context that `--context` or AEROBEE_CONTEXT names, or ""."""
    return context.find_root().params.get("context_name") or ""


def enter_context(context: click.Context) -> Connection | None:
    """Set the environment and the options of `aerobee` to those of the context that counts.

    Options of the command line stay. Return the context, or None if none counts. Commands that do
    not call a running cluster do not call this.
    """
    root = context.find_root()
    if _ENTERED in root.meta:
        found: Connection | None = root.meta[_ENTERED]
        return found
    given = {
        parameter
        for parameter in _VARIABLES
        if root.get_parameter_source(parameter) is ParameterSource.COMMANDLINE
    }
    contexts = Contexts(default_directory())
    environ = {name: value for name, value in os.environ.items() if name not in _of_options(given)}
    name = contexts.chosen(context_named(context), environ)
    connection = root.meta[_ENTERED] = contexts.get(name) if name else None
    if connection is not None:
        enter(connection, frozenset(_of_options(given)))
        if "namesrv" not in given:
            root.params["namesrv"] = connection.namesrv
    return connection


def refuse_context(context: click.Context) -> None:
    """Raise UsageError if `--context` is given to a command that calls no running cluster."""
    root = context.find_root()
    if root.get_parameter_source("context_name") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--context: this command does not call a running cluster", context)


def _of_options(given: Iterable[str]) -> set[str]:
    return {_VARIABLES[each] for each in given}


# The options of `aerobee` that also are part of a context, and their variables.
_VARIABLES = {
    "namesrv": "NAMESRV_ADDR",
    "access_key": "AEROBEE_ACCESS_KEY",
    "secret_key_file": "AEROBEE_SECRET_KEY_FILE",
}
_ENTERED = "aerobee_cli.context"


def namesrv_of(context: click.Context, given: str | None) -> str:
    """Return the name servers from the command's option, `aerobee`'s option, or the default.

    The context of the command counts from now on.
    """
    enter_context(context)
    inherited = context.find_root().params.get("namesrv")
    return given or inherited or DEFAULT_NAMESRV


def admin_client(namesrv: str) -> AdminClient:
    from aerobee_client import AdminClient

    silence_client()
    return AdminClient(namesrv)


@dataclass(frozen=True, kw_only=True)
class NamesrvOptions:
    """The option of each command that calls a running cluster."""

    context: click.Context
    namesrv: Namesrv = None

    @property
    def address(self) -> str:
        """The addresses of the name servers."""
        return namesrv_of(self.context, self.namesrv)

    def admin(self) -> AdminClient:
        return admin_client(self.address)

    @contextmanager
    def asking(self) -> Iterator[tuple[AdminClient, list[MqError]]]:
        """Provide an admin client, and a list for the errors of brokers that do not answer."""
        with self.admin() as admin:
            yield admin, []

    def producer(self) -> Producer:
        from aerobee_client import Producer

        silence_client()
        return Producer(PRODUCER_GROUP, namesrv=self.address)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(NamesrvOptions):
    """The options of a command that prints a result about a running cluster."""

    json: Json = False


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The options of a command that prints a table."""

    wide: Wide = False
    columns: Columns = ""

    def listing(self, columns: Sequence[Column]) -> Table:
        """Return the table with the chosen columns.

        Raises BadOption for an unknown name of a column.
        """
        if not self.columns:
            return Table(columns, every=self.wide)
        if self.wide:
            raise BadOption("give --wide or --columns, not both")
        by_name = {column.name: column for column in columns}
        names = [name.strip().lower() for name in self.columns.split(",")]
        for name in names:
            if name not in by_name:
                raise BadOption(f"--columns {name!r}: use names of {', '.join(by_name)}")
        return Table([by_name[name] for name in names], every=True)


@dataclass(frozen=True, kw_only=True)
class ListingOptions(ClusterOptions, TableOptions):
    """The options of a command that lists parts of a running cluster, those of the table first."""


def operator() -> str:
    """Return the user of this process and the host, for records of what an operator did."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may run with a user id that has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def at_once(call: Callable[[T], R], arguments: Sequence[T]) -> list[R]:
    """Return the results of `call`, which blocks, for each of `arguments`, all at the same time."""
    if len(arguments) < 2:
        return [call(each) for each in arguments]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(arguments), MAX_CALLS)) as threads:
        return list(threads.map(call, arguments))


def end(problems: Iterable[str]) -> None:
    """Print the problems of an incomplete result. Exit with INCOMPLETE if there are any."""
    notes = list(problems)
    for text in notes:
        note(text)
    if notes:
        raise click.exceptions.Exit(INCOMPLETE)


def confirm(question: str, yes: bool, losses: Callable[[], Iterable[str]] = tuple) -> None:
    """Ask for confirmation on a terminal, unless `--yes` is given.

    The texts of `losses` are shown before the question. They are fetched only for a terminal.
    Raises BadOption if stdin is not a terminal, because no user can answer there.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadOption(f"{question} There is no terminal to ask on: say --yes")
    for loss in losses():
        note(loss)
    if not click.confirm(question):
        raise click.exceptions.Exit(1)
