"""Define `aerobee audit`: read and verify the audit log of a name server or broker."""

from __future__ import annotations

import json as json_module
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

from aerobee_cli import output
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.errors import CommandError
from aerobee_cli.options import Json
from aerobee_wire.audit import BrokenLine, Chain, parsed

app = CommandGroup("audit", help="Audit logs: changes and rejected calls.")

POLL_S = 0.25


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
            print(line.decode(errors="replace").rstrip("\n"), flush=True)
        else:
            print(output.printable(_text(line)), flush=True)


@app.add(epilog="Example: aerobee audit verify audit.log*")
def verify(
    *,
    files: Annotated[
        list[Path], Argument(metavar="FILE...", help="Files of one log, in any order.")
    ],
    json: Json = False,
) -> None:
    """Verify that no line of an audit log was changed, removed, inserted or moved.

    It names the first broken line (exit code 1). The hash of the last line is printed: keep it
    elsewhere, because removed last lines leave no trace.
    """
    chain = Chain()
    for path in _in_order([each for each in files if each.suffix != ".lock"]):
        place = 0
        with _opened(path) as file:
            try:
                for _record in chain.check(file):
                    place += 1
            except BrokenLine as error:
                raise CommandError(f"{path}:{place + 1}: {error}") from None
    if not chain.first:
        raise CommandError("no lines: give the files of an audit log")
    last = chain.last
    output.show_done(
        f"lines {chain.first} to {last.number} are intact; the last hash is {last.hash}",
        {"first": chain.first, "last": last.number, "hash": last.hash},
        as_json=json,
    )


def _in_order(paths: list[Path]) -> list[Path]:
    """Return the files by the number of their first line. Files without a line are left out."""
    found = []
    for path in paths:
        with _opened(path) as file:
            line = file.readline()
        if not line:
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
    parts += [record.get("result", ""), record.get("reason", "")]
    if (count := record.get("count", 1)) > 1:
        parts.append(f"({count} times)")
    if torn := record.get("torn_bytes"):
        parts.append(f"(removed an incomplete line of {torn} bytes)")
    return " ".join(filter(None, parts)).replace("\n", " ")
