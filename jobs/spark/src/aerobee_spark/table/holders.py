"""Lock a table on a file system that has no locks.

Each job writes a lock file of its own and then reads those of other jobs. Of two jobs at the same
time, at least one sees the other and stops; both may stop.

A lock file names the processes that hold the lock. If a job was killed, the next job on the same
machine deletes its file. On another machine it is unknown whether the job still runs, so the
operator must decide.
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
    """Hold the lock `folder` for the block, for this process and its Java.

    Wait for the Java of a job that was killed on this machine. Raise ReportError if a job holds
    the lock.
    """
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
    """Wait until the holder has ended. Raise ReportError if it is still running."""
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
                f"another job writes to {files.where} (process {process} on {host}): wait until it "
                f"ends, or stop it; if it was killed, delete {files.where}/{name}",
                files.where,
            )
        time.sleep(INTERVAL_S)


def _machine() -> str:
    """Return the host name and the id of its current boot."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    return f"{socket.gethostname()} {boot}"


def _process(number: int) -> str:
    """Return process number and start time in ticks: the system reuses numbers."""
    return f"{number} {_stat(number)[19]}"


def _lives(process: str) -> bool:
    number, _, start = process.partition(" ")
    try:
        fields = _stat(int(number))
    except OSError:
        return False
    return fields[0] != "Z" and fields[19] == start


def _stat(number: int) -> list[str]:
    """Return the fields of proc(5) from the third one, the state, on."""
    return Path(f"/proc/{number}/stat").read_text("utf-8").rpartition(")")[2].split()
