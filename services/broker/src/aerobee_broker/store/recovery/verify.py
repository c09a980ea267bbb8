"""Verifies the records of the log: each with its CRC, one piece at a time.

Decides nothing, and changes nothing. A piece begins at a boundary: the beginning of a whole record
or of a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from aerobee_broker.store.damage import DamagedRange
from aerobee_broker.store.log.commit_log import BLANK_RESERVE
from aerobee_broker.store.log.readable import ReadableLog
from aerobee_broker.store.recovery.scan import CHUNK, Stop, find_record, scan_log

_PIECE = 512 << 10  # after damage the rest of a piece is read again: large pieces cost more
_BACK = 64 << 10  # bytes searched for a boundary before a position; then twice as many


class Piece(NamedTuple):
    """The result for one piece of the log.

    `end`: where the next piece begins. `damaged`: the part that is not a record; None: everything
    is whole. `records`: the number of whole records. `sample`: topic, queue id and queue offset of
    a record with a unit.
    """

    end: int
    records: int
    damaged: DamagedRange | None = None
    reason: str = ""
    sample: tuple[str, int, int] | None = None


def verify(log: ReadableLog, begin: int, limit: int, *, size: int = CHUNK) -> Piece:
    """Check about `size` bytes from the boundary `begin` on, or one record.

    `limit`: also a boundary; nothing after it is read. Raises OSError.
    """
    file_end = log.start_at(begin) + log.file_size
    if begin + BLANK_RESERVE > file_end:
        return Piece(file_end, 0)
    records, stopped, end = scan_log(log, begin, check_crc=True, limit=limit, chunk=size)
    if end.stop is Stop.BLANK or stopped > begin:
        # The next piece finds what is wrong after these records.
        behind = file_end if end.stop is Stop.BLANK else stopped
        return Piece(behind, len(records), sample=records.sample())
    behind = begin + (len(end.damaged.data) if end.damaged else 1)
    next_at = find_record(log, behind, limit, check_crc=True) if behind < limit else None
    damaged = DamagedRange(begin, limit if next_at is None else next_at)
    return Piece(damaged.end, 0, damaged, end.reason or "zeros in the place of a record")


def verify_all(log: ReadableLog, begin: int, limit: int) -> Iterator[Piece]:
    """Yield all pieces from the boundary `begin` to `limit`. Raises OSError."""
    while begin < limit:
        piece = verify(log, begin, limit, size=_PIECE)
        yield piece
        begin = piece.end


def boundary_before(log: ReadableLog, physical_offset: int) -> int:
    """Return the start of a whole record at or shortly before this physical offset.

    Without one, return the start of the file. Raises OSError.
    """
    first = max(log.start_at(physical_offset), log.starts[0] if log.starts else 0)
    back = _BACK
    while physical_offset > first:
        begin = max(first, physical_offset - back)
        found = find_record(log, begin, physical_offset + 1, check_crc=True)
        if found is not None:
            return found
        if begin == first:
            break
        back *= 2
    return first
