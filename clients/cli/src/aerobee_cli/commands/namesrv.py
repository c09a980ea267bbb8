"""Define `aerobee namesrv`: run a name server, or administer running ones."""

from __future__ import annotations

from inspect import getdoc

import click

from aerobee_cli.command_line import ServiceGroup
from aerobee_cli.options import refuse_context
from aerobee_cli.processes.become import become


@click.pass_context
def namesrv(context: click.Context) -> None:
    """Run a name server in the foreground, or administer running ones.

    Options: --port P, --host H, --data DIR, --config FILE, --set key=value, --print-config.
    """
    if context.invoked_subcommand is None:
        refuse_context(context)
        become("aerobee_namesrv", context.obj or [])


app = ServiceGroup(
    "namesrv",
    callback=namesrv,
    help=getdoc(namesrv),
    epilog="Example: aerobee namesrv --port 9876 --data ./data",
    invoke_without_command=True,
    no_args_is_help=False,
)
