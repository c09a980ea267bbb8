"""Reads the fields of many records into arrays, and checks the consistency and CRCs of the records.

The functions gather pieces of a byte string. Pieces at equal distances become a view without a
copy. Other pieces are copied as opaque bytes, with one memcpy of 6 ns each. An index for every byte
would take twenty times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from aerobee_wire import record
from aerobee_wire.properties import VALUE_END_CODE

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def stride_of(starts: Ints) -> int:
    """Return the distance between neighbouring positions, or 0 if it varies.

    It is often constant, because records of one size are common in a busy topic.
    """
    if len(starts) < 2:
        return 0
    step = int(starts[1] - starts[0])
    return step if (starts[1:] - starts[:-1] == step).all() else 0


def items(data: bytes, at: Ints, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the items at these positions. An item that would not fit has an arbitrary value."""
    at = np.minimum(at, len(data) - kind.itemsize)
    stride = stride_of(at)
    if stride > 0:
        return np.ndarray((len(at),), dtype=kind, buffer=data, offset=int(at[0]), strides=(stride,))
    return _gathered(data, at, kind.itemsize).view(kind)


def rows(data: bytes, starts: Ints, length: int) -> Bytes:
    """Return `length` bytes from each of these positions, as the rows of an array.

    `length` must be positive, and all bytes must be within `data`.
    """
    stride = stride_of(starts)
    if stride > 0:
        return np.ndarray(
            (len(starts), length),
            dtype=np.uint8,
            buffer=data,
            offset=int(starts[0]),
            strides=(stride, 1),
        )
    return _gathered(data, starts, length).view(np.uint8).reshape(len(starts), length)


def different(lengths: Ints) -> list[int]:
    """Return the different lengths, which are small numbers, in order.

    numpy's `unique` would import its masked arrays at its first call: 12 ms on the event loop, and
    1.7 MB.
    """
    found: list[int] = np.flatnonzero(np.bincount(lengths)).tolist()
    return found


def _gathered(data: bytes, at: Ints, length: int) -> npt.NDArray[Any]:
    # A view of overlapping pieces, one for each byte of the data. Only the index operation copies.
    pieces: npt.NDArray[Any] = np.ndarray(
        (len(data) - length + 1,), dtype=f"V{length}", buffer=data, strides=(1,)
    )
    return pieces[at]


def joined(data: bytes, starts: Ints, ends: Ints) -> bytes:
    """Return the pieces of `data` between `starts` and `ends`, concatenated."""
    lengths = ends - starts
    if len(starts) and lengths[0] > 0 and (lengths == lengths[0]).all():
        return rows(data, starts, int(lengths[0])).tobytes()
    return b"".join(slices(data, starts, ends))


def slices(data: bytes, starts: Ints, ends: Ints) -> Iterator[bytes]:
    return map(data.__getitem__, map(slice, starts.tolist(), ends.tolist()))


_V6_EXTRA = record.HOST_V6_BYTES - record.HOST_V4_BYTES
_STORED_AT = record.HEADER_LAYOUT.offset_of("store_timestamp_ms")  # with IPv4 hosts
_BODY_LENGTH_AT = record.HEADER_LAYOUT.offset_of("body_length")  # with IPv4 hosts
_HOST_BITS = record.HOST_BITS
# The header with IPv4 hosts. The fields up to the born host have the same position for all hosts.
_HEADER = np.dtype(record.HEADER_LAYOUT.array_fields())
assert _HEADER.itemsize == record.HEADER.size
_CRC_DIGITS = record.CRC_TAIL_BYTES - len(record.CRC_NAME) - len(record.CRC_END)
_TAIL = np.dtype(
    [("name", "u1", (len(record.CRC_NAME),)), ("digits", "u1", (_CRC_DIGITS,)), ("end", "u1")]
)
assert _TAIL.itemsize == record.CRC_TAIL_BYTES
_CRC_NAME = np.frombuffer(record.CRC_NAME, dtype=np.uint8)
_CRC_END = record.CRC_END[0]
_POWERS_OF_10 = 10 ** np.arange(_CRC_DIGITS, dtype=np.int64)
_DIGIT_0 = ord("0")
_ZEROS = _DIGIT_0 * int(_POWERS_OF_10.sum())  # of ten digits 0, weighted by their powers
NOWHERE = 1 << 62  # a physical offset after every log
_LONG, _INT = np.dtype(">i8"), np.dtype(">i4")


