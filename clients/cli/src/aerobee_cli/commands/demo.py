"""`aerobee demo`: the main job from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aerobee_cli.options import BadOption

DEFAULT_MESSAGES = 20_000
DEFAULT_OUT = Path("report")
COPIES = 3  # with --failover


def demo(
    *,
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
    failover: Annotated[
        bool,
        typer.Option("--failover", help="Three brokers, and their master is killed in the middle."),
    ] = False,
    etcd: Annotated[
        str,
        typer.Option(
            metavar="H:P,H:P",
            help="With --failover: etcd, which elects the next master. Default: the demo promotes.",
        ),
    ] = "",
) -> None:
    """Send real flights through a broker, fail on those that never arrived, and report on them.

    Starts a name server and a broker, sends flights that left New York City in 2013, computes the
    mean arrival delay by carrier, lets flights without an arrival be retried and dead-lettered,
    and runs the report over the dead letters, with Spark where there is Java. Then it stops what it
    started.

    With --failover every flight is stored by three brokers. The master is killed when a third of
    the flights is sent, another one takes its place, and the killed one comes back as its replica.
    """
    from aerobee_cli.demo import run
    from aerobee_cli.processes.replicas import ONE_COPY, Replicas

    if etcd and not failover:
        raise BadOption("--etcd: needs --failover")
    replicas = Replicas(COPIES, etcd) if failover else ONE_COPY
    plan = run.Plan(None if everything else messages, out, data, keep, replicas)
    raise typer.Exit(run.main(plan))
