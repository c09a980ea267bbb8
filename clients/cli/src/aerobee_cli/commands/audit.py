"""Define `aerobee audit`: read and verify the audit logs of name servers, brokers and proxies."""

from __future__ import annotations

import json as json_module
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

from aerobee_cli import output
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.errors import CommandError
from aerobee_cli.options import BadOption, Json, ListingOptions, end, moment_of
from aerobee_cli.table import Column, number
from aerobee_cli.times import Moment
from aerobee_wire.audit import START_HASH, BrokenLine, Chain, Link, link_of, parsed
from aerobee_wire.printable import printable

if TYPE_CHECKING:
    from aerobee_client.admin.audit import AuditLine

app = CommandGroup("audit", help="Audit logs: changes, logins and rejected calls.")

POLL_S = 0.25
MOST_OF_A_PAGE = 500

COLUMNS = (
    Column("time", "timestamp_ms"),
    Column("event", "event"),
    Column("user", "user"),
    Column("rpc", "rpc"),
    Column("resources", "resources"),
    Column("result", "result"),
    number("calls", "count"),
    Column("server", "server", extra=True),
    Column("address", "address", extra=True),
    Column("claimed user", "claimed_user", extra=True),
    Column("certificate", "certificate", extra=True),
    Column("visitor", "visitor", extra=True),
    Column("request id", "request_id", extra=True),
    Column("reason", "reason", text=True),
)


Since = Annotated[
    Moment | None,
    Option(
        parser=moment_of,
        metavar="TIME",
        help="Only lines since: ISO 8601, milliseconds since 1970, or 24h.",
    ),
]
Until = Annotated[
    Moment | None, Option(parser=moment_of, metavar="TIME", help="Only lines before.")
]


@app.add(epilog="Example: aerobee audit tail audit.log --follow")
def tail(
    *,
    file: Annotated[Path, Argument(metavar="FILE", help="The auditLogPath of a service.")],
    lines: Annotated[int, Option(min=0, metavar="N", help="Lines to begin with.")] = 20,
    follow: Annotated[bool, Option("--follow", help="Wait for further lines.")] = False,
    json: Json = False,
) -> None:
    """Print the last lines of an audit log, with --json unchanged.

    It does not verify how lines are linked: use `aerobee audit verify`.
    """
    for line in _lines(file, lines, follow):
        if json:
            print(printable(line.decode(errors="replace").rstrip("\n")), flush=True)
        else:
            print(printable(_text(line)), flush=True)


@app.add("list", epilog="Example: aerobee audit list --user billing --since 24h")
def list_lines(
    *,
    server: Annotated[
        str, Option(metavar="SERVER", help="Only this address, or the broker of this name.")
    ] = "",
    event: Annotated[
        str, Option(metavar="EVENT", help="Only change, rejected, login, read, opened or closed.")
    ] = "",
    user: Annotated[
        str, Option(metavar="USER", help="Only this user, or the URI of this certificate.")
    ] = "",
    rpc: Annotated[str, Option(metavar="RPC", help="Only this RPC, such as DeleteTopic.")] = "",
    resource: Annotated[
        str, Option(metavar="RESOURCE", help="Only this one: Topic:orders, or Topic:ord*.")
    ] = "",
    result: Annotated[
        str, Option(metavar="CODE", help="Only this result: OK, or the code of an error.")
    ] = "",
    since: Since = None,
    until: Until = None,
    top: Annotated[int, Option(metavar="N", min=1, help="How many at most.")] = 20,
    options: ListingOptions,
) -> None:
    """List the lines of the audit logs of all name servers and brokers, the newest first.

    A change is one line here. Proxies write only rejected calls, and are not asked: use `aerobee
    audit tail` there. Exit code 3: a server did not answer, or has no audit log.
    """
    table = options.listing(COLUMNS)
    now_ms = int(time.time() * 1_000)
    found: list[AuditLine] = []
    begin_ms, end_ms = (each.at(now_ms) if each else 0 for each in (since, until))
    with options.admin() as admin:
        while True:
            page = admin.audit_page(
                server=server, event=event, user=user, rpc=rpc, resource=resource, result=result,
                begin_timestamp_ms=begin_ms, end_timestamp_ms=end_ms,
                limit=min(top, MOST_OF_A_PAGE),
            )  # fmt: skip
            found += page.lines
            if len(found) >= top or page.complete_from_ms is None:
                break
            end_ms = page.complete_from_ms
    table.show(output.items_of(found[:top]), as_json=options.json, empty="no lines")
    missing = [f"the result lacks {name}: {why}" for name, why in page.unanswered.items()]
    missing += [f"{name} has no audit log: set auditLogPath" for name in page.without_log]
    end(missing)


