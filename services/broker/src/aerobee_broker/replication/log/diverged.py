"""List, read and count the records that a replica cut off its log (folder `diverged`).

A file contains bytes of the log from a physical offset on. These are whole records and the padding
at the ends of the log's files. `store/truncation.py` writes a file, and it stays until an operator
removes it. All methods block.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from aerobee_broker.disk import Disk, DiskFile
from aerobee_broker.errors import MessageCorrupted, MessageNotFound
from aerobee_wire import topics as names
from aerobee_wire.record import BLANK, MAGIC_BLANK, CorruptRecord, decode

READ_BYTES = 1 << 20
# System topics that contain messages of clients until they are delivered.
_OF_CLIENTS = frozenset({names.SCHEDULE_TOPIC, names.TIMER_TOPIC, names.HALF_TOPIC})
_NAME = re.compile(r"(\d+)-(\d+)(?:\.\d+)?\.log")


class DivergedFile(NamedTuple):
    """A file of cut-off records.

    `begin` is the physical offset of its first byte; `size` is in bytes.
    """

    name: str
    epoch: int
    begin: int
    size: int


@dataclass(frozen=True, slots=True)
class DivergedFiles:
    """Access the files of cut-off records below `folder`. Every method raises OSError."""

    disk: Disk
    folder: Path

    def files(self) -> list[DivergedFile]:
        """Return the files, sorted by epoch and offset."""
        found = []
        for name in self.disk.list(self.folder):
            match = _NAME.fullmatch(name)
            if match:
                size = self._size(name)
                found.append(DivergedFile(name, int(match[1]), int(match[2]), size))
        return sorted(found, key=lambda file: (file.epoch, file.begin, file.name))

    def read(self, name: str, position: int) -> bytes:
        """Return whole records and padding from `position` on, or no bytes at the end of the file.

        Return at most READ_BYTES, or a single larger record. Raises MessageNotFound,
        MessageCorrupted.
        """
        if not _NAME.fullmatch(name) or not self.disk.exists(self.folder / name):
            raise MessageNotFound(
                f"this replica keeps no {name[:64]!r} under diverged: list what it keeps "
                "(aerobee broker diverged list)"
            )
        file = self.disk.open(self.folder / name)
        try:
            return self._read(file, position)
        finally:
            file.close()

    def _read(self, file: DiskFile, position: int) -> bytes:
        left = file.size() - position
        if position < 0 or left <= 0:
            return b""
        data = file.pread(min(READ_BYTES, left), position)
        end = 0
        while len(data) - end >= BLANK.size:
            size, _ = BLANK.unpack_from(data, end)
            if size < BLANK.size or size > left - end:
                if end:
                    break  # return what lies before the damage
                reason = f"it says that it has {size} bytes"
                raise MessageCorrupted(file.path, _begin(file.path) + position, reason)
            if end + size > len(data):
                return data[:end] if end else file.pread(size, position)
            end += size
        return data[:end]

    def count_messages(self, name: str) -> int:
        """Return the number of client messages in a file. Raises the same errors as `read`.

        A delayed or transactional message may count twice: once while it waits, and once when it is
        delivered.
        """
        messages = position = 0
        while data := self.read(name, position):
            at = 0
            while at < len(data):
                size, magic = BLANK.unpack_from(data, at)
                messages += magic != MAGIC_BLANK and _is_message(data, at)
                at += size
            position += len(data)
        return messages

    def _size(self, name: str) -> int:
        file = self.disk.open(self.folder / name)
        try:
            return file.size()
        finally:
            file.close()


def _is_message(data: bytes, at: int) -> bool:
    try:
        topic = decode(data, at, check_crc=False).topic
    except CorruptRecord:
        return False
    return topic in _OF_CLIENTS or not names.is_system(topic)


def _begin(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[2]) if match else 0
