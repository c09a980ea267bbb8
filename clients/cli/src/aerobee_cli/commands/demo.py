"""`aerobee demo`: the main job from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_MESSAGES = 20_000
DEFAULT_OUT = Path("report")


def demo(
    messages: Annotated[
        int, typer.Option(min=1, metavar="N", help="The first N flights of the year.")
    ] = DEFAULT_MESSAGES,
    everything: Annotated[bool, typer.Option("--all", help="All 336,776 flights.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="For the report.")] = DEFAULT_OUT,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="For the broker. Default: a temporary directory."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the broker's data.")] = False,
) -> None:
    """Send real flights through a broker, fail on those that never arrived, and report on them.

    Starts a name server and a broker, sends flights that left New York City in 2013, computes the
    mean arrival delay by carrier, lets flights without an arrival be retried and dead-lettered,
    and runs the report over the dead letters, with Spark where there is Java. Then it stops what it
    started.
    """
    from aerobee_cli.demo import run

    plan = run.Plan(None if everything else messages, out, data, keep)
    raise typer.Exit(run.main(plan))
