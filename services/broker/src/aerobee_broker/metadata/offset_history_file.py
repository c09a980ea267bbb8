"""Keep the history of committed offsets in two files, each of at most 12 MiB.

New samples are appended every few seconds, without a flush of the disk: a crash of the process
loses the last seconds, and a power cut may lose more. When the first file is full, it becomes the
second one, and a new first file begins. Both may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.metadata.offset_history import OffsetHistory
from aerobee_chassis.lifecycle import Component

FILE, OLD_FILE = "offsetHistory", "offsetHistory.1"
MAX_FILE_BYTES = 12 * 1024 * 1024
PRUNE_MS = 60_000


@dataclass(slots=True, kw_only=True)
class OffsetHistoryFile(Component):
    """Loads the history at the start, and appends to its file. `folder` is the store's `config`."""

    history: OffsetHistory
    disk: Disk
    folder: Path
    worker: Worker
    now_ms: Callable[[], int]
    max_file_bytes: int = MAX_FILE_BYTES
    _is_damaged: bool = field(default=False, init=False)
    _pruned_ms: int = field(default=0, init=False)

    def restore(self) -> None:
        """Load both files. A file that cannot be read is left out, with a warning."""
        for name in (OLD_FILE, FILE):
            path = self.folder / name
            try:
                is_whole = self.history.load(read_file(self.disk, path))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                structlog.get_logger().warning("file_unreadable", file=str(path), reason=str(error))
                is_whole = False
            self._is_damaged = not is_whole

    async def save(self) -> None:
        """Append the samples since the last call. Log a warning if that fails."""
        now_ms = self.now_ms()
        if now_ms - self._pruned_ms >= PRUNE_MS:
            self._pruned_ms = now_ms
            for _ in self.history.pruning(now_ms):
                await asyncio.sleep(0)
        try:
            if self.history.has_forgotten:
                blocks = list[bytes]()
                for block in self.history.contents():
                    blocks.append(block)
                    await asyncio.sleep(0)
                await self.worker(lambda: self._replace(b"".join(blocks)))
            elif block := self.history.changes():
                await self.worker(lambda: self._append(block))
        except OSError as error:
            path = self.folder / FILE
            structlog.get_logger().warning("history_not_saved", file=str(path), reason=str(error))

    async def stop(self) -> None:
        await self.save()

    def _replace(self, content: bytes) -> None:
        """Replace both files, because they have samples of a deleted group or topic.

        Blocks; raises OSError.
        """
        replace_file(self.disk, self.folder / FILE, content)
        self._is_damaged = False
        if self.disk.exists(self.folder / OLD_FILE):
            self.disk.remove(self.folder / OLD_FILE)

    def _append(self, block: bytes) -> None:
        """Append a block. A file with a damaged end is not continued. Blocks; raises OSError."""
        path = self.folder / FILE
        if self.disk.exists(path):
            file = self.disk.open(path)
            size = file.size()
            if not self._is_damaged and size + len(block) <= self.max_file_bytes:
                try:
                    file.pwrite(block, size)
                except BaseException:
                    self._is_damaged = True
                    raise
                finally:
                    file.close()
                return
            file.close()
            self.disk.rename(path, self.folder / OLD_FILE)
        self._is_damaged = False
        file = self.disk.open(path, create=True)
        try:
            file.pwrite(block, 0)
        finally:
            file.close()
