"""Define `aerobee certs`: make, renew and show the certificates of a cluster."""

from __future__ import annotations

import re
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from aerobee_cli import output
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.options import DEFAULT_CLUSTER, BadOption, Json, TableOptions
from aerobee_cli.table import Column, Table, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aerobee_cli.authority import Authority, Issued

app = CommandGroup("certs", help="Certificates for TLS between services and clients.")

LABEL = 40  # characters of a cluster or a process in the names of a certificate
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{,{LABEL - 1}}}")
COLUMNS = (
    Column("file", "file"),
    Column("role", "role"),
    Column("name", "name"),
    Column("expires", "not_after"),
    number("days", "expires_in_days"),
    Column("names", "names", extra=True, text=True),
)

Directory = Annotated[Path, Argument(metavar="DIR", help="Directory of the certificates.")]
Hosts = Annotated[
    str,
    Option(
        metavar="H,...",
        help="Names and addresses of hosts in the certificates. Default: those of this machine.",
    ),
]
At = Annotated[
    Path | None,
    Option(
        "--at",
        metavar="PATH",
        help="Where the files will be on the machines that use them, for the files of options. "
        "Default: DIR.",
    ),
]
Days = Annotated[int, Option(min=1, max=3650, metavar="N", help="How long they are valid.")]


@app.add(epilog="Example: aerobee certs init secure --cluster prod")
def init(
    *,
    directory: Directory,
    cluster: Annotated[
        str, Option(metavar="NAME", help="The tlsClusterName of services and clients.")
    ] = DEFAULT_CLUSTER,
    broker: Annotated[
        str,
        Option(metavar="NAME", help="The brokerName of the broker. Default: the host's name."),
    ] = "",
    hosts: Hosts = "",
    at: At = None,
    days: Days = 90,
    keep: Annotated[
        bool,
        Option(
            "--keep", help="Keep an authority that is there; renew what expires within 30 days."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Make an authority, and a certificate for each role: services, admin and client.

    A service needs ca.crt, and the files of its role. Keep ca.key elsewhere: only this command
    needs it. With the certificate of the role admin, the command changes topics and groups; that of
    the role client sends, receives and lists. Programs that sign their calls as a user need ca.crt
    only.
    """
    _check_label("--cluster", cluster)
    broker = broker or socket.gethostname()
    _check_name("--broker", broker)
    authority = _authority(directory, at)
    make = authority.keep if keep else authority.init
    made = make(cluster, broker, _hosts(hosts), days)
    _show(made, json=json)
    place = at or directory
    output.note(
        f"start services with --config {place}/ROLE.conf; for the command: . {place}/admin.env; "
        f"for programs: . {place}/client.env"
    )


@app.add(epilog="Example: aerobee certs issue secure --role broker --name broker-b")
def issue(
    *,
    directory: Directory,
    role: Annotated[
        str, Option(metavar="ROLE", help="namesrv, broker, proxy, console, admin or client.")
    ],
    name: Annotated[
        str, Option(metavar="NAME", help="Name of the files. Of a broker: its brokerName.")
    ],
    hosts: Hosts = "",
    at: At = None,
    days: Days = 90,
    json: Json = False,
) -> None:
    """Make a key, a certificate and a file of options for one more process or client."""
    from aerobee_wire.identity import ROLES

    if role not in ROLES:
        raise BadOption(f"--role {role!r}: write one of {', '.join(ROLES)}")
    _check_name("--name", name)
    _show([_authority(directory, at).issue(role, name, _hosts(hosts), days)], json=json)


@app.add(epilog="Example: aerobee certs renew secure --within 30")
def renew(
    *,
    directory: Directory,
    within: Annotated[
        int, Option(min=0, metavar="DAYS", help="Renew what expires within these days.")
    ] = 30,
    days: Days = 90,
    json: Json = False,
) -> None:
    """Sign certificates again that expire soon. Services read the new files without a restart."""
    renewed = _authority(directory).renew(within, days)
    _show(renewed, json=json)
    if not renewed:
        output.note(f"no certificate of {directory} expires within {within} days")


@app.add(epilog="Example: aerobee certs show secure --json")
def show(*, directory: Directory, shown: TableOptions, json: Json = False) -> None:
    """List the certificates of a directory, and when they expire."""
    table = shown.listing(COLUMNS)
    found = output.items_of(_authority(directory).list())
    table.show(found, as_json=json, empty=f"no certificates in {directory}")


def _authority(directory: Path, at: Path | None = None) -> Authority:
    from aerobee_cli.authority import Authority

    if at is not None and not at.is_absolute():
        raise BadOption(f"--at {str(at)!r}: write a path that begins with /")
    return Authority(directory, datetime.now(UTC), at)


def _show(issued: Sequence[Issued], *, json: bool) -> None:
    Table(COLUMNS).show(output.items_of(issued), as_json=json)


def _hosts(given: str) -> list[str]:
    from aerobee_cli.authority import default_hosts

    hosts = [part.strip() for part in given.split(",")] if given else default_hosts()
    for host in hosts:
        if not host:
            raise BadOption(f"--hosts {given!r}: a name is empty; write it like a.example,10.0.0.1")
        if not host.isascii():
            raise BadOption(f"--hosts {host!r}: write ASCII, an international name as xn--…")
    return hosts


def _check_label(option: str, value: str) -> None:
    """Check a part of a DNS name."""
    label = value.replace("-", "")
    if not (value.isascii() and label.isalnum() and value[0] != "-" and len(value) <= LABEL):
        raise BadOption(f"{option} {value!r}: write at most {LABEL} letters, digits and -")


def _check_name(option: str, value: str) -> None:
    """Check the name of a process, which is also the name of its files."""
    if not NAME.fullmatch(value):
        raise BadOption(
            f"{option} {value!r}: write at most {LABEL} letters, digits, and - . _ @ after the "
            "first"
        )
