"""Options that several commands have in common, and the clients that they lead to."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from aerobee_cli.durations import parse_duration
from aerobee_wire.retry_policy import ExponentialRetryPolicy

if TYPE_CHECKING:
    from aerobee_client import AdminClient, Producer

DEFAULT_NAMESRV = "127.0.0.1:9876"
# Of the messages that this command sends.
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
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the consumer group.")]


class BadOption(typer.BadParameter):
    """A value that the command itself refuses."""


def namesrv_of(context: typer.Context, given: str | None) -> str:
    """The name servers: of the command, else of `aerobee` itself, else the default."""
    inherited = context.find_root().params.get("namesrv")
    return given or inherited or DEFAULT_NAMESRV


def admin_client(context: typer.Context, namesrv: str | None) -> AdminClient:
    from aerobee_client import AdminClient

    return AdminClient(namesrv_of(context, namesrv))


def producer(context: typer.Context, namesrv: str | None) -> Producer:
    from aerobee_client import Producer

    return Producer(PRODUCER_GROUP, namesrv=namesrv_of(context, namesrv))


def retry_delays(text: str | None) -> list[timedelta]:
    """The value of `--retry-delays`. Raises BadOption."""
    if not text:
        return []
    try:
        return [parse_duration(part) for part in text.split(",")]
    except ValueError as error:
        raise BadOption(f"--retry-delays: {error}") from None


def retry_policy(text: str | None) -> ExponentialRetryPolicy | None:
    """The value of `--retry`. Raises BadOption."""
    if text is None:
        return None
    kind, _, listed = text.partition(":")
    given = dict(part.partition("=")[::2] for part in listed.split(",") if part)
    unknown = given.keys() - {"initial", "max", "multiplier"}
    if kind != "exponential" or unknown:
        raise BadOption(
            f"--retry {text!r}: write it like exponential:initial=5s,max=2h,multiplier=2"
        )
    default = ExponentialRetryPolicy()
    try:
        return ExponentialRetryPolicy(
            _milliseconds(given["initial"]) if "initial" in given else default.initial_ms,
            _milliseconds(given["max"]) if "max" in given else default.max_ms,
            int(given.get("multiplier", default.multiplier)),
        )
    except ValueError as error:
        raise BadOption(f"--retry {text!r}: {error}") from None


def _milliseconds(text: str) -> int:
    return round(parse_duration(text) / timedelta(milliseconds=1))


def confirm(question: str, yes: bool) -> None:
    """Asks, but only on a terminal: a program that runs this command cannot answer."""
    if not yes and sys.stdin.isatty() and not typer.confirm(question):
        raise typer.Exit(1)
