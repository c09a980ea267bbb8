"""Reads the commit log from one record to the next, and checks each. Decides nothing: what a bad
record means is the recovery's matter.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple
from zlib import crc32

from aerobee_broker.store.commit_log import BLANK_RESERVE, CommitLog
from aerobee_wire import record

CHUNK = 4 << 20

# The fields of a header that dispatch needs; x skips the others.
_FIELDS = {
    bits: struct.Struct(f">iiii4xqqi{8 + born}xq{store + 12}xi")
    for bits, born, store in (
        (0, 8, 8),
        (record.BORN_HOST_V6, 20, 8),
        (record.STORE_HOST_V6, 8, 20),
        (record.BORN_HOST_V6 | record.STORE_HOST_V6, 20, 20),
    )
}
assert _FIELDS[0].size == record.HEADER.size
_HOST_BITS = record.BORN_HOST_V6 | record.STORE_HOST_V6
_PREFIX = struct.Struct(">ii")
_SYS_FLAG = struct.Struct(">i")
_SYS_FLAG_AT = 36
_PLACE = struct.Struct(">q")
_PLACE_AT = 28
_MAGIC_AT = 4
_MAGICS = tuple(
    magic.to_bytes(4, "big", signed=True) for magic in (record.MAGIC_V1, record.MAGIC_V2)
)


class Found(NamedTuple):
    """A record of the log, as far as dispatch needs it."""

    place: int
    size: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp_ms: int
    topic: bytes
    properties: bytes


class Stop(Enum):
    """Why a scan of some bytes ended."""

    MORE = "the record goes on behind these bytes"
    BLANK = "a blank record fills the rest of the file"
    ZEROS = "there is nothing"
    BAD = "no record"
    BAD_BODY = "a whole record whose body does not match its CRC"


class End(NamedTuple):
    """Where a scan ended and why. `damaged` is the record when only its body is bad."""

    at: int
    stop: Stop
    reason: str = ""
    damaged: Found | None = None


def scan(data: bytes, base: int, room: int, found: list[Found], *, check_crc: bool) -> End:  # noqa: PLR0911, PLR0912
    """Appends to `found` the records that stand in `data`, which lies at physical offset `base`
    with `room` bytes up to the end of its file.
    """
    at = 0
    available = len(data)
    fields = _FIELDS[0]
    make = Found._make
    while True:
        if at + 8 > available:
            return End(at, Stop.MORE)
        size, magic = _PREFIX.unpack_from(data, at)
        if magic == record.MAGIC_V1:
            length_bytes = 1
        elif magic == record.MAGIC_V2:
            length_bytes = 2
        elif magic == record.MAGIC_BLANK and size == room - at:
            return End(at, Stop.BLANK)
        elif size == 0 and magic == 0:
            return End(at, Stop.ZEROS)
        else:
            return End(at, Stop.BAD, f"magic code 0x{magic & 0xFFFFFFFF:08X}")
        if not record.FIXED_V1 <= size <= room - at - BLANK_RESERVE:
            return End(at, Stop.BAD, f"size {size}")
        end = at + size
        if end > available:
            return End(at, Stop.MORE)
        bits = _SYS_FLAG.unpack_from(data, at + _SYS_FLAG_AT)[0] & _HOST_BITS
        fields = _FIELDS[bits]
        if fields.size > size:
            return End(at, Stop.BAD, f"size {size} is too small for its header")
        _, _, crc, queue_id, queue_offset, place, sys_flag, stored_ms, body_length = (
            fields.unpack_from(data, at)
        )
        if place != base + at:
            return End(at, Stop.BAD, f"it says that it lies at {place}")
        body_at = at + fields.size
        topic_at = body_at + body_length + length_bytes
        if body_length < 0 or topic_at > end:
            return End(at, Stop.BAD, f"body length {body_length}")
        if length_bytes == 1:
            topic_end = topic_at + data[topic_at - 1]
        else:
            topic_end = topic_at + (data[topic_at - 2] << 8 | data[topic_at - 1])
        properties_at = topic_end + 2
        if (
            properties_at > end
            or properties_at + (data[topic_end] << 8 | data[topic_end + 1]) != end
        ):
            return End(at, Stop.BAD, "its lengths do not add up to its size")
        one = make(
            (
                place,
                size,
                queue_id,
                queue_offset,
                sys_flag,
                stored_ms,
                data[topic_at:topic_end],
                data[properties_at:end],
            )
        )
        if check_crc and crc32(data[body_at : body_at + body_length]) & 0x7FFF_FFFF != crc:
            return End(at, Stop.BAD_BODY, "the body does not match its CRC", one)
        found.append(one)
        at = end


def scan_log(log: CommitLog, place: int, found: list[Found], *, check_crc: bool) -> tuple[int, End]:
    """Scans the chunk of the log at `place`, or the one record when it is larger. Returns where
    the scan stopped, and why. Raises OSError.
    """
    room = log.start_at(place) + log.file_size - place
    data = log.read(place, min(CHUNK, room))
    end = scan(data, place, room, found, check_crc=check_crc)
    if end.stop is Stop.MORE and end.at == 0 and len(data) >= 8:
        size = _PREFIX.unpack_from(data)[0]
        data = log.read(place, size)
        end = scan(data, place, room, found, check_crc=check_crc)
        if end.stop is Stop.MORE and end.at == 0:
            end = End(0, Stop.BAD, f"the file ends inside the record of {size} bytes")
    return place + end.at, end


def find_record(log: CommitLog, place: int, limit: int, *, check_crc: bool) -> int | None:
    """The first physical offset in [place, limit) at which a whole record lies. Raises OSError."""
    while place < limit:
        file_end = log.start_at(place) + log.file_size
        if log.start_at(place) not in log.starts:
            return None
        data = log.read(place, min(CHUNK, file_end - place))
        for at in _candidates(data, place):
            if place + at < limit and _whole_at(log, place + at, check_crc=check_crc):
                return place + at
        # Overlap: a header that spans two chunks must be seen whole.
        step = max(1, len(data) - record.HEADER.size)
        place = file_end if place + len(data) >= file_end or not data else place + step
    return None


def _candidates(data: bytes, base: int) -> list[int]:
    """Positions of magic codes that stand in a header which knows its place."""
    result = set()
    for magic in _MAGICS:
        at = data.find(magic)
        while at >= 0:
            start = at - _MAGIC_AT
            whole = start >= 0 and start + record.HEADER.size <= len(data)
            if whole and _PLACE.unpack_from(data, start + _PLACE_AT)[0] == base + start:
                result.add(start)
            at = data.find(magic, at + 1)
    return sorted(result)


def _whole_at(log: CommitLog, place: int, *, check_crc: bool) -> bool:
    found: list[Found] = []
    room = log.start_at(place) + log.file_size - place
    size = _PREFIX.unpack(log.read(place, 8))[0]
    if not record.FIXED_V1 <= size <= room:
        return False
    scan(log.read(place, size), place, room, found, check_crc=check_crc)
    return bool(found)
