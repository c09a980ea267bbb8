"""Finds the whole records at the beginning of some bytes of the log, by their sizes.

A record takes 0.2 µs. A sequence of records of one size, which is common in a busy topic, takes
10 µs at any length. This module does not check CRCs.
"""

from __future__ import annotations

from typing import NamedTuple

from aerobee_broker.store.log.commit_log import BLANK_RESERVE
from aerobee_broker.store.log.recent_writes import Part
from aerobee_wire import record
from aerobee_wire.record import BLANK, MAGIC_BLANK

IDENTITY = record.HEADER_LAYOUT.view("total_size", "magic_code", "physical_offset")
_OWN_AT = record.HEADER_LAYOUT.offset_of("physical_offset")
# `total_size` and `magic_code` are adjacent: arrays compare both as one number of eight bytes.
assert record.HEADER_LAYOUT.offset_of("magic_code") == 4
_MAGICS = (record.MAGIC_V1, record.MAGIC_V2)
_RUN = 48  # shorter sequences of records of one size are read one by one
_LOOK_AGAIN = 16  # records to read one by one after a failed look for such a sequence


class WholeRecords(NamedTuple):
    """The whole records that a search found.

    `length` is their size in bytes, including a blank record that ends their file. `end` is the
    physical offset of the next record: after a blank record, the start of the next file. `cut_off`
    is the size of an incomplete record that follows, or 0.
    """

    length: int
    end: int
    cut_off: int = 0


def whole_records(data: Part, begin: int, room: int) -> WholeRecords:
    """Find the whole records in `data`.

    `data` begins at the physical offset `begin`. Its file ends `room` bytes after `begin`.
    """
    read, (v1, v2), smallest = IDENTITY.unpack_from, _MAGICS, record.FIXED_V1
    at = size_before = look_from = 0
    last = len(data) - IDENTITY.size
    most = min(len(data), room - BLANK_RESERVE)
    while at <= last:
        size, magic, own = read(data, at)
        if (magic != v1 and magic != v2) or own != begin + at:  # noqa: PLR1714
            break
        if not smallest <= size <= most - at:
            break
        if size == size_before and at >= look_from:
            ahead = at + _RUN * size
            if ahead + size <= most and read(data, ahead) == (size, magic, begin + ahead):
                at += size * _alike(data, at, begin + at, size, (most - at) // size)
                continue
            look_from = at + _LOOK_AGAIN * size
        size_before = size
        at += size
    if len(data) - at < BLANK.size:
        return WholeRecords(at, begin + at)
    size, magic = BLANK.unpack_from(data, at)
    if magic == MAGIC_BLANK and size == room - at:
        return WholeRecords(at + BLANK.size, begin + room)
    fits = magic in _MAGICS and smallest <= size <= room - BLANK_RESERVE - at
    return WholeRecords(at, begin + at, size if fits and at + size > len(data) else 0)


def _alike(data: Part, at: int, begin: int, size: int, most: int) -> int:
    """Count the consecutive records of one size and magic code, starting at `data[at:]`.

    Each must contain its own physical offset. `begin` is the physical offset of the first record,
    which is known to be good. `most` is the highest number of records to count.
    """
    import numpy as np  # not imported at the start of every broker

    heads = np.ndarray((most,), dtype=np.int64, buffer=data, offset=at, strides=(size,))
    own = np.ndarray((most,), dtype=">i8", buffer=data, offset=at + _OWN_AT, strides=(size,))
    same = (heads == heads[0]) & (own == np.arange(begin, begin + most * size, size))
    return most if same.all() else int(same.argmin())
