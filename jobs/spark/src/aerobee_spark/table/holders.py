"""A lock on a file system that has none: each job that wants it writes a file of its own and then
looks at those of others. Of two jobs at once at least one sees the other, and gives way; both may.

A file says which processes hold the lock. That of a job that was killed is removed by the next one
on the same machine; on another machine nobody knows whether the job lives, and a person decides.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aerobee_spark.errors import ReportError
from aerobee_spark.table.storage import INTERVAL_S, LEFTOVER_S, TableFiles


@contextmanager
def held(files: TableFiles, folder: str, java: int) -> Iterator[None]:
    """Holds the lock `folder` for the block, by this process and its Java. Waits for the Java of a
    job that was killed on this machine. Raises ReportError when a job holds it."""
    mine = f"{uuid.uuid4().hex}.json"
    files.make(folder)
    about = {"machine": _machine(), "processes": [_process(os.getpid()), _process(java)]}
    files.create(f"{folder}/{mine}", json.dumps(about).encode())
    try:
        for name in files.names(folder):
            if name != mine:
                _pass(files, f"{folder}/{name}")
        yield
    finally:
        files.delete(f"{folder}/{mine}")


def _pass(files: TableFiles, name: str) -> None:
    """Returns when the holder is gone. Raises ReportError when it works."""
    deadline = time.monotonic() + LEFTOVER_S
    while True:
        try:
            holder: dict[str, Any] = json.loads(files.read(name))
        except FileNotFoundError:
            return
        here = holder["machine"] == _machine()
        job, *children = (here and _lives(each) for each in holder["processes"])
        if here and not job and not any(children):
            files.delete(name)
            return
        if not here or job or time.monotonic() > deadline:
            process = holder["processes"][0].partition(" ")[0]
            host = holder["machine"].partition(" ")[0]
            raise ReportError(
                f"another job writes {files.where} (process {process} on {host}): wait for its "
                f"end, or stop it; if it was killed, delete {files.where}/{name}",
                files.where,
            )
        time.sleep(INTERVAL_S)


def _machine() -> str:
    """The host, and which start of it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    return f"{socket.gethostname()} {boot}"


def _process(number: int) -> str:
    """Its number, and the moment of its start, in ticks: numbers are used again."""
    return f"{number} {_stat(number)[19]}"


def _lives(process: str) -> bool:
    number, _, start = process.partition(" ")
    try:
        fields = _stat(int(number))
    except OSError:
        return False
    return fields[0] != "Z" and fields[19] == start


def _stat(number: int) -> list[str]:
    """From the state on, which is the third field of proc(5)."""
    return Path(f"/proc/{number}/stat").read_text("utf-8").rpartition(")")[2].split()
