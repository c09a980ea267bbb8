"""Define options that several commands share, and create clients from them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aerobee_cli.errors import INCOMPLETE
from aerobee_cli.output import note

if TYPE_CHECKING:
    from aerobee_client import AdminClient, Producer

DEFAULT_NAMESRV = "127.0.0.1:9876"
DEFAULT_CLUSTER = "DefaultCluster"
# The producer group of the messages that this command sends.
PRODUCER_GROUP = "aerobee-cli"

Namesrv = Annotated[
    str | None,
    typer.Option(
        "--namesrv",
        metavar="H:P;H:P",
        help="Name servers. Default: NAMESRV_ADDR, or 127.0.0.1:9876.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: an array for a list.")]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask. Required if stdin is not a terminal.")
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
OneTopic = Annotated[
    str | None, typer.Argument(metavar="[TOPIC]", help="Name of the topic, unless --from.")
]
OneGroup = Annotated[
    str | None, typer.Argument(metavar="[GROUP]", help="Name of the group, unless --from.")
]
CreateMissing = Annotated[
    bool, typer.Option("--create", help="Create what does not exist, instead of an error.")
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE.yaml",
        help="A list of them, in place of one; docs/usage.md shows it.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be changed; change nothing.")
]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", metavar="NAME=VALUE", help="As often as needed; NAME= removes it."),
]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the consumer group.")]


class BadOption(typer.BadParameter):
    """An invalid value of an option that the command itself detects, not the option parser."""


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


def namesrv_of(context: typer.Context, given: str | None) -> str:
    """Return the name servers from the command's option, `aerobee`'s option, or the default."""
    inherited = context.find_root().params.get("namesrv")
    return given or inherited or DEFAULT_NAMESRV


def admin_client(context: typer.Context, namesrv: str | None) -> AdminClient:
    from aerobee_client import AdminClient

    return AdminClient(namesrv_of(context, namesrv))


def producer(context: typer.Context, namesrv: str | None) -> Producer:
    from aerobee_client import Producer

    return Producer(PRODUCER_GROUP, namesrv=namesrv_of(context, namesrv))


def end(problems: Iterable[str]) -> None:
    """Print the problems of an incomplete result. Exit with INCOMPLETE if there are any."""
    notes = list(problems)
    for text in notes:
        note(text)
    if notes:
        raise typer.Exit(INCOMPLETE)


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation on a terminal, unless `--yes` is given.

    Raises BadOption if stdin is not a terminal, because no user can answer there.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadOption(f"{question} There is no terminal to ask on: say --yes")
    if not typer.confirm(question):
        raise typer.Exit(1)