class RecordColumns:
    """The fields of the records that start at `starts` in `data`.

    `data` begins at the physical offset `base`. `good` is a mask of the records whose fields are
    consistent. From the physical offset `crc_from` on, a good record must also have a CRC at its
    end.
    """

    def __init__(self, data: bytes, starts: Ints, base: int, crc_from: int = NOWHERE) -> None:
        view = np.frombuffer(data, dtype=np.uint8)
        head = items(data, starts, _HEADER)
        self.head: npt.NDArray[Any] = head
        self.ends: Ints = starts + head["total_size"]
        last = len(data) - 1
        sys_flag = head["sys_flag"]
        self.stored_ms = head["store_timestamp_ms"]
        body_length = head["body_length"]
        self.body_at: Ints = starts + record.HEADER.size
        if (sys_flag & _HOST_BITS).any():
            born = np.where(sys_flag & record.BORN_HOST_V6, _V6_EXTRA, 0)
            hosts = born + np.where(sys_flag & record.STORE_HOST_V6, _V6_EXTRA, 0)
            self.stored_ms = items(data, starts + _STORED_AT + born, _LONG)
            body_length = items(data, starts + _BODY_LENGTH_AT + hosts, _INT)
            self.body_at += hosts
        body_length = body_length.astype(np.int64)
        self.body_end: Ints = self.body_at + body_length
        wide = head["magic_code"] == record.MAGIC_V2
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
        self._tails = items(data, self.ends - record.CRC_TAIL_BYTES, _TAIL)
        alike = np.einsum("ij->i", self._tails["name"] == _CRC_NAME, dtype=np.int64)
        alike += self._tails["end"] == _CRC_END
        self._with_tail = alike == len(_CRC_NAME) + 1
        self._alike = alike
        digits = self._tails["digits"]
        self._numeric = ((digits >= _DIGIT_0) & (digits <= _DIGIT_0 + 9)).sum(axis=1)
        # Most of the fixed bytes of a tail match: the record had a tail, which is damaged.
        enough = np.where(
            self._numeric == _CRC_DIGITS, record.CRC_ALIKE_WITH_DIGITS, record.CRC_ALIKE
        )
        damaged = (alike >= enough) & ~self._with_tail
        self.properties_end: Ints = self.ends - self._with_tail * record.CRC_TAIL_BYTES
        unended = (properties_length > 0) & (self._tails["end"] != VALUE_END_CODE)
        physical_offset = starts + base
        # After the durable end, a record may be torn anywhere, so it must have a CRC at its end.
        self.good = (
            fits
            & adds_up
            & ~damaged
            & ~unended
            & (head["physical_offset"] == physical_offset)
            & (self._with_tail | (physical_offset < crc_from))
        )

    def matching_crc(self, data: bytes, count: int) -> npt.NDArray[np.bool_]:
        """Return for each of the first `count` records whether its CRC matches.

        Check the CRC at the end of the record, or the CRC of its body if it has no other.
        """
        whole = self._with_tail[:count]
        starts = np.where(whole, self._starts[:count], self.body_at[:count])
        ends = np.where(whole, self.properties_end[:count], self.body_end[:count])
        digits = self._tails["digits"][:count].astype(np.int64)
        stored = np.einsum("ij,j->i", digits, _POWERS_OF_10) - _ZEROS
        wanted = np.where(whole, stored, self.head["body_crc"][:count])
        matching = np.asarray(_crcs(data, starts, ends) & record.CRC_MASK == wanted)
        for at in self._perhaps_with_damaged_tail(count).tolist():
            tail_at = int(self.ends[at]) - record.CRC_TAIL_BYTES
            crc = crc32(data[int(self._starts[at]) : tail_at])
            tail = data[tail_at : tail_at + record.CRC_TAIL_BYTES]
            matching[at] &= not record.is_damaged_tail(tail, crc)
        return matching

    def _perhaps_with_damaged_tail(self, count: int) -> Ints:
        """Return the numbers of records that may have a damaged CRC at their end.

        The last bytes of these records only resemble a CRC. In a log without CRCs at the end of
        records, this test avoids the computation of a CRC for each record.
        """
        resembles = self._alike[:count] + self._numeric[:count] >= record.TAIL_ALIKE
        return np.flatnonzero(resembles & ~self._with_tail[:count])


def _crcs(data: bytes, starts: Ints, ends: Ints) -> npt.NDArray[np.uint32]:
    """Return the CRC-32 of each piece of `data`.

    A piece takes 0.26 µs per KB and about 0.2 µs more.
    """
    lengths = ends - starts
    if stride_of(starts) and lengths[0] > 0 and (lengths == lengths[0]).all():
        pieces = rows(data, starts, int(lengths[0]))
        return np.fromiter(map(crc32, pieces), dtype=np.uint32, count=len(starts))
    view = memoryview(data)  # slices of bytes would copy every body
    found = [crc32(view[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.fromiter(found, dtype=np.uint32, count=len(found))
