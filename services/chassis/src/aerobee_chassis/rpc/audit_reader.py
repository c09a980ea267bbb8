"""Read recent lines of an audit log, while its process writes.

A read takes bounded time and memory: it begins at the end, or at a time that it finds by bisection,
and goes back. It runs on a thread of its own, so that it stops neither the event loop nor a change.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from aerobee_wire.audit import AuditPage, AuditQuery, BrokenLine, Link, page_of, parsed
from aerobee_wire.status import Code, MqError

MOST_LINES = 4_000  # of one page, before filters: 2 MB, and some 50 ms
MOST_WAITING = 16  # reads
# Results of changes are sought up to this time after `to_ms`. A promotion takes up to 60 s.
RESULTS_MS = 120_000

_BLOCK = 64 * 1024  # bytes of one read
_STEP = 4 * 1024  # bytes of one read while a line is sought
_RETRY_AFTER_MS = 500


class AuditReader:
    """Read the files of the log at `path`. `last` returns the link to its last line.

    Tests replace `thread`, on which files are read.
    """

    def __init__(
        self, path: Path, last: Callable[[], Link], thread: Executor | None = None
    ) -> None:
        self._path = path
        self._last = last
        self._thread = thread or ThreadPoolExecutor(1, "audit-read")
        self._waiting = 0

    async def page(self, query: AuditQuery) -> AuditPage:
        """Return the lines that match a query, the newest first.

        Raises:
            MqError: SYSTEM_BUSY if MOST_WAITING reads wait; SYSTEM_ERROR if a file cannot be read.
        """
        if self._waiting >= MOST_WAITING:
            raise MqError(
                Code.SYSTEM_BUSY,
                f"{MOST_WAITING} callers read the audit log already: retry",
                retry_after_ms=_RETRY_AFTER_MS,
            )
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._page, query)
        except OSError as error:
            raise MqError(
                Code.SYSTEM_ERROR,
                f"the audit log {self._path} cannot be read: {error.strerror or error}",
                about="auditLogPath",
            ) from None
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """End the thread. Waits for the read that runs."""
        self._thread.shutdown(cancel_futures=True)

    def _page(self, query: AuditQuery) -> AuditPage:
        last = self._last()
        lines = self._back(query.to_ms + RESULTS_MS if query.to_ms else None)
        return page_of(query, lines, last, most_lines=MOST_LINES)

    def _back(self, to_ms: int | None) -> Iterator[bytes]:
        """Yield lines from the newest one back, or from the last one before a time.

        A rotation during the read renames files: a file is known by the number of its first line.
        """
        before: int | None = None  # the first number of the file that was read last
        while (file := self._opened_before(before, to_ms)) is not None:
            with file:
                end = file.size if to_ms is None else file.offset_of(to_ms)
                before, to_ms = file.first, None
                yield from file.back(end)

    def _opened_before(self, before: int | None, to_ms: int | None) -> _LogFile | None:
        """Return the newest file that begins before a number and a time, or None."""
        for path in _files(self._path):
            try:
                file = _LogFile(path)
            except FileNotFoundError:  # in the middle of a rotation
                continue
            is_before = before is None or file.first < before
            if file.size and is_before and (to_ms is None or file.first_ms < to_ms):
                return file
            file.close()
        return None


def _files(path: Path) -> Iterator[Path]:
    """Yield the files of a log, the newest first. A rotation moves a file to a later place.

    It begins with the oldest file, so that one number is free meanwhile: its path is yielded too.
    """

    def numbered(number: int) -> Path:
        return path.with_name(f"{path.name}.{number}")

    yield path
    number = 1
    while numbered(number).exists() or numbered(number + 1).exists():
        yield numbered(number)
        number += 1


class _LogFile:
    """A file of the log, open for reading.

    `size` is the bytes of it; 0 if it has no line. `first` and `first_ms` are the number and the
    time of its first line. Lines that were changed have neither.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self._file).st_size
        self.first, self.first_ms, found = self._line_from(0)
        if not found:
            self.size = 0

    def __enter__(self) -> _LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._file)

    def back(self, end: int) -> Iterator[bytes]:
        """Yield the lines before the offset `end`, the last one first, without incomplete ones."""
        head = b""
        while end > 0:
            length = min(_BLOCK, end)
            end -= length
            block = os.pread(self._file, length, end) + head
            lines = block.splitlines(keepends=True)
            head = lines.pop(0) if end else b""  # its begin is in the block before
            yield from (line for line in reversed(lines) if line.endswith(b"\n"))

    def offset_of(self, time_ms: int) -> int:
        """Return an offset after the last line before a time, and not after the next line."""
        low, high = 0, self.size
        while low < high:
            middle = (low + high) // 2
            _, found_ms, found = self._line_from(middle)
            if found and found_ms < time_ms:
                low = middle + 1
            else:
                high = middle
        # The line before `low` ends at its line feed, which may be the byte at `low` or after it.
        return low if low == 0 else self._begin_from(low)

    def _line_from(self, offset: int) -> tuple[int, int, bool]:
        """Return number and time of the first readable line that begins at or after an offset.

        The last value is false if there is none.
        """
        begin = self._begin_from(offset)
        while (end := self._begin_from(begin + 1)) > begin and begin < self.size:
            try:
                record = parsed(os.pread(self._file, end - begin, begin))
                return record["number"], record["timestamp_ms"], True
            except (BrokenLine, KeyError):
                begin = end
        return 0, 0, False

    def _begin_from(self, offset: int) -> int:
        """Return where the first line at or after an offset begins; the size if there is none."""
        if offset <= 0:
            return 0
        at = offset - 1
        while at < self.size:
            block = os.pread(self._file, min(_STEP, self.size - at), at)
            if not block:
                break
            if (found := block.find(b"\n")) >= 0:
                return at + found + 1
            at += len(block)
        return self.size
