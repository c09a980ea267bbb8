"""Lock a table on a file system that has no locks.

Each job writes its own lock file, and then reads the lock files of other jobs. If two jobs start at
the same time, at least one of them finds the other's file and stops; both may stop.

A lock file contains the processes that hold the lock. If a job was killed, the next job on the same
machine deletes its lock file. A job on another machine cannot check whether the killed job still
runs, so it stops, and the operator must delete the file.
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
    """Lock a facts table during the block, so that no other job writes it.

    The lock is held by this process and its Java process `java`. `folder` contains the lock files.
    If a job was killed on this machine, wait until its Java process has ended. Raise ReportError if
    another job holds the lock.
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
    """Wait until the job that wrote a lock file no longer holds the lock.

    Raise ReportError if the job is still running.
    """
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
    """Return the host name and boot id of this machine. The boot id changes with each boot."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    return f"{socket.gethostname()} {boot}"


def _process(number: int) -> str:
    """Return the id and the start time of a process, which identify it even if ids are reused."""
    return f"{number} {_stat(number)[19]}"


def _lives(process: str) -> bool:
    number, _, start = process.partition(" ")
    try:
        fields = _stat(int(number))
    except OSError:
        return False
    return fields[0] != "Z" and fields[19] == start


def _stat(number: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the program name; the first one is the state."""
    return Path(f"/proc/{number}/stat").read_text("utf-8").rpartition(")")[2].split()
