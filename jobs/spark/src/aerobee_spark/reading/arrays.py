"""Build Arrow arrays from numpy arrays and bytes, without a Python object for each value.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Data = bytes | memoryview | Bytes
# The arrays of equal values that the next chunk may share: topic, broker, hosts, names and their
# separators, for two sizes of a chunk.
SHARED_ARRAYS = 16


def numbers(values: Ints, kind: pa.DataType) -> pa.Array:
    """Return an Arrow array of the integers; `kind` is int32 or int64."""
    width = np.int32 if pa.types.is_int32(kind) else np.int64
    buffer = pa.py_buffer(np.ascontiguousarray(values, width))
    return pa.Array.from_buffers(kind, len(values), [None, buffer])


def bits(values: npt.NDArray[np.bool_]) -> pa.Buffer:
    """Return the Arrow validity bitmap for these flags; True marks a valid value."""
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def variable(kind: pa.DataType, data: Data, lengths: Ints) -> pa.Array:
    """Return an Arrow array of strings or binaries that are concatenated in `data`."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return _variable(kind, data, offsets)


def _variable(kind: pa.DataType, data: Data, offsets: npt.NDArray[np.int32]) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, max(0, len(offsets) - 1), buffers)


def every_second(kind: pa.DataType, data: Data, starts: Ints, ends: Ints) -> pa.Array:
    """Return an Arrow array of the parts of `data` between each start and end.

    The parts must be in the order of `data` and must not overlap.
    """
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    whole = _variable(kind, data, offsets)
    return whole.take(numbers(np.arange(0, len(offsets), 2), pa.int64()))


def binaries(values: Sequence[bytes]) -> pa.Array:
    return variable(pa.binary(), b"".join(values), np.array(list(map(len, values)), np.int64))


def strings(values: Iterable[str]) -> pa.Array:
    encoded = [value.encode("utf-8", "replace") for value in values]
    return variable(pa.string(), b"".join(encoded), np.array(list(map(len, encoded)), np.int64))


def repeated(value: str, count: int) -> pa.Array:
    return repeated_each((value.encode(),), count)


@lru_cache(SHARED_ARRAYS)
def repeated_each(values: tuple[bytes, ...], count: int) -> pa.Array:
    """Return an Arrow array of strings that has all values in order, `count` times.

    Consecutive chunks mostly have equal values and sizes, so they share the array.
    """
    ends = np.cumsum(list(map(len, values)), dtype=np.int32)
    offsets = np.zeros(len(values) * count + 1, np.int32)
    offsets[1:] = np.add.outer(np.arange(count, dtype=np.int32) * ends[-1], ends).ravel()
    return _variable(pa.string(), b"".join(values) * count, offsets)


def of_width(kind: pa.DataType, data: Data, width: int, count: int) -> pa.Array:
    """Return an Arrow array of `count` strings or binaries of equal width from `data`."""
    return _variable(kind, data, np.arange(0, width * count + 1, width, dtype=np.int32))
