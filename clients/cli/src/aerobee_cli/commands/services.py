"""Define the commands that run services, the demo, and jobs of other packages.

The services are `up` and `console`. The jobs are `report`, `facts` and `store`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import click

from aerobee_cli.command_line import CommandGroup, Option
from aerobee_cli.options import DEFAULT_NAMESRV, BadOption, enter_context, refuse_context
from aerobee_cli.output import note
from aerobee_cli.processes.become import become, inherit_namesrv
from aerobee_cli.processes.log_lines import LogFormat

DEFAULT_DATA = Path("data")
NAMESRV_PORT = 9_876
BROKER_PORT = 10_911
PROXY_PORT = 8_081
# Defaults of the demo.
DEFAULT_MESSAGES = 20_000
DEFAULT_OUT = Path("report")
COPIES = 3  # with --failover
# Unknown arguments are passed on to the program, which prints its own help.
PASS_ON_HELP = {
    "context_settings": {
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    }
}

app = CommandGroup()

Port = Annotated[int, Option(min=0, max=65_535, metavar="P", help="0 picks a free one.")]


@app.add(epilog="Example: aerobee up --data ./data --set flushDiskType=ASYNC_FLUSH")
def up(
    context: click.Context,
    *,
    data: Annotated[
        Path, Option(metavar="DIR", help="Where messages and settings are kept.")
    ] = DEFAULT_DATA,
    namesrv_port: Port = NAMESRV_PORT,
    broker_port: Port = BROKER_PORT,
    proxy_port: Port = PROXY_PORT,
    console_port: Annotated[
        int | None,
        Option(
            min=0,
            max=65_535,
            metavar="P",
            help="Of the console, on 127.0.0.1. Default: 8082, if it is free.",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="KEY=VALUE",
            help="Option of the broker, or namesrv.KEY=VALUE, proxy.KEY=VALUE. May be repeated.",
        ),
    ] = None,
    one_process: Annotated[
        bool,
        Option("--one-process", help="All three in one process: less memory, one core."),
    ] = False,
    replicas: Annotated[
        int, Option(metavar="N", min=1, max=9, help="Copies of each message, one a broker.")
    ] = 1,
    etcd: Annotated[
        str,
        Option(metavar="H:P,H:P", help="With --replicas: etcd, which elects the master."),
    ] = "",
    log_format: Annotated[
        LogFormat,
        Option(
            envvar="AEROBEE_LOG_FORMAT",
            help="Of the logs on stderr. auto: for people on a terminal, and JSON elsewhere.",
        ),
    ] = LogFormat.AUTO,
    secure: Annotated[
        bool,
        Option("--secure", help="TLS on all ports, which serve users and certificates only."),
    ] = False,
) -> None:
    """Run a name server, a broker and a proxy as local processes, or as one process.

    When the services are ready, the command prints one line: ready namesrv=H:P broker=H:P
    proxy=H:P. A second line has the address of the console for a browser; it starts with its first
    visitor, and ends 30 minutes after the last one. The logs go to stderr. Ctrl-C and SIGTERM stop
    the services. With --replicas, N brokers run on consecutive ports, and a broker that ends is
    started again. With --secure, certificates are made under DIR/secure once, and renewed by a
    start when they expire within 30 days. Changes and rejected calls are in the audit logs under
    DIR/audit. There is no console then: start one with "aerobee console --login".
    """
    from aerobee_cli.processes.suite import Replicas, SuiteOptions, serve, set_of

    refuse_context(context)
    group = Replicas(replicas, etcd)
    if replicas == 1 and etcd:
        raise BadOption("--etcd: needs --replicas 2 or more")
    if secure and console_port is not None:
        raise BadOption("--console-port: --secure starts no console: run 'aerobee console --login'")
    if replicas > 1 and one_process:
        raise BadOption("--one-process and --replicas exclude each other")
    if reason := group.check(sets or ()):
        raise BadOption(reason)
    if any(set_of(item)[1].lower().startswith("logformat=") for item in sets or ()):
        raise BadOption("--set logFormat: use --log-format, which is for all services")
    chosen = (*(_closed_ports(data, sets or ()) if secure else ()), *(sets or ()))
    options = SuiteOptions(
        data, namesrv_port, broker_port, chosen, proxy_port, group, audited=secure
    )
    asyncio.run(
        serve(
            options,
            one_process=one_process,
            console=not secure,
            console_port=console_port,
            log_format=log_format,
        )
    )


def _closed_ports(data: Path, sets: Sequence[str]) -> list[str]:
    """Return the settings for certificates under `data`, which are made if they are missing."""
    from aerobee_cli.authority import closed_ports

    directory = data / "secure"
    settings = closed_ports(directory, _broker_name(sets))
    note(
        f"for the command: . {directory}/admin.env; for programs: {directory}/ca.crt, and a user "
        "of 'aerobee user create NAME --generate'"
    )
    return settings


def _broker_name(sets: Sequence[str]) -> str:
    """Return the brokerName that the options choose; by default it is the name of the host."""
    from aerobee_cli.processes.suite import BROKER, set_of

    given = os.environ.get("AEROBEE_BROKER_NAME") or socket.gethostname()
    for item in sets:
        service, setting = set_of(item)
        key, _, value = setting.partition("=")
        if service == BROKER and key.lower() in ("brokername", "broker_name"):
            given = value
    return given


@app.add(epilog="Example: aerobee console --port 8082", settings=PASS_ON_HELP)
def console(context: click.Context) -> None:
    """Serve the console: pages about the cluster for a browser.

    Options: --port P, --host H, --read-only, and the options that `aerobee console --help` shows.
    """
    enter_context(context)
    inherit_namesrv(context)
    become("aerobee_console", context.args)


@app.add(epilog="Example: aerobee report --group billing --out report", settings=PASS_ON_HELP)
def report(context: click.Context) -> None:
    """Write the report about the dead letters and retries of a group.

    Options: --group G, --out DIR, and the options that `aerobee report --help` shows.
    """
    _become_job(context, "report")


@app.add(epilog="Example: aerobee facts --group billing --table facts", settings=PASS_ON_HELP)
def facts(context: click.Context) -> None:
    """Copy dead letters, retries or topics to a table of Parquet files, each record once.

    This needs Java 17. Options: --group G or --topic T, --table DIR, --every TIME, and the options
    that `aerobee facts --help` shows. `facts compact --table DIR` joins the files of each day.
    """
    _become_job(context, "facts")


def _become_job(context: click.Context, command: str) -> NoReturn:
    enter_context(context)
    inherit_namesrv(context)
    os.environ["NAMESRV_ADDR"] = os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV
    become("aerobee_spark", [command, *context.args])


@app.add(epilog="Example: aerobee store check data", settings=PASS_ON_HELP)
def store(context: click.Context) -> None:
    """Inspect the store of a broker: verify it (check), show records (dump), or show its version.

    The broker must be stopped for check and dump. Options: see `aerobee store --help`.
    """
    refuse_context(context)
    become("aerobee_broker.inspection", context.args)


@app.add(epilog="Example: make demo, or: aerobee demo --messages 5000 --out report")
def demo(
    context: click.Context,
    *,
    messages: Annotated[
        int | None,
        Option(
            min=1,
            metavar="N",
            help=f"The first N flights of the year. Default: {DEFAULT_MESSAGES}.",
        ),
    ] = None,
    everything: Annotated[bool, Option("--all", help="All 336,776 flights.")] = False,
    out: Annotated[Path, Option(metavar="DIR", help="For the report.")] = DEFAULT_OUT,
    data: Annotated[
        Path | None,
        Option(metavar="DIR", help="For the broker. Default: a temporary directory."),
    ] = None,
    keep: Annotated[bool, Option("--keep", help="Leave the broker's data.")] = False,
    failover: Annotated[
        bool,
        Option("--failover", help="Three brokers, and their master is killed in the middle."),
    ] = False,
    etcd: Annotated[
        str,
        Option(
            metavar="H:P,H:P",
            help="With --failover: etcd, which elects the next master. Default: the demo promotes.",
        ),
    ] = "",
    secure: Annotated[
        bool, Option("--secure", help="With TLS and certificates, as 'aerobee up --secure'.")
    ] = False,
) -> None:
    """Send real flights through a broker, fail on those that never arrived, and report on them.

    The demo starts a name server and a broker, and sends flights that left New York City in 2013. A
    consumer computes the mean arrival delay by carrier. Flights without an arrival are retried and
    dead-lettered. Then the report over the dead letters runs, with Spark if Java is installed. At
    the end, the demo stops the services.

    With --failover, three brokers store every flight. The master is killed when a third of the
    flights is sent, and another replica becomes master. The killed broker comes back as a replica
    of the new master.
    """
    from aerobee_cli.demo import run
    from aerobee_cli.processes.suite import ONE_COPY, Replicas

    refuse_context(context)
    if etcd and not failover:
        raise BadOption("--etcd: needs --failover")
    if everything and messages is not None:
        raise BadOption("give --all or --messages, not both")
    replicas = Replicas(COPIES, etcd) if failover else ONE_COPY
    count = None if everything else messages or DEFAULT_MESSAGES
    plan = run.Plan(count, out, data, keep, replicas, secure)
    raise click.exceptions.Exit(run.main(plan))
