"""Append lines to an audit log: a file that is rotated by its size, with linked lines.

The file FILE is renamed to FILE.1 when it is full, FILE.1 to FILE.2, and so on. The lines continue
across files and restarts (`aerobee_wire.audit`). A lock on FILE.lock keeps other processes away.

A crash may leave an incomplete last line, and a power cut one with zero bytes. Both are removed at
the next start, and its first line has the number of the removed bytes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from aerobee_wire import files
from aerobee_wire.audit import BrokenLine, Link, link_of, linked, parsed

_MODE = 0o600  # names of users, topics and addresses are not for others
_BLOCK = 64 * 1024  # bytes that are read at once to find the last line


class AuditLogDamaged(OSError):
    """The last line of the log is not what was written, so that no line can follow it."""


class AuditLog:
    """Append to the audit log at `path`. Use the object on one thread at a time.

    - `max_bytes` is the size of a file, after which the next one begins.
    - `keep` is how many full files are kept, besides the present one.
    """

    def __init__(self, path: Path, *, max_bytes: int, keep: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._lock = -1
        self._file = -1
        self._size = 0
        self._last = Link()
        self._torn_bytes = 0  # of an incomplete line that was removed and is not named yet

    @property
    def last(self) -> Link:
        """Return the link to the last line."""
        return self._last

    def open(self) -> None:
        """Lock the log and find its last line.

        Raises:
            AuditLogDamaged: The last line was changed.
            BlockingIOError: Another process has the log open.
            OSError: The files cannot be read or written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._numbered("lock"), os.O_RDWR | os.O_CREAT, _MODE)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._open_file()

    def append(self, record: Mapping[str, Any], *, durable: bool) -> None:
        """Append a line, and return after it is on the disk if `durable` is true.

        After a failure, the file is opened again at the next call, and an incomplete line removed.

        Raises:
            OSError: The line is not in the file, or may not be on the disk.
        """
        if self._file < 0:
            self._open_file()
        if self._torn_bytes:
            record = {**record, "torn_bytes": self._torn_bytes}
        line, link = linked(record, self._last)
        if self._size and self._size + len(line) > self._max_bytes:
            self._rotate()
        try:
            if (written := os.write(self._file, line)) < len(line):
                # A full disk takes a part. The rest fails with the reason.
                os.write(self._file, line[written:])
            if durable:
                files.sync_data(self._file)
        except OSError:
            self._close_file()
            raise
        self._size += len(line)
        self._last = link
        self._torn_bytes = 0

    def close(self) -> None:
        """Close the file and release the lock."""
        self._close_file()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _numbered(self, ending: int | str) -> Path:
        return self.path.with_name(f"{self.path.name}.{ending}")

    def _open_file(self) -> None:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, _MODE)
        try:
            self._size = os.fstat(file).st_size
            line = _tail(file, self._size)
            while line and (not line.endswith(b"\n") or b"\0" in line):
                self._size -= len(line)
                os.ftruncate(file, self._size)
                self._torn_bytes += len(line)
                structlog.get_logger().warning(
                    "audit_line_torn", path=str(self.path), removed_bytes=len(line)
                )
                line = _tail(file, self._size)
            if not line:  # a new log, or one that was rotated last
                line = _last_line(self._numbered(1))
            if line:
                self._last = link_of(parsed(line))
        except BrokenLine as error:
            os.close(file)
            raise AuditLogDamaged(str(error)) from None
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def _rotate(self) -> None:
        self._close_file()
        # Up to the first free number: a rotation that failed has left one, and must not push out
        # one more old file each time that it is repeated.
        free = next((n for n in range(1, self._keep) if not self._numbered(n).exists()), self._keep)
        for number in range(free - 1, 0, -1):
            self._numbered(number).replace(self._numbered(number + 1))
        self.path.replace(self._numbered(1))
        self._open_file()
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _last_line(path: Path) -> bytes:
    """Return the last line of a file, or b"" if there is no such file."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        return _tail(file, os.fstat(file).st_size)
    finally:
        os.close(file)


def _tail(file: int, size: int) -> bytes:
    """Return the bytes of the last line of a file with `size` bytes, complete or not."""
    found = b""
    while len(found) < size:
        length = min(_BLOCK, size - len(found))
        found = os.pread(file, length, size - len(found) - length) + found
        if (end := found.rfind(b"\n", 0, -1)) >= 0:
            return found[end + 1 :]
    return found
