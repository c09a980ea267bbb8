"""A file with the last message of each lite topic (its *head*) in one queue of the parent.

With it, a start does not need to read the whole consume queue again.

    LITE/<parent>/<queue id>/heads
        header · links that are not in a complete block · slots of the table, then its columns

Numbers of the header are big-endian. Numbers of the table have the byte order of the machine. The
CRC does not detect another machine's byte order, so the header names it. If the file is lost, links
and heads are derived from the consume queue again.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from isal.isal_zlib import crc32

from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.store.lite.code_table import CODE_BYTES, CodeTable

NAME = "heads"
_HEADER = struct.Struct(
    ">4s"  # magic
    "H"  # version
    "H"  # byte order of the table: 0 little, 1 big
    "q"  # queue offset of the first link
    "q"  # queue offset of the first link in this file
    "q"  # queue offset after the last message that the file covers
    "q"  # physical offset of the last message that the file covers
    "I"  # bytes of links
    "I"  # slots
    "I"  # CRC-32 of everything else
)
assert _HEADER.size == 52
_CRC_BYTES = 4
_MAGIC, _VERSION = b"AHED", 1
_BYTE_ORDER = int(sys.byteorder == "big")


class Position(NamedTuple):
    """The messages and links that a snapshot covers.

    It covers the messages below the queue offset `end`. The last of them is at `physical_offset`.
    Its links begin at the queue offset `first`; links from `tail_start` on were in memory.
    """

    first: int
    tail_start: int
    end: int
    physical_offset: int


@dataclass(frozen=True, slots=True)
class HeadSnapshot:
    position: Position
    links: bytes
    table: list[bytes]  # result of CodeTable.to_bytes

    def write(self, disk: Disk, folder: Path) -> None:
        """Write the snapshot durably, and replace the previous one.

        The covered messages and links must already be durable. Raises OSError.
        """
        head = _HEADER.pack(
            _MAGIC,
            _VERSION,
            _BYTE_ORDER,
            *self.position,
            len(self.links),
            len(self.table[0]) // CODE_BYTES,
            0,
        )[:-_CRC_BYTES]
        crc = crc32(head)
        for part in (self.links, *self.table):
            crc = crc32(part, crc)
        data = b"".join((head, crc.to_bytes(_CRC_BYTES, "big"), self.links, *self.table))
        disk.make_directory(folder)
        replace_file(disk, folder / NAME, data)


def load(disk: Disk, folder: Path, table: CodeTable) -> tuple[Position, bytes] | None:
    """Load the snapshot: fill `table`, and return the covered position and the links.

    Return None if the file is missing or cannot be trusted. Raises OSError.
    """
    try:
        data = read_file(disk, folder / NAME)
    except FileNotFoundError:
        return None
    if len(data) < _HEADER.size or data[: len(_MAGIC)] != _MAGIC:
        return None
    _, version, order, *position, link_bytes, slots, crc = _HEADER.unpack_from(data)
    rest = memoryview(data)[_HEADER.size :]
    columns = range(1 + len(table.columns))
    size = slots * CODE_BYTES
    whole = (
        (version, order) == (_VERSION, _BYTE_ORDER)
        and len(rest) == link_bytes + size * len(columns)
        and crc == crc32(rest, crc32(data[: _HEADER.size - _CRC_BYTES]))
    )
    if not whole:
        return None
    begins = [link_bytes + column * size for column in columns]
    try:
        table.load([bytes(rest[begin : begin + size]) for begin in begins])
    except ValueError:
        return None
    return Position._make(position), bytes(rest[:link_bytes])
