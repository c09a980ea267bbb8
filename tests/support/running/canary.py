"""Look for marked secrets and bodies where they must not be: `pytest --secure`, and `make canary`.

SECRET is the secret key of the user of the suites, and BODY begins the bodies that official SDKs
send. After each service has ended, neither is in its output, its command line or its files, but
for the secret in the access table, and bodies in the log.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

SECRET = "CANARY-5ecret-key"
BODY = "CANARY-b0dy "
WITH_SECRETS = "accessTable.json"  # names of files begin so, also while one is replaced
WITH_BODIES = "commitlog"  # folders


def check_text(text: str, where: str, *, bodies: bool = False) -> None:
    """Fail if a text has the secret, or a body unless it may have `bodies`."""
    for mark in (SECRET,) if bodies else (SECRET, BODY):
        lines = [line for line in text.splitlines() if mark in line]
        assert not lines, f"{where} has {mark!r}: {lines[0][:1_000]}"


def check_files(folder: Path) -> None:
    """Fail if a file of a service has the secret or a body, and may not have it."""
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        for data in _written(path):
            if SECRET.encode() in data:
                assert path.name.startswith(WITH_SECRETS), f"{path} has the secret key"
            if BODY.encode() in data:
                assert WITH_BODIES in path.parts, f"{path} has a body"


def _written(path: Path) -> Iterator[bytes]:
    """Yield what was written to a file: a broker that was killed leaves 1 GiB that it reserved."""
    with path.open("rb") as file:
        end = 0
        while True:
            try:
                begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return  # no data is behind `end`
            end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            yield os.pread(file.fileno(), end - begin, begin)


def check_command_line(pid: int) -> None:
    """Fail if the command line of a process has the secret."""
    text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    check_text(text.replace("\0", "\n"), "a command line")
