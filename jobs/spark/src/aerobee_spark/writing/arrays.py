"""Read and build Arrow arrays as numpy arrays of offsets and contiguous bytes.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

NONE = -1  # the code of a missing value


class Coded(NamedTuple):
    """A column with few distinct values, stored once each.

    The value of a row is `values[codes[row]]`. A row with the code NONE has no value.
    """

    values: Sequence[Any]
    codes: Ints

    def take(self, rows: Ints) -> Coded:
        return Coded(self.values, self.codes[rows])


def coded(array: pa.Array) -> Coded:
    """Convert an Arrow array to distinct values and codes. Null becomes the code NONE."""
    encoded = array.dictionary_encode()
    codes = encoded.indices.fill_null(NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    return Coded(encoded.dictionary.to_pylist(), codes)


def nothing(count: int) -> Coded:
    return Coded((), np.full(count, NONE, np.int64))


def binary(array: pa.Array) -> pa.Array:
    """Convert an array of any string or binary type to the type pa.binary()."""
    return array if array.type == pa.binary() else array.cast(pa.binary())


def valid(array: pa.Array) -> Mask:
    found: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return found


def offsets(array: pa.Array) -> Ints:
    """Return the positions of the values of a string or binary array in its data.

    The result has the start of each value, and then the end of the last value.
    """
    raw = np.frombuffer(array.buffers()[1], np.int32) if len(array) else np.zeros(1, np.int32)
    found: Ints = raw[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return found


def sizes(array: pa.Array) -> Ints:
    """Return the size of each value in bytes; 0 for null."""
    found: Ints = np.diff(offsets(array))
    return found


def contents(array: pa.Array) -> memoryview:
    """Return the concatenated bytes of all values, without a copy."""
    buffer, at = array.buffers()[2], offsets(array)
    return memoryview(buffer)[at[0] : at[-1]] if buffer is not None else memoryview(b"")


def from_parts(data: Any, at: Ints) -> pa.Array:
    """Build a pa.binary() array from its data and the positions of its values.

    This is the inverse of `contents` and `offsets`.
    """
    begins = pa.py_buffer(np.ascontiguousarray(at, np.int32))
    return pa.Array.from_buffers(pa.binary(), len(at) - 1, [None, begins, pa.py_buffer(data)])


def first_with(array: pa.Array, codes: Sequence[int]) -> int | None:
    """Return the index of the first value that contains one of these bytes, or None."""
    data = np.frombuffer(contents(array), np.uint8)
    found = data == codes[0]
    for code in codes[1:]:
        found |= data == code
    return _first_value(array, found)


def first_with_control(array: pa.Array) -> int | None:
    """Return the index of the first value with a control character, or None.

    The values must be UTF-8.
    """
    data = np.frombuffer(contents(array), np.uint8)
    found = (data < 0x20) | (data == 0x7F)
    # In UTF-8, the control characters U+0080 to U+009F are the bytes C2 80 to C2 9F.
    found[:-1] |= (data[:-1] == 0xC2) & (data[1:] < 0xA0)
    return _first_value(array, found)


def _first_value(array: pa.Array, found: Mask) -> int | None:
    """Return the index of the value that contains the first True of a mask over all bytes."""
    if not found.any():
        return None
    at = offsets(array)
    return int(np.searchsorted(at, at[0] + np.argmax(found), side="right")) - 1


def joined(*parts: Any) -> pa.Array:
    """Concatenate arrays of pa.binary() value by value; the result is null if a value is null.

    A part that is a bytes object is used for each value.
    """
    scalars = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*scalars, pa.scalar(b"", pa.binary()))


def first(mask: Mask) -> int | None:
    """Return the index of the first True in a mask, or None."""
    return int(np.argmax(mask)) if mask.any() else None
