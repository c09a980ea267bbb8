"""Define the tree of commands. Their modules import slow modules only when a command runs."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from aerobee_cli.commands import (
    broker,
    certs,
    cluster,
    diverged,
    dlq,
    group,
    lite,
    message,
    services,
    topic,
)
from aerobee_cli.commands.clients import clients
from aerobee_cli.commands.doctor import doctor

app = typer.Typer(
    name="aerobee",
    help="Aerobee: a message queue with topics, consumer groups, retries and dead letters.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Try: aerobee up",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"aerobee {version('aerobee-cli')}")
        raise typer.Exit


@app.callback()
def root(
    namesrv: Annotated[
        str | None,
        typer.Option(
            metavar="H:P;H:P",
            envvar="NAMESRV_ADDR",
            show_envvar=True,
            help="Name servers, for all commands. Default: 127.0.0.1:9876.",
        ),
    ] = None,
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Set the options that all commands share."""


app.command(epilog="Example: aerobee up --data ./data --set flushDiskType=ASYNC_FLUSH")(services.up)
app.command(
    epilog="Example: aerobee namesrv --port 9876 --data ./data",
    context_settings=services.PASS_ON,
)(services.namesrv)
broker.app.add_typer(diverged.app, name="diverged")
app.add_typer(broker.app, name="broker")
app.command(
    epilog="Example: aerobee proxy --port 8081 --namesrv 127.0.0.1:9876",
    context_settings=services.PASS_ON,
)(services.proxy)
app.command(epilog="Example: make demo, or: aerobee demo --messages 5000 --out report")(
    services.demo
)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(message.app, name="message")
app.add_typer(dlq.app, name="dlq")
app.add_typer(lite.app, name="lite")
app.add_typer(cluster.app, name="cluster")
app.add_typer(certs.app, name="certs")
app.command(epilog="Example: aerobee clients --group billing --json")(clients)
app.command(epilog="Example: aerobee doctor --from 127.0.0.1:8081")(doctor)
for job, example in (
    (services.report, "aerobee report --group billing --out report"),
    (services.facts, "aerobee facts --group billing --table facts"),
    (services.store, "aerobee store check data"),
):
    # Unlike in the services above, --help is an argument of the job.
    settings = {**services.PASS_ON, "help_option_names": []}
    app.command(epilog=f"Example: {example}", context_settings=settings)(job)
