"""Whole records at the beginning of some bytes of the log, found by their sizes.

One by one: 0.2 µs each, where numpy takes 0.3 ms for any number. Checks no CRC.
"""

from __future__ import annotations

from typing import NamedTuple

from aerobee_broker.store.log.commit_log import BLANK_RESERVE
from aerobee_wire import record
from aerobee_wire.record import BLANK, MAGIC_BLANK

IDENTITY = record.HEADER_LAYOUT.view("total_size", "magic_code", "physical_offset")
_MAGICS = (record.MAGIC_V1, record.MAGIC_V2)


class WholeRecords(NamedTuple):
    """`length`: of the records, with a blank record that ends their file. `end`: the physical
    offset of the next record, behind a blank the start of the next file. `cut_off`: size of a
    record that follows and is not whole; 0: none does, or what follows is no record.
    """

    length: int
    end: int
    cut_off: int = 0


def whole_records(data: bytes, begin: int, room: int) -> WholeRecords:
    """`data` lies at the physical offset `begin`, with `room` bytes up to the end of its file."""
    read, (v1, v2), smallest = IDENTITY.unpack_from, _MAGICS, record.FIXED_V1
    at, last = 0, len(data) - IDENTITY.size
    most = min(len(data), room - BLANK_RESERVE)
    while at <= last:
        size, magic, own = read(data, at)
        if (magic != v1 and magic != v2) or own != begin + at:  # noqa: PLR1714
            break
        if not smallest <= size <= most - at:
            break
        at += size
    if len(data) - at < BLANK.size:
        return WholeRecords(at, begin + at)
    size, magic = BLANK.unpack_from(data, at)
    if magic == MAGIC_BLANK and size == room - at:
        return WholeRecords(at + BLANK.size, begin + room)
    fits = magic in _MAGICS and smallest <= size <= room - BLANK_RESERVE - at
    return WholeRecords(at, begin + at, size if fits and at + size > len(data) else 0)
