"""Running services: `up`, `namesrv`, `broker`, `proxy`; and `broker status` of one that runs."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from typer.core import TyperGroup

from aerobee_cli import output
from aerobee_cli.options import DEFAULT_NAMESRV, Json, Namesrv, admin_client

DEFAULT_DATA = Path("data")
NAMESRV_PORT = 9_876
BROKER_PORT = 10_911
PROXY_PORT = 8_081
# Unknown arguments are passed on to the service.
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}

Port = Annotated[int, typer.Option(min=0, max=65_535, metavar="P", help="0 picks a free one.")]


def up(
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Where messages and settings are kept.")
    ] = DEFAULT_DATA,
    namesrv_port: Port = NAMESRV_PORT,
    broker_port: Port = BROKER_PORT,
    proxy_port: Port = PROXY_PORT,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Option of the broker, or namesrv.KEY=VALUE, proxy.KEY=VALUE. May be repeated.",
        ),
    ] = None,
) -> None:
    """Run a name server, a broker and a proxy as local processes.

    Prints one line when they serve: ready namesrv=H:P broker=H:P proxy=H:P. Their logs go to
    stderr. Ctrl-C and SIGTERM stop them.
    """
    from aerobee_cli.processes import up as foreground
    from aerobee_cli.processes.suite import SuiteOptions

    foreground.run(SuiteOptions(data, namesrv_port, broker_port, tuple(sets or ()), proxy_port))


def namesrv(context: typer.Context) -> None:
    """Run a name server in the foreground.

    Options: --port P, --host H, --data DIR, --config FILE, --set key=value, --print-config.
    """
    become("aerobee_namesrv", context.args)


def proxy(context: typer.Context) -> None:
    """Run a proxy in the foreground: what the official SDKs connect to.

    Options: --port P, --host H, --namesrv H:P;H:P, --config FILE, --set key=value, --print-config.
    """
    _inherit_namesrv(context)
    become("aerobee_proxy", context.args)


class ServiceGroup(TyperGroup):
    """Subcommands; without one, all arguments are those of the service."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        service = bool(args) and args[0] not in {*self.commands, "--help"}
        if not args or service:
            ctx.obj = list(args)
            args = []
        return super().parse_args(ctx, args)


broker_app = typer.Typer(cls=ServiceGroup, invoke_without_command=True)


@broker_app.callback(epilog="Example: aerobee broker --port 10911 --namesrv 127.0.0.1:9876")
def broker(context: typer.Context) -> None:
    """Run a broker in the foreground, or show the state of one.

    Options: --port P, --host H, --data DIR, --namesrv H:P;H:P, --config FILE, --set key=value,
    --print-config.
    """
    if context.invoked_subcommand is None:
        _inherit_namesrv(context)
        become("aerobee_broker", context.obj or [])


@broker_app.command(epilog="Example: aerobee broker status broker-a --json")
def status(
    context: typer.Context,
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="[BROKER]", help="Name or H:P. Default: every master.")
    ] = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show the state of a running broker: its log, counters, disk and memory."""
    with admin_client(context, namesrv) as admin:
        if name is not None:
            output.show_one(output.items_of([admin.broker_status(name)])[0], as_json=json)
            return
        names = sorted({found.broker_name for found in admin.cluster().brokers})
        items = output.items_of(admin.broker_status(each) for each in names)
    output.show_each(items, as_json=json)
    if not items:
        output.note("no broker is registered: start one with `aerobee up` or `aerobee broker`")


def report(context: typer.Context) -> None:
    """Write the report over the dead letters and retries of a group. Needs Java 17 or newer.

    Options: --group G, --out DIR, and those that `aerobee report --help` of the Spark job shows.
    """
    inherited = context.find_root().params.get("namesrv")
    os.environ["NAMESRV_ADDR"] = inherited or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV
    become("aerobee_spark", ["report", *context.args])


def store(context: typer.Context) -> None:
    """Look into the store of a stopped broker: verify every record (check), show them (dump).

    Options: those that `aerobee store --help` of the broker shows.
    """
    become("aerobee_broker.inspection", context.args)


def _inherit_namesrv(context: typer.Context) -> None:
    """Passes a --namesrv that was given before the command to the service."""
    inherited = context.find_root().params.get("namesrv")
    if inherited:
        os.environ["NAMESRV_ADDR"] = inherited


def become(module: str, arguments: Sequence[str]) -> NoReturn:
    """Replaces this process by `python -m MODULE ARGUMENT…`."""
    if importlib.util.find_spec(module) is None:
        print(f"error: {module} is not installed here: run `make install`", file=sys.stderr)
        raise typer.Exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
