"""Reads the commit log a chunk at a time and checks every record in it. Decides nothing: what a bad
record means is the recovery's matter.

Over arrays: a record costs about 1 µs, of which its CRC is a third; one by one in Python it would
be five.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from aerobee_broker.store.commit_log import BLANK_RESERVE, CommitLog
from aerobee_broker.store.keys import Ints, Properties
from aerobee_wire import record
from aerobee_wire.record import CorruptRecord

CHUNK = 2 << 20

_PREFIX = struct.Struct(">ii")
_PLACE = struct.Struct(">q")
_PLACE_AT = 28
_MAGIC_AT = 4
_V6_EXTRA = 12  # bytes that an IPv6 host takes more
_STORED_AT = 56  # of the store timestamp, with IPv4 hosts
_BODY_LENGTH_AT = record.HEADER.size - 4
_FRONT = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("place", ">i8"),
        ("sys_flag", ">i4"),
    ]
)
assert _FRONT.itemsize == 40
_TAIL = np.dtype([("name", "u1", (9,)), ("digits", "u1", (10,)), ("end", "u1")])
assert _TAIL.itemsize == record.CRC_TAIL_BYTES
_CRC_NAME = np.frombuffer(record.CRC_NAME, dtype=np.uint8)
_CRC_END = record.CRC_END[0]
_POWERS_OF_10 = 10 ** np.arange(10, dtype=np.int64)
_VALUE_END = 2
_NOWHERE = 1 << 62
_LONG, _INT = np.dtype(">i8"), np.dtype(">i4")
_MAGICS = (record.MAGIC_V1, record.MAGIC_V2)
_MAGIC_BYTES = tuple(magic.to_bytes(4, "big", signed=True) for magic in _MAGICS)
# A stride is tried when so many records could follow, and not again for as many after a failure.
_STRIDE = 16
_STRIDE_PAUSE = 64


class Stop(Enum):
    """Why a scan of some bytes ended."""

    MORE = "the record goes on behind these bytes"
    BLANK = "a blank record fills the rest of the file"
    ZEROS = "there is nothing"
    BAD = "no record"
    BAD_CRC = "a record whose lengths fit and whose CRC does not"


class Records:
    """Whole records that stand one after the other in `data`, as columns."""

    __slots__ = (
        "_properties_at",
        "_properties_end",
        "_topic_at",
        "_topic_end",
        "data",
        "ends",
        "places",
        "queue_ids",
        "queue_offsets",
        "sizes",
        "stored_ms",
        "sys_flags",
    )

    def __init__(self, data: bytes, columns: _Columns, count: int) -> None:
        self.data = data
        self.places: Ints = columns.front["place"][:count].astype(np.int64)
        self.sizes: Ints = columns.front["size"][:count].astype(np.int64)
        self.queue_ids: Ints = columns.front["queue_id"][:count].astype(np.int64)
        self.queue_offsets: Ints = columns.front["queue_offset"][:count].astype(np.int64)
        self.sys_flags: Ints = columns.front["sys_flag"][:count].astype(np.int64)
        self.stored_ms: Ints = columns.stored_ms[:count].astype(np.int64)
        self.ends = columns.ends[:count]
        self._topic_at = columns.topic_at[:count]
        self._topic_end = columns.topic_end[:count]
        self._properties_at = columns.topic_end[:count] + 2
        self._properties_end = columns.properties_end[:count]

    def __len__(self) -> int:
        return len(self.places)

    def topics(self) -> tuple[list[bytes], Ints]:
        """The topics that there are, and for each record the number of its topic."""
        lengths = self._topic_end - self._topic_at
        length = int(lengths[0])
        if length and (lengths == length).all():
            joined = _joined(self.data, self._topic_at, self._topic_end)
            if joined == joined[:length] * len(self):
                return [joined[:length]], np.zeros(len(self), dtype=np.int64)
            found, numbers = np.unique(np.frombuffer(joined, f"V{length}"), return_inverse=True)
            return [name.tobytes() for name in found], numbers
        names: dict[bytes, int] = {}
        listed = [
            names.setdefault(name, len(names))
            for name in _slices(self.data, self._topic_at, self._topic_end)
        ]
        return list(names), np.array(listed, dtype=np.int64)

    def properties(self) -> list[bytes]:
        return list(_slices(self.data, self._properties_at, self._properties_end))

    def joined_properties(self) -> Properties:
        """Irregular ones are taken as empty."""
        joined = _joined(self.data, self._properties_at, self._properties_end)
        result = Properties(joined, np.cumsum(self._properties_end - self._properties_at))
        return result if result.regular else Properties.of(self.properties())


class End(NamedTuple):
    """Where a scan ended and why. `damaged` is the record when only its body is."""

    at: int
    stop: Stop
    reason: str = ""
    damaged: Records | None = None


class _Columns:
    """Fields of records that start at `starts`; `good` tells which of them hang together."""

    def __init__(self, data: bytes, starts: Ints, base: int, crc_from: int = _NOWHERE) -> None:
        view = np.frombuffer(data, dtype=np.uint8)
        front = _items(data, starts, _FRONT)
        self.front: npt.NDArray[Any] = front
        sizes = front["size"].astype(np.int64)
        self.ends: Ints = starts + sizes
        last = len(data) - 1
        sys_flag = front["sys_flag"]
        born = np.where(sys_flag & record.BORN_HOST_V6, _V6_EXTRA, 0)
        hosts = born + np.where(sys_flag & record.STORE_HOST_V6, _V6_EXTRA, 0)
        self.stored_ms = _items(data, starts + _STORED_AT + born, _LONG)
        body_length = _items(data, starts + _BODY_LENGTH_AT + hosts, _INT).astype(np.int64)
        self.body_at: Ints = starts + record.HEADER.size + hosts
        self.body_end: Ints = self.body_at + body_length
        wide = front["magic"] == record.MAGIC_V2
        self.topic_at: Ints = self.body_end + np.where(wide, 2, 1)
        fits = (body_length >= 0) & (self.topic_at <= self.ends)
        at = np.clip(self.topic_at, 2, last)
        high = np.where(wide, view[at - 2], 0).astype(np.int64)
        topic_length = high * 256 + view[at - 1]
        self.topic_end: Ints = self.topic_at + topic_length
        at = np.clip(self.topic_end, 0, last - 1)
        properties_length = view[at].astype(np.int64) * 256 + view[at + 1]
        adds_up = self.topic_end + 2 + properties_length == self.ends
        self._starts = starts
        self._tails = _items(data, self.ends - record.CRC_TAIL_BYTES, _TAIL)
        alike = (self._tails["name"] == _CRC_NAME).sum(axis=1) + (self._tails["end"] == _CRC_END)
        self._with_tail = alike == len(_CRC_NAME) + 1
        # What has most of a tail had one, and is damaged.
        damaged = (alike >= record.CRC_ALIKE) & ~self._with_tail
        self.properties_end: Ints = self.ends - self._with_tail * record.CRC_TAIL_BYTES
        unended = (properties_length > 0) & (self._tails["end"] != _VALUE_END)
        place = starts + base
        # Behind what was durable a record may be torn anywhere: there it must have its CRC.
        self.good = (
            fits
            & adds_up
            & ~damaged
            & ~unended
            & (front["place"] == place)
            & (self._with_tail | (place < crc_from))
        )

    def matching_crc(self, data: bytes, count: int) -> npt.NDArray[np.bool_]:
        """Of the whole record where it has one, else of the body."""
        whole = self._with_tail[:count]
        starts = np.where(whole, self._starts[:count], self.body_at[:count])
        ends = np.where(whole, self.properties_end[:count], self.body_end[:count])
        digits = self._tails["digits"][:count].astype(np.int64) - ord("0")
        wanted = np.where(whole, digits @ _POWERS_OF_10, self.front["crc"][:count])
        view = memoryview(data)  # slices of bytes would copy every body: 0.57 µs a KB against 0.36
        # Through map all the way: a loop of ours would cost as much again as the CRC.
        pieces = map(view.__getitem__, map(slice, starts.tolist(), ends.tolist()))
        found = np.fromiter(map(crc32, pieces), dtype=np.uint32, count=count)
        return np.asarray(found & record.CRC_MASK == wanted)


def _stride(starts: Ints) -> int:
    """The distance at which positions follow one another; 0 when it changes. Records of one size
    are the rule in a busy topic; then columns are views, and nothing is copied.
    """
    if len(starts) < 2:
        return 0
    steps = np.diff(starts)
    return int(steps[0]) if (steps == steps[0]).all() else 0


def _items(data: bytes, at: Ints, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """What stands at these positions; anything for those that do not fit in."""
    at = np.minimum(at, len(data) - kind.itemsize)
    stride = _stride(at)
    if stride > 0:
        return np.ndarray((len(at),), dtype=kind, buffer=data, offset=int(at[0]), strides=(stride,))
    view = np.frombuffer(data, dtype=np.uint8)
    return np.asarray(view[at[:, None] + np.arange(kind.itemsize)].view(kind)[:, 0])


def _joined(data: bytes, starts: Ints, ends: Ints) -> bytes:
    """The pieces one after the other."""
    lengths = ends - starts
    stride = _stride(starts)
    if stride > 0 and (lengths == lengths[0]).all():
        shape = (len(starts), int(lengths[0]))
        pieces: npt.NDArray[np.uint8] = np.ndarray(
            shape, dtype=np.uint8, buffer=data, offset=int(starts[0]), strides=(stride, 1)
        )
        return pieces.tobytes()
    return b"".join(_slices(data, starts, ends))


def _slices(data: bytes, starts: Ints, ends: Ints) -> Iterator[bytes]:
    return map(data.__getitem__, map(slice, starts.tolist(), ends.tolist()))


def scan(
    data: bytes, base: int, room: int, *, check_crc: bool, crc_from: int = _NOWHERE
) -> tuple[Records, End]:
    """The whole records at the beginning of `data`, which lies at physical offset `base` with
    `room` bytes up to the end of its file; and why there are no more. From `crc_from` on a record
    must hold its own CRC.
    """
    starts, end = _chain(data, room)
    columns = _Columns(data, starts, base, crc_from) if len(starts) else None
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
    one = data[at : at + size]
    columns = _Columns(one, np.zeros(1, dtype=np.int64), base + at)
    body = one[int(columns.body_at[0]) : int(columns.body_end[0])]
    if crc32(body) & record.CRC_MASK == columns.front["crc"][0]:
        # Then the damage is elsewhere, perhaps in its queue offset: no telling where it belongs.
        return End(at, Stop.BAD_CRC, "it does not match its CRC")
    damaged = Records(one, columns, 1)
    return End(at, Stop.BAD_CRC, "it does not match its CRC", damaged)


def _why(data: bytes, at: int, base: int) -> str:
    try:
        place = record.decode(data, at).physical_offset
    except CorruptRecord as error:
        return error.reason
    if place != base + at:
        return f"it says that it lies at {place}, not at {base + at}"
    return "its properties are cut off"


def _chain(data: bytes, room: int) -> tuple[Ints, End]:
    """Where records start, going from size to size, and what ends that. Runs of records of one
    size are taken in one step.
    """
    parts: list[Ints] = []
    single: list[int] = []
    available = len(data)
    at = 0
    pause = 0
    while True:
        end = _stop(data, at, room)
        if end is not None:
            break
        size = _PREFIX.unpack_from(data, at)[0]
        count = min(available - at, room - BLANK_RESERVE - at) // size
        if count < _STRIDE or pause:
            pause = max(0, pause - 1)
            single.append(at)
            at += size
            continue
        # Size and magic code, every `size` bytes.
        heads = np.ndarray((count,), dtype=">i8", buffer=data, offset=at, strides=(size,))
        same = heads == heads[0]
        count = count if same.all() else int(np.argmin(same))
        parts += [np.array(single, dtype=np.int64), at + size * np.arange(count)]
        single = []
        pause = _STRIDE_PAUSE if count < _STRIDE else 0
        at += size * count
    parts.append(np.array(single, dtype=np.int64))
    return np.concatenate(parts), end


def _stop(data: bytes, at: int, room: int) -> End | None:
    """Why there is no whole record at `at`; None when there may be one."""
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
    log: CommitLog, place: int, *, check_crc: bool, crc_from: int = _NOWHERE
) -> tuple[Records, int, End]:
    """Scans the chunk of the log at `place`, or the one record when it is larger. Returns the
    records, where the scan stopped, and why. Raises OSError.
    """
    room = log.start_at(place) + log.file_size - place
    data = log.read(place, min(CHUNK, room))
    records, end = scan(data, place, room, check_crc=check_crc, crc_from=crc_from)
    if end.stop is Stop.MORE and end.at == 0 and len(data) >= _PREFIX.size:
        size = _PREFIX.unpack_from(data)[0]
        data = log.read(place, size)
        records, end = scan(data, place, room, check_crc=check_crc, crc_from=crc_from)
        if end.stop is Stop.MORE and end.at == 0:
            end = End(0, Stop.BAD, f"the file ends inside the record of {size} bytes")
    return records, place + end.at, end


def find_record(log: CommitLog, place: int, limit: int, *, check_crc: bool) -> int | None:
    """The first physical offset in [place, limit) at which a whole record lies. Raises OSError."""
    while place < limit and log.start_at(place) in log.starts:
        file_end = log.start_at(place) + log.file_size
        data = log.read(place, min(CHUNK, file_end - place))
        for at in _candidates(data, place):
            if place + at < limit and _whole_at(log, place + at, check_crc=check_crc):
                return place + at
        # Overlap: a header that spans two chunks must be seen whole.
        step = max(1, len(data) - record.HEADER.size)
        place = file_end if place + len(data) >= file_end or not data else place + step
    return None


def _candidates(data: bytes, base: int) -> list[int]:
    """Positions of headers that know their place."""
    result = set()
    for magic in _MAGIC_BYTES:
        at = data.find(magic)
        while at >= 0:
            start = at - _MAGIC_AT
            whole = start >= 0 and start + record.HEADER.size <= len(data)
            if whole and _PLACE.unpack_from(data, start + _PLACE_AT)[0] == base + start:
                result.add(start)
            at = data.find(magic, at + 1)
    return sorted(result)


def _whole_at(log: CommitLog, place: int, *, check_crc: bool) -> bool:
    room = log.start_at(place) + log.file_size - place
    size = _PREFIX.unpack(log.read(place, _PREFIX.size))[0]
    if not record.FIXED_V1 <= size <= room - BLANK_RESERVE:
        return False
    try:
        record.decode(log.read(place, size), check_crc=check_crc)
    except CorruptRecord:
        return False
    return True


_NOTHING = Records(b"", _Columns(bytes(record.HEADER.size), np.zeros(1, dtype=np.int64), 0), 0)
