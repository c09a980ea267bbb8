"""Links from each message in a queue of a parent to the previous message of the same lite topic.

A file beside the consume queue has one link for each message of the queue, in the same order. Links
are grouped in blocks and never change. An incomplete block is in memory. A complete block is
written with a CRC, which each read from the file checks.

    LITE/<parent>/<queue id>/<queue offset of the first link, 20 digits>
        1,024 blocks of 512 links; all numbers are big-endian

A link also has a *jump* to a message further back (Myers, 1983). With jumps, a search from the last
message of a lite topic to any of its n messages takes about 2 log2(n) steps.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from isal.isal_zlib import crc32

from aerobee_broker.disk import Disk
from aerobee_broker.store.log.open_files import OpenFiles

BLOCK_LINKS = 512
SEGMENT_BLOCKS = 1_024
_NOWHERE = -1

LINK = struct.Struct(
    ">q"  # number of the message in its lite topic, from 0; -1 without a lite topic
    "q"  # queue offset of the previous message; -1 for the first one
    "q"  # queue offset of an earlier message, the jump; the first message has its own
    "q"  # number of that earlier message
)
_HEADER = struct.Struct(
    ">4s"  # magic
    "H"  # version
    "H"  # reserved, 0
    "q"  # queue offset of the first link
    "I"  # CRC-32 of the fields above, and of the links
    "12x"
)
assert LINK.size == 32
assert _HEADER.size == 32
_MAGIC, _VERSION = b"ALNK", 1
_CHECKED = _HEADER.size - 16  # bytes of the header under the CRC
BLOCK_BYTES = _HEADER.size + BLOCK_LINKS * LINK.size
SEGMENT_LINKS = SEGMENT_BLOCKS * BLOCK_LINKS
_NAME_DIGITS = 20
_CACHED_BLOCKS = 16  # of 16 KB


class Link(NamedTuple):
    number: int
    previous: int
    jump: int
    jump_number: int


NO_LINK = LINK.pack(_NOWHERE, _NOWHERE, _NOWHERE, _NOWHERE)


class LinkDamaged(Exception):
    """A block of links cannot be read, or its CRC is wrong. The links must be derived again."""


class LinkFile:
    """The links of the messages of one queue, from queue offset `first` to below `end`."""

    def __init__(self, disk: Disk, folder: Path, open_files: OpenFiles) -> None:
        self._disk = disk
        self.folder = folder
        self._open_files = open_files
        self.unsynced: set[Path] = set()  # files with writes that may not be durable
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self.start_at(0)

    @property
    def end(self) -> int:
        return self.tail_start + len(self.tail) // LINK.size

    def start_at(self, queue_offset: int) -> None:
        """Drop all links. The next appended link belongs to `queue_offset`.

        Earlier links in the same block count as missing.
        """
        self.first = queue_offset
        self.tail_start = queue_offset - queue_offset % BLOCK_LINKS
        self.tail = bytearray(NO_LINK * (queue_offset - self.tail_start))
        self._cache.clear()

    def load(self, first: int, tail_start: int, tail: bytes) -> None:
        """Load the links of a snapshot. `tail` has the links from `tail_start` on."""
        self.first, self.tail_start, self.tail = first, tail_start, bytearray(tail)
        self._cache.clear()

    def append(self, link: bytes) -> None:
        self.tail += link

    def get(self, queue_offset: int) -> Link | None:
        """Return the link of this queue offset, or None if it is below `first`.

        Raises LinkDamaged.
        """
        if queue_offset < self.first:
            return None
        if queue_offset >= self.tail_start:
            return Link._make(
                LINK.unpack_from(self.tail, (queue_offset - self.tail_start) * LINK.size)
            )
        start = queue_offset - queue_offset % BLOCK_LINKS
        at = _HEADER.size + (queue_offset - start) * LINK.size
        return Link._make(LINK.unpack_from(self._block(start), at))

    def _block(self, start: int) -> bytes:
        found = self._cache.get(start)
        if found is not None:
            self._cache.move_to_end(start)
            return found
        path, position = self._place(start)
        try:
            block = self._open_files.get(path).pread(BLOCK_BYTES, position)
        except OSError as error:
            raise LinkDamaged(f"{path}: {error}") from error
        if not _is_whole(block, start):
            raise LinkDamaged(f"{path}: the block at {position} is damaged")
        self._cache[start] = block
        if len(self._cache) > _CACHED_BLOCKS:
            self._cache.popitem(last=False)
        return block

    # ---- files ----

    def _place(self, start: int) -> tuple[Path, int]:
        """Return the file of the block that starts at this queue offset, and its position there."""
        segment = start - start % SEGMENT_LINKS
        return self._path(segment), (start - segment) // BLOCK_LINKS * BLOCK_BYTES

    def _path(self, segment: int) -> Path:
        return self.folder / f"{segment:0{_NAME_DIGITS}}"

    def write(self) -> None:
        """Write complete blocks to the operating system.

        Raises OSError. After an error, the remaining blocks stay in memory.
        """
        while len(self.tail) >= BLOCK_LINKS * LINK.size:
            start = self.tail_start
            path, position = self._place(start)
            if position == 0 or not self._disk.exists(path):
                self._disk.make_directory(self.folder)
                self._open_files.get(path, create=True)
            links = bytes(self.tail[: BLOCK_LINKS * LINK.size])
            block = _block(start, links)
            self._open_files.get(path).pwrite(block, position)
            self.unsynced.add(path)
            self._cache.pop(start, None)
            self.tail_start += BLOCK_LINKS
            del self.tail[: BLOCK_LINKS * LINK.size]

    def trim_to(self, queue_offset: int) -> None:
        """Remove the files whose messages are all below this queue offset. Raises OSError.

        The messages below it are no longer stored.
        """
        if queue_offset // SEGMENT_LINKS == self.first // SEGMENT_LINKS:
            return
        limit = min(queue_offset, self.tail_start)
        for name in self._disk.list(self.folder):
            if len(name) == _NAME_DIGITS and name.isdigit():
                segment = int(name)
                if segment + SEGMENT_LINKS <= limit:
                    self._remove(self._path(segment))
                    self.first = max(self.first, segment + SEGMENT_LINKS)
        self._cache.clear()

    def _remove(self, path: Path) -> None:
        self._open_files.forget(path)
        self.unsynced.discard(path)
        self._disk.remove(path)

    def reset(self) -> None:
        """Remove all links and their files. Raises OSError."""
        for name in self._disk.list(self.folder):
            self._open_files.forget(self.folder / name)
        self._disk.remove_tree(self.folder)
        self.unsynced.clear()
        self.start_at(0)


def _block(start: int, links: bytes) -> bytes:
    head = _HEADER.pack(_MAGIC, _VERSION, 0, start, 0)[:_CHECKED]
    crc = crc32(links, crc32(head))
    return _HEADER.pack(_MAGIC, _VERSION, 0, start, crc) + links


def _is_whole(block: bytes, start: int) -> bool:
    if len(block) != BLOCK_BYTES:
        return False
    magic, version, _, found, crc = _HEADER.unpack_from(block)
    if (magic, version, found) != (_MAGIC, _VERSION, start):
        return False
    return bool(crc == crc32(memoryview(block)[_HEADER.size :], crc32(block[:_CHECKED])))
