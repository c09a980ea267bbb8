"""Define the tree of commands. The module of a command is imported only when the command runs."""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module
from pathlib import Path

import click

from aerobee_cli.command_line import CommandGroup

# The commands of `aerobee`, with their modules under `commands`, in the order of the help.
COMMANDS = {
    "up": (
        "services",
        "Run a name server, a broker and a proxy as local processes, or as one process.",
    ),
    "namesrv": (
        "namesrv",
        "Run a name server in the foreground, or administer running ones.",
    ),
    "broker": ("broker", "Run a broker in the foreground, or administer a running one."),
    "proxy": (
        "proxy",
        "Run a proxy in the foreground, to which the official SDKs connect, or list running ones.",
    ),
    "console": ("services", "Serve the console: pages about the cluster for a browser."),
    "demo": (
        "services",
        "Send real flights through a broker, fail on those that never arrived, and report on them.",
    ),
    "topic": ("topic", "Topics."),
    "group": ("group", "Consumer groups."),
    "export": (
        "manifest",
        "Write all topics and consumer groups with their settings to a file for `aerobee apply`.",
    ),
    "apply": (
        "manifest",
        "Create the topics and groups of a file, and change those with other settings.",
    ),
    "message": ("message", "Single messages."),
    "dlq": ("dlq", "Dead letters of a consumer group."),
    "lite": ("lite", "Look at lite topics."),
    "lease": ("held", "Messages that a consumer received and did not settle yet."),
    "delayed": ("held", "Messages that wait for their delivery time."),
    "transaction": ("held", "Transactions that have not ended."),
    "cluster": ("cluster", "Show the cluster."),
    "context": ("context", "Addresses and credentials of clusters, by name."),
    "certs": ("certs", "Certificates for TLS between services and clients."),
    "user": ("user", "Users of the cluster, who sign their calls."),
    "acl": ("acl", "Policies: what users may do."),
    "quota": ("quota", "Quotas of users, clients and addresses."),
    "audit": ("audit", "Audit logs: changes, logins and rejected calls."),
    "client": ("client", "Connected producers and consumers."),
    "top": ("top", "Show live rates of brokers, and of the busiest topics and groups."),
    "bench": ("bench", "Put load on a cluster, and show how fast it was, and what arrived."),
    "doctor": ("doctor", "Look for problems of clients and operators."),
    "completion": (
        "completion",
        "Print a script that completes commands and options of `aerobee` in a shell.",
    ),
    "report": ("services", "Write the report about the dead letters and retries of a group."),
    "facts": (
        "services",
        "Copy dead letters, retries or topics to a table of Parquet files, each record once.",
    ),
    "store": (
        "services",
        "Inspect the store of a broker: verify it (check), show records (dump), or show its "
        "version.",
    ),
}


HERE = Path(__file__).resolve().parent
BUILT_FROM = HERE / "commit.txt"  # the build hook writes it, deploy/hatch_build.py
IN_CHECKOUT = Path("clients/cli/src/aerobee_cli")


def commit() -> str:
    """Return the commit of this build, or "" if neither the build nor Git knows it.

    A wheel has it in a file; a checkout asks Git.
    """
    if BUILT_FROM.exists():
        return BUILT_FROM.read_text(encoding="utf-8")
    root = HERE.parents[len(IN_CHECKOUT.parts) - 1]
    # An installed package may lie below the checkout of another project.
    if root / IN_CHECKOUT != HERE or not (root / ".git").exists():
        return ""
    import subprocess

    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"],
            check=False,
            capture_output=True,
            text=True,
        )
    except OSError:  # Git is not installed
        return ""
    return answer.stdout.strip()


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from aerobee_wire.version import VERSION

        found = commit()
        click.echo(f"aerobee {VERSION} (commit {found})" if found else f"aerobee {VERSION}")
        context.exit()


def _use(
    namesrv: str | None,
    context_name: str | None,
    access_key: str | None,
    secret_key_file: str | None,
) -> None:
    """Pass the user to the clients of this process. Commands read the other options themselves."""
    for variable, value in (
        ("AEROBEE_ACCESS_KEY", access_key),
        ("AEROBEE_SECRET_KEY_FILE", secret_key_file),
    ):
        if value is not None:
            os.environ[variable] = value


class Aerobee(CommandGroup):
    """The command `aerobee`. To the name of a command of mqadmin, it answers with ours."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            from aerobee_cli.mqadmin import answer

            if text := answer(args[0]):
                raise click.UsageError(text, ctx)
        return super().resolve_command(ctx, args)


app = Aerobee(
    "aerobee",
    help="Aerobee: a message queue with topics, consumer groups, retries and dead letters.",
    epilog="Try: aerobee up",
    params=[
        click.Option(
            ["--namesrv"],
            metavar="H:P;H:P",
            envvar="NAMESRV_ADDR",
            show_envvar=True,
            help="Name servers, for all commands. Default: 127.0.0.1:9876.",
        ),
        click.Option(
            ["--context", "context_name"],
            metavar="NAME",
            envvar="AEROBEE_CONTEXT",
            show_envvar=True,
            help="How to connect, and as which user: see `aerobee context`.",
        ),
        click.Option(
            ["--access-key"],
            metavar="USER",
            envvar="AEROBEE_ACCESS_KEY",
            show_envvar=True,
            help="The user who signs the calls to name servers and brokers.",
        ),
        click.Option(
            ["--secret-key-file"],
            metavar="FILE",
            envvar="AEROBEE_SECRET_KEY_FILE",
            show_envvar=True,
            help="The secret key of the user.",
        ),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show version and commit.",
        ),
    ],
    callback=_use,
)


def _load(name: str) -> click.Command:
    module, _ = COMMANDS[name]
    group: CommandGroup = import_module(f"aerobee_cli.commands.{module}").app
    if name in ("broker", "namesrv", "proxy"):
        config: CommandGroup = getattr(import_module("aerobee_cli.commands.config"), name)
        group.add_lazily("config", lambda: config, config.help or "")
    if module == name and group.name == name:
        return group
    command = group.get_command(None, name)
    assert command is not None, f"{module} has no command {name}"
    return command


for _name, (_, _help) in COMMANDS.items():
    app.add_lazily(_name, partial(_load, _name), _help)
