"""Reads the commit log in chunks and checks every record.

The module only reports bad records; its callers judge them. It works with arrays: a record of 1 KB
takes about 1 µs, half of it for its CRC. One by one in Python, a record takes 5 µs.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np
from isal.isal_zlib import crc32

from aerobee_broker.store.damage import DamagedRange
from aerobee_broker.store.derived.keys import Properties
from aerobee_broker.store.derived.record_columns import (
    NOWHERE,
    Ints,
    RecordColumns,
    different,
    joined,
    rows,
    slices,
)
from aerobee_broker.store.log.commit_log import BLANK_RESERVE, ReadableLog
from aerobee_wire import record
from aerobee_wire.record import CorruptRecord

_NEAR = 64 << 10
CHUNK = 3 << 20  # less needs more calls of numpy; more leaves the cache before the CRC

_PREFIX = record.HEADER_LAYOUT.view("total_size", "magic_code")
_PHYSICAL_OFFSET = record.HEADER_LAYOUT.view("physical_offset")
_MAGIC_AT = record.HEADER_LAYOUT.offset_of("magic_code")
_MAGICS = (record.MAGIC_V1, record.MAGIC_V2)
_MAGIC_BYTES = tuple(magic.to_bytes(4, "big", signed=True) for magic in _MAGICS)
# Records are grouped by a weighted sum of their topic name. The names are compared afterwards. The
# weights are not numpy's random numbers, whose import takes 5 ms.
_WEIGHTS = np.frombuffer(random.Random(1).randbytes(256 * 8), np.uint64) | np.uint64(1)
_QUEUE_WEIGHT = np.uint64(0x9E37_79B9_7F4A_7C15)
_QUEUE_ID_MASK = 0xFFFF_FFFF
# A stride (records of one size) is tried if this number of records could follow. After a failure,
# it is not tried for the next `_STRIDE_PAUSE` records.
_STRIDE = 16
_STRIDE_PAUSE = 64


class Stop(Enum):
    """The reason why a scan of some bytes ended."""

    MORE = "the record continues behind these bytes"
    BLANK = "a blank record fills the rest of the file"
    ZEROS = "there is nothing"
    BAD = "no record"
    BAD_CRC = "a record whose lengths fit and whose CRC does not"


class ByQueue(NamedTuple):
    """Records grouped by queue.

    `queues` has topic and id of each queue. `numbers` has the index of the queue of each record.
    `order` lists the records queue by queue, each queue in the order of the log. The records of
    queue n are `order[bounds[n]:bounds[n + 1]]`.
    """

    queues: list[tuple[bytes, int]]
    numbers: Ints
    order: Ints
    bounds: Ints


class Records:
    """The fields of consecutive whole records in `data`, as one array for each field."""

    __slots__ = (
        "_properties_at",
        "_properties_end",
        "_topic_at",
        "_topic_end",
        "data",
        "ends",
        "physical_offsets",
        "queue_ids",
        "queue_offsets",
        "sizes",
        "stored_ms",
        "sys_flags",
    )

    def __init__(self, data: bytes, columns: RecordColumns, count: int) -> None:
        self.data = data
        self.physical_offsets: Ints = columns.head["physical_offset"][:count].astype(np.int64)
        self.sizes: Ints = columns.head["total_size"][:count].astype(np.int64)
        self.queue_ids: Ints = columns.head["queue_id"][:count].astype(np.int64)
        self.queue_offsets: Ints = columns.head["queue_offset"][:count].astype(np.int64)
        self.sys_flags: Ints = columns.head["sys_flag"][:count].astype(np.int64)
        self.stored_ms: Ints = columns.stored_ms[:count].astype(np.int64)
        self.ends = columns.ends[:count]
        self._topic_at = columns.topic_at[:count]
        self._topic_end = columns.topic_end[:count]
        self._properties_at = columns.topic_end[:count] + 2
        self._properties_end = columns.properties_end[:count]

    def __len__(self) -> int:
        return len(self.physical_offsets)

    def first(self, count: int) -> Records:
        """Return the first `count` records."""
        result = copy.copy(self)
        for name in self.__slots__:
            if name != "data":
                setattr(result, name, getattr(self, name)[:count])
        return result

    def is_proven(self, at: int) -> bool:
        """Return whether a CRC covers the whole record number `at`, and matches."""
        end = int(self.ends[at])
        data = self.data[end - int(self.sizes[at]) : end]
        tail_at = len(data) - record.CRC_TAIL_BYTES
        return record.crc_tail(crc32(data[:tail_at])) == data[tail_at:]

    def sample(self) -> tuple[str, int, int] | None:
        """Return (topic, queue id, queue offset) of the last record.

        Return None without records, or if the last one belongs to a transaction.
        """
        if not len(self) or self.sys_flags[-1] & record.TRANSACTION_MASK:
            return None
        topic = self.data[int(self._topic_at[-1]) : int(self._topic_end[-1])]
        queue_id, queue_offset = int(self.queue_ids[-1]), int(self.queue_offsets[-1])
        return topic.decode("utf-8", "replace"), queue_id, queue_offset

    def by_queue(self) -> ByQueue:
        lengths = self._topic_end - self._topic_at
        present = different(lengths)
        if present[-1] > len(_WEIGHTS):
            return self._by_queue_one_by_one()
        sums = self.queue_ids.astype(np.uint64) * _QUEUE_WEIGHT
        members = [(length, np.flatnonzero(lengths == length)) for length in present if length]
        for length, group in members:
            names = rows(self.data, self._topic_at[group], length)
            sums[group] += np.einsum("ij,j->i", names.astype(np.uint64), _WEIGHTS[:length])
        order = np.argsort(sums, kind="stable")
        ordered = sums[order]
        firsts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        result = self._grouped(order, np.append(firsts, len(order)))
        # Equal sums of two queues are very improbable, but a record in the wrong queue would be
        # permanent.
        like = order[firsts][result.numbers]
        same = (lengths[like] == lengths).all() and (self.queue_ids[like] == self.queue_ids).all()
        for length, group in members:
            names = rows(self.data, self._topic_at[group], length)
            same = same and (rows(self.data, self._topic_at[like[group]], length) == names).all()
        return result if same else self._by_queue_one_by_one()

    def _by_queue_one_by_one(self) -> ByQueue:
        numbers: dict[tuple[bytes, int], int] = {}
        names = slices(self.data, self._topic_at, self._topic_end)
        listed = [
            numbers.setdefault(key, len(numbers))
            for key in zip(names, self.queue_ids.tolist(), strict=True)
        ]
        of = np.array(listed, dtype=np.int64)
        order = np.argsort(of, kind="stable")
        return self._grouped(order, np.searchsorted(of[order], np.arange(len(numbers) + 1)))

    def _grouped(self, order: Ints, bounds: Ints) -> ByQueue:
        firsts = order[bounds[:-1]]
        names = slices(self.data, self._topic_at[firsts], self._topic_end[firsts])
        ids = (self.queue_ids[firsts] & _QUEUE_ID_MASK).tolist()
        numbers = np.empty(len(order), dtype=np.int64)
        numbers[order] = np.repeat(np.arange(len(firsts)), bounds[1:] - bounds[:-1])
        return ByQueue(list(zip(names, ids, strict=True)), numbers, order, bounds)

    def properties(self) -> list[bytes]:
        return list(slices(self.data, self._properties_at, self._properties_end))

    def joined_properties(self) -> Properties:
        """Return the properties of all records.

        An irregular string counts as empty, except for its tags.
        """
        whole = joined(self.data, self._properties_at, self._properties_end)
        result = Properties(whole, np.cumsum(self._properties_end - self._properties_at))
        return result if result.regular else Properties.of(self.properties())


class End(NamedTuple):
    """The position in the scanned bytes at which a scan ended, and the reason.

    If only the body of the record at this position is damaged, `damaged` is that record.
    """

    at: int
    stop: Stop
    reason: str = ""
    damaged: Records | None = None


def scan(
    data: bytes, base: int, room: int, *, check_crc: bool, crc_from: int = NOWHERE
) -> tuple[Records, End]:
    """Return the whole records at the beginning of `data`, and the reason why they end.

    `data` begins at the physical offset `base`, `room` bytes before the end of its file. From the
    physical offset `crc_from` on, a record must have a CRC at its end.
    """
    starts, end = _chain(data, room)
    columns = RecordColumns(data, starts, base, crc_from) if len(starts) else None
    if columns is None:
        return _NOTHING, end
    good = columns.good if columns.good.all() else columns.good[: int(np.argmin(columns.good))]
    count = len(good)
    if count < len(starts):
        end = End(int(starts[count]), Stop.BAD, _why(data, int(starts[count]), base))
    if check_crc:
        matching = columns.matching_crc(data, count)
        if not matching.all():
            count = int(np.argmin(matching))
            end = _bad_crc(data, int(starts[count]), base)
    return Records(data, columns, count), end


def _bad_crc(data: bytes, at: int, base: int) -> End:
    size = _PREFIX.unpack_from(data, at)[0]
    damaged = data[at : at + size]
    columns = RecordColumns(damaged, np.zeros(1, dtype=np.int64), base + at)
    body = damaged[int(columns.body_at[0]) : int(columns.body_end[0])]
    if crc32(body) & record.CRC_MASK == columns.head["body_crc"][0]:
        # The damage is outside the body, perhaps in its queue offset: its queue is unknown.
        return End(at, Stop.BAD_CRC, "it does not match its CRC")
    return End(at, Stop.BAD_CRC, "it does not match its CRC", Records(damaged, columns, 1))


def _why(data: bytes, at: int, base: int) -> str:
    try:
        physical_offset = record.decode(data, at).physical_offset
    except CorruptRecord as error:
        return error.reason
    if physical_offset != base + at:
        return f"it says that it lies at {physical_offset}, not at {base + at}"
    return "its properties are cut off"


def _chain(data: bytes, room: int) -> tuple[Ints, End]:
    """Return the positions of records, found by their sizes, and the reason why they end.

    Consecutive records of one size are found in one step.
    """
    parts: list[Ints] = []
    single: list[int] = []
    most = min(len(data), room - BLANK_RESERVE)  # the latest end of a record
    read = _PREFIX.unpack_from
    v1, v2 = _MAGICS
    smallest = record.FIXED_V1
    at = size_before = pause = 0
    while at + 8 <= most:  # no calls in this loop: 0.2 µs a record
        size, magic = read(data, at)
        if (magic != v1 and magic != v2) or not smallest <= size <= most - at:  # noqa: PLR1714
            break
        if size != size_before or pause > 0 or (most - at) // size < _STRIDE:
            size_before = size
            pause -= 1
            single.append(at)
            at += size
            continue
        count = (most - at) // size
        # Size and magic code, every `size` bytes.
        heads = np.ndarray((count,), dtype=">i8", buffer=data, offset=at, strides=(size,))
        same = heads[:_STRIDE] == heads[0]
        if not same.all():
            pause = _STRIDE_PAUSE
            continue
        same = heads == heads[0]
        count = count if same.all() else int(np.argmin(same))
        parts += [np.array(single, dtype=np.int64), at + size * np.arange(count)]
        single = []
        at += size * count
    parts.append(np.array(single, dtype=np.int64))
    end = _stop(data, at, room)
    assert end is not None, "a record that could be taken was not"
    return np.concatenate(parts), end


def _stop(data: bytes, at: int, room: int) -> End | None:
    """Return the reason why no whole record is at position `at`, or None if one may be there."""
    if at + _PREFIX.size > len(data):
        return End(at, Stop.MORE)
    size, magic = _PREFIX.unpack_from(data, at)
    if magic in _MAGICS:
        if not record.FIXED_V1 <= size <= room - at - BLANK_RESERVE:
            return End(at, Stop.BAD, f"size {size} is none of a record here")
        return End(at, Stop.MORE) if at + size > len(data) else None
    if magic == record.MAGIC_BLANK and size == room - at:
        return End(at, Stop.BLANK)
    if size == 0 and magic == 0:
        return End(at, Stop.ZEROS)
    return End(at, Stop.BAD, f"magic code 0x{magic & 0xFFFFFFFF:08X} is not that of a message")


def scan_log(
    log: ReadableLog,
    begin: int,
    *,
    check_crc: bool,
    crc_from: int = NOWHERE,
    limit: int = NOWHERE,
    chunk: int = CHUNK,
) -> tuple[Records, int, End]:
    """Scan up to `chunk` bytes of the log from the physical offset `begin` on.

    If the first record is larger, scan only that record. Omit records that end after `limit`.
    Return the records, the physical offset at which the scan stopped, and the reason. Raises
    OSError.
    """
    room = log.start_at(begin) + log.file_size - begin
    data = log.read(begin, min(chunk, room, limit - begin))
    records, end = scan(data, begin, room, check_crc=check_crc, crc_from=crc_from)
    if end.stop is Stop.MORE and end.at == 0 and len(data) >= _PREFIX.size:
        size = _PREFIX.unpack_from(data)[0]
        if begin + size > limit:
            return records, begin, end
        data = log.read(begin, size)
        records, end = scan(data, begin, room, check_crc=check_crc, crc_from=crc_from)
        if end.stop is Stop.MORE and end.at == 0:
            end = End(0, Stop.BAD, f"the file ends inside the record of {size} bytes")
    return records, begin + end.at, end


def find_record(log: ReadableLog, begin: int, limit: int, *, check_crc: bool) -> int | None:
    """Return the physical offset of the first whole record in [begin, limit), or None.

    Raises OSError.
    """
    size = _NEAR  # usually one record is damaged, and the next one is whole
    while begin < limit and log.start_at(begin) in log.starts:
        file_end = log.start_at(begin) + log.file_size
        data = log.read(begin, min(size, file_end - begin))
        size = min(2 * size, CHUNK)
        for at in _candidates(data, begin):
            if begin + at < limit and _is_whole_at(log, begin + at, check_crc=check_crc):
                return begin + at
        # The chunks overlap, so that one of them has each whole header.
        step = max(1, len(data) - record.HEADER.size)
        begin = file_end if begin + len(data) >= file_end or not data else begin + step
    return None


def _candidates(data: bytes, base: int) -> list[int]:
    """Return the positions in `data` of headers that contain their own physical offset.

    `data` begins at the physical offset `base`.
    """
    result = set()
    for magic in _MAGIC_BYTES:
        at = data.find(magic)
        while at >= 0:
            start = at - _MAGIC_AT
            whole = start >= 0 and start + record.HEADER.size <= len(data)
            if whole and _PHYSICAL_OFFSET.unpack_from(data, start)[0] == base + start:
                result.add(start)
            at = data.find(magic, at + 1)
    return sorted(result)


def _is_whole_at(log: ReadableLog, physical_offset: int, *, check_crc: bool) -> bool:
    room = log.start_at(physical_offset) + log.file_size - physical_offset
    size = _PREFIX.unpack(log.read(physical_offset, _PREFIX.size))[0]
    if not record.FIXED_V1 <= size <= room - BLANK_RESERVE:
        return False
    try:
        record.decode(log.read(physical_offset, size), check_crc=check_crc)
    except CorruptRecord:
        return False
    return True


_NOTHING = Records(b"", RecordColumns(bytes(record.HEADER.size), np.zeros(1, dtype=np.int64), 0), 0)


_PIECE = 512 << 10  # small, because the rest of a piece is read again after damage
_BACK = 64 << 10  # bytes to search before a position; doubled after each failure


class Piece(NamedTuple):
    """The result of a check of one piece of the log.

    `end` is the physical offset of the next piece. `records` is the number of whole records.
    `damaged` is the part that is not a record, or None if all records are whole. `sample` is
    (topic, queue id, queue offset) of one record, if it is in a consume queue.
    """

    end: int
    records: int
    damaged: DamagedRange | None = None
    reason: str = ""
    sample: tuple[str, int, int] | None = None


def verify(log: ReadableLog, begin: int, limit: int, *, size: int = CHUNK) -> Piece:
    """Check the records in about `size` bytes from the physical offset `begin` on, with CRCs.

    `begin` and `limit` must be the start of a whole record or of a file. Bytes after `limit` are
    not read. Raises OSError.
    """
    file_end = log.start_at(begin) + log.file_size
    if begin + BLANK_RESERVE > file_end:
        return Piece(file_end, 0)
    records, stopped, end = scan_log(log, begin, check_crc=True, limit=limit, chunk=size)
    if end.stop is Stop.BLANK or stopped > begin:
        # The next piece reports the damage after these records.
        behind = file_end if end.stop is Stop.BLANK else stopped
        return Piece(behind, len(records), sample=records.sample())
    behind = begin + (len(end.damaged.data) if end.damaged else 1)
    next_at = find_record(log, behind, limit, check_crc=True) if behind < limit else None
    damaged = DamagedRange(begin, limit if next_at is None else next_at)
    return Piece(damaged.end, 0, damaged, end.reason or "zeros in the place of a record")


def verify_all(log: ReadableLog, begin: int, limit: int) -> Iterator[Piece]:
    """Check all pieces from `begin` to `limit`, and yield their results. Raises OSError.

    `begin` and `limit` must be the start of a whole record or of a file.
    """
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
