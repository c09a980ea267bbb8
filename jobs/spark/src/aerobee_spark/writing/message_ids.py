"""Derive the message ids of a task's rows: a repeated task has equal ids.

An id has 32 hexadecimal digits, as the ids of RocketMQ's clients: 10 bytes of a hash of job and
partition, and 6 bytes with the number of the row in the partition. This module does no I/O.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

ID_BYTES = 32
_PREFIX_BYTES = 10
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


class MessageIds:
    """The message ids of one task.

    Args:
        job: the same for each attempt of a task, and different for each job.
        partition: number of the task's partition.
    """

    def __init__(self, job: str, partition: int) -> None:
        name = f"{partition} {job}".encode()
        self._prefix = hashlib.blake2b(name, digest_size=_PREFIX_BYTES).digest()

    def of(self, first_row: int, count: int) -> npt.NDArray[np.uint8]:
        """Return the ids of `count` rows from `first_row` on, as a matrix of ASCII digits."""
        raw = np.empty((count, ID_BYTES // 2), np.uint8)
        raw[:, :_PREFIX_BYTES] = np.frombuffer(self._prefix, np.uint8)
        numbers = np.arange(first_row, first_row + count, dtype=">i8").view(np.uint8)
        raw[:, _PREFIX_BYTES:] = numbers.reshape(count, 8)[:, 2:]
        digits = np.stack([raw >> 4, raw & 15], axis=2).reshape(count, ID_BYTES)
        return np.ascontiguousarray(_HEX[digits])
