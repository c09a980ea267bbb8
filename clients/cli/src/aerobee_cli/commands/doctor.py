"""Define `aerobee doctor`: report problems, and how to solve them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import click

from aerobee_cli import output
from aerobee_cli.command_line import CommandGroup, Option
from aerobee_cli.errors import INCOMPLETE
from aerobee_cli.options import BadOption, ClusterOptions, enter_context
from aerobee_cli.times import parse_duration
from aerobee_wire.printable import printable

if TYPE_CHECKING:
    from aerobee_cli.doctor.cluster import Diagnosis

FOUND = INCOMPLETE  # exit code: findings


app = CommandGroup()


@app.add(epilog="Example: aerobee doctor --from 127.0.0.1:8081")
def doctor(
    *,
    address: Annotated[
        str | None,
        Option(
            "--from",
            metavar="H:P",
            help="A proxy or name server: check its answers to clients. The word `proxy` is that "
            "of the context.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        Option(metavar="TOPIC", help="With a proxy: ask for this one. Default: all."),
    ] = None,
    idle: Annotated[
        str,
        Option(metavar="TIME", help="Hint at topics and groups that were not used for this time."),
    ] = "30d",
    options: ClusterOptions,
) -> None:
    """Look for problems of clients and operators. Print each problem and its solution on one line.

    The command checks whether name servers and brokers can be reached from here. It checks clocks,
    disks, memory and versions. It compares topics and groups between brokers, and the subscriptions
    of the members of each group. A line that begins with "hint:" names a topic or a group that no
    client has used for the time of --idle.

    With --from and a proxy, it checks the addresses that an official SDK gets. Like an SDK, it
    signs as the user of the context or the options, and presents no certificate.

    Exit code 0: no findings except hints. 3: there are findings. 1: the check itself failed.
    """
    from aerobee_cli.doctor import cluster, proxy
    from aerobee_client.cluster.namesrv import namesrv_addresses

    namesrvs = namesrv_addresses(options.address)
    if topic and address is None:
        raise BadOption("--topic: needs --from with a proxy")
    if address == "proxy":
        address = _proxy_of(options.context)
    if address is not None:
        address, *others = namesrv_addresses(address)
        if others:
            raise BadOption("--from: give the address of one proxy or name server")
        if proxy.is_namesrv(address):
            if topic:
                raise BadOption(f"--topic: {address} is a name server; give a proxy to --from")
            namesrvs, address = (address,), None
    if address is None:
        found = cluster.diagnose(namesrvs, idle_ms=_milliseconds("--idle", idle))
    else:
        found = proxy.diagnose(address, topic or proxy.known_topics(namesrvs))
    _show(found, as_json=options.json)


def _show(found: Diagnosis, *, as_json: bool) -> None:
    """Print the findings and the verdict. Exit with FOUND if a finding is not a hint."""
    if as_json:
        output.write_array(output.items_of(found.findings))
    else:
        for finding in found.findings:
            print(printable(finding.text))
    number = len(found.problems)
    verdict = output.counted(number, "finding") if number else "all is well"
    if hints := len(found.findings) - number:
        verdict += f", {output.counted(hints, 'hint')}"
    output.note(f"looked at {', '.join(found.looked_at)}: {verdict}")
    if number:
        raise click.exceptions.Exit(FOUND)


def _milliseconds(option: str, text: str) -> int:
    try:
        return round(parse_duration(text).total_seconds() * 1_000)
    except ValueError as error:
        raise BadOption(f"{option}: {error}") from None


def _proxy_of(context: click.Context) -> str:
    """Return the proxy of the context that counts. Raises BadOption if there is none."""
    connection = enter_context(context)
    if connection is None or not connection.proxy:
        raise BadOption("--from proxy: there is no context with a proxy; give its address")
    return connection.proxy