@app.add(epilog="Example: aerobee audit verify audit.log*")
def verify(
    *,
    files: Annotated[
        list[Path], Argument(metavar="FILE...", help="Files of one log, in any order.")
    ],
    known: Annotated[
        str,
        Option(
            "--known",
            metavar="NUMBER:HASH",
            help="A line that the log must contain, as an earlier verify printed it.",
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Verify that no line of an audit log was changed, removed, inserted or moved.

    It names the first broken line (exit code 1). An incomplete last line is the trace of a crash,
    or is being written now, and is not an error. Removed last lines leave no trace: keep the last
    number and hash elsewhere, and give them as --known later.
    """
    wanted = _known(known)
    chain, torn, is_found = Chain(), 0, wanted is None
    paths = _in_order([each for each in files if each.suffix != ".lock"])
    for path in paths:
        place = 0
        with _opened(path) as file:
            try:
                lines = file if path is not paths[-1] else _whole(file)
                for record in chain.check(lines):
                    place += 1
                    is_found = is_found or link_of(record) == wanted
            except BrokenLine as error:
                raise CommandError(f"{path}:{place + 1}: {error}") from None
            torn = len(file.read()) if path is paths[-1] else 0
    if not chain.first:
        raise CommandError("no lines: give the files of an audit log")
    last = chain.last
    if wanted is not None and not is_found:
        removed = (
            "its last lines were removed" if wanted.number > last.number else "it was replaced"
        )
        if wanted.number < chain.first:
            removed = "give the older files, too"
        raise CommandError(f"line {wanted.number} with this hash is not in the log: {removed}")
    if torn:
        output.note(
            f"the last line is incomplete ({torn} bytes): its process was stopped while it wrote, "
            "or writes now"
        )
    output.show_done(
        f"lines {chain.first} to {last.number} are intact; the last one is "
        f"{last.number}:{last.hash}",
        {"first": chain.first, "last": last.number, "hash": last.hash, "torn_bytes": torn},
        as_json=json,
    )


def _known(text: str) -> Link | None:
    number, _, digest = text.partition(":")
    if not text:
        return None
    if not number.isdigit() or len(digest) != len(START_HASH):
        raise BadOption(f"invalid --known {text!r}: write the NUMBER:HASH that verify printed")
    return Link(int(number), digest)


def _whole(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file. Leave an incomplete last line to be read."""
    while (line := file.readline()).endswith(b"\n"):
        yield line
    file.seek(-len(line), 1)


def _in_order(paths: list[Path]) -> list[Path]:
    """Return the files by the number of their first line. Files without a line are left out."""
    found = []
    for path in paths:
        with _opened(path) as file:
            line = file.readline()
        if not line.endswith(b"\n"):
            continue
        try:
            found.append((parsed(line)["number"], path))
        except BrokenLine as error:
            raise CommandError(f"{path}:1: {error}") from None
    return [path for _, path in sorted(found)]


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None


def _lines(path: Path, count: int, follow: bool) -> Iterator[bytes]:
    """Yield the last lines of a file, and then further ones, also after a rotation."""
    file = _opened(path)
    try:
        before = file.readlines()
        yield from before[len(before) - count :] if count < len(before) else before
        while follow:
            line = file.readline()
            if line.endswith(b"\n"):
                yield line
                continue
            file.seek(-len(line), 1)  # the rest of an incomplete line may follow
            if _is_replaced(path, file):
                file.close()
                file = _opened(path)
            else:
                time.sleep(POLL_S)
    finally:
        file.close()


def _is_replaced(path: Path, file: IO[bytes]) -> bool:
    """Return whether `path` is another file now. The former one gets no further lines then."""
    try:
        now = path.stat().st_ino
    except FileNotFoundError:  # in the middle of a rotation
        return False
    return now != os.fstat(file.fileno()).st_ino


def _text(line: bytes) -> str:
    """Return a line for people."""
    try:
        record: dict[str, Any] = json_module.loads(line)
        at = output.iso_time(record["timestamp_ms"])
    except (ValueError, KeyError, TypeError):
        return f"not a line of an audit log: {line[:80].decode(errors='replace').rstrip()}"
    parts = [at, record.get("event", "")]
    caller = record.get("user") or record.get("certificate")
    parts += [caller or "", record.get("address", ""), record.get("rpc", "")]
    parts += record.get("resources", ())
    if claimed := record.get("claimed_user"):
        parts.append(f"(claims to be {claimed})")
    parts += [record.get("result", ""), record.get("reason", "")]
    if (count := record.get("count", 1)) > 1:
        parts.append(f"({count} times)")
    if torn := record.get("torn_bytes"):
        parts.append(f"(removed an incomplete line of {torn} bytes)")
    return " ".join(filter(None, parts)).replace("\n", " ")
