"""The checkpoint: the offsets up to which the log and the derived files are durable.

If the checkpoint is lost, all derived files are rebuilt. The first 40 bytes have RocketMQ's format.
Aerobee's own fields follow in the same sector, so that a power cut leaves either the old content or
the new one.

While the store is open, only the flusher thread writes the file. It calls `note_flushed` after each
flush, without a sync, because older values remain true. It calls `write` when all derived files are
durable.

An Aerobee version without replication ignores the flushed and the confirmed offset if they differ.
It then uses `dispatched` as the durable end of the log.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from aerobee_broker.disk import Disk, DiskFile
from aerobee_broker.store.derived.time_steps import ALL_ORDERED, MAX_STEPS, Step

FILE_SIZE = 4_096
_ROCKETMQ = struct.Struct(
    ">q"  # store timestamp (ms) of the last durable record
    "q"  # store timestamp of the last record whose consume queue unit is durable
    "q"  # store timestamp of the last record whose index entries are durable
    "q"  # flushed physical offset
    "q"  # confirmed physical offset; lower than the flushed one only with replicas
    "I"  # CRC-32 of the two offsets, which RocketMQ does not have
)
_FLUSHED = struct.Struct(">qqI")
_FLUSHED_AT = 24
_OURS = struct.Struct(
    ">8s"  # magic
    "q"  # size of a commit log file
    "q"  # dispatched: derived files are durable for every record below this physical offset
    "Q"  # digest of the consume queues at that point
    "i"  # number of index files
    "q"  # name of the last index file (a number of 17 digits)
    "i"  # index count of that file
    "q"  # physical offset up to which the index has the keys
    "I"  # CRC-32 of the fields above
)
_OURS_AT = 64
_MAGIC = b"AEROBEE1"
_CRC_SIZE = 4
_STEP = struct.Struct(
    ">q"  # physical offset at which store times decrease
    "q"  # store timestamp (ms) before it
)
_STEPS = struct.Struct(
    f">{_STEP.size}s"  # end of the part of the log without order; zeros without one
    "H"  # number of steps
    f"{MAX_STEPS * _STEP.size}s"  # the steps, and zeros
    "I"  # CRC-32 of our fields, from the magic on, and of the fields above
)
_STEPS_AT = 128
assert _OURS_AT + _OURS.size <= _STEPS_AT
assert _STEPS_AT + _STEPS.size <= 512, "one sector: written wholly or not at all"


@dataclass(frozen=True, slots=True)
class IndexState:
    """The durable part of the index.

    `last_name` and `index_count` describe the newest file. The index has the keys of all records
    below the physical offset `end_offset`.
    """

    file_count: int = 0
    last_name: int = 0
    index_count: int = 1
    end_offset: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    file_size: int
    dispatched: int = 0
    digest: int = 0
    index: IndexState = field(default_factory=IndexState)
    flushed: int = 0
    confirmed: int = 0
    log_timestamp_ms: int = 0
    queue_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    steps: tuple[Step, ...] = ()
    unordered: Step = ALL_ORDERED


def decode(page: bytes) -> Checkpoint | None:
    """Decode a checkpoint. Return None if Aerobee did not write the page, or it is damaged."""
    if len(page) < _OURS_AT + _OURS.size:
        return None
    ours = page[_OURS_AT : _OURS_AT + _OURS.size]
    magic, file_size, dispatched, digest, files, name, count, end, crc = _OURS.unpack(ours)
    if magic != _MAGIC or crc != zlib.crc32(ours[:-_CRC_SIZE]):
        return None
    log_ms, queue_ms, index_ms, flushed, confirmed, flushed_crc = _ROCKETMQ.unpack_from(page)
    if _offset_fields(flushed, confirmed)[2] != flushed_crc or confirmed > flushed:
        flushed = confirmed = 0
    found = _decode_steps(page, ours)
    if found is None:
        flushed, confirmed = max(flushed, dispatched), max(confirmed, dispatched)
        return Checkpoint(file_size, flushed=flushed, confirmed=confirmed)
    steps, unordered = found
    return Checkpoint(
        file_size,
        dispatched,
        digest,
        IndexState(files, name, count, end),
        max(flushed, dispatched),
        max(confirmed, dispatched),
        log_ms,
        queue_ms,
        index_ms,
        steps,
        unordered,
    )


def _decode_steps(page: bytes, ours: bytes) -> tuple[tuple[Step, ...], Step] | None:
    """Return the steps, or None if they must be derived from the log again.

    They are damaged, or a version that does not know them has written the other fields since.
    """
    packed = page[_STEPS_AT : _STEPS_AT + _STEPS.size]
    if not any(packed):  # no version that knows them has written this file
        return (), ALL_ORDERED
    if len(packed) < _STEPS.size:
        return None
    unordered, count, steps, crc = _STEPS.unpack(packed)
    if crc != zlib.crc32(packed[:-_CRC_SIZE], zlib.crc32(ours)):
        return None
    found = [Step(*step) for step in _STEP.iter_unpack(steps)]
    return tuple(found[:count]), Step(*_STEP.unpack(unordered))


def _offset_fields(flushed: int, confirmed: int) -> tuple[int, int, int]:
    return flushed, confirmed, zlib.crc32(struct.pack(">qq", flushed, confirmed))


def encode(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint as the bytes at the beginning of its file."""
    index = checkpoint.index
    ours = _OURS.pack(
        _MAGIC,
        checkpoint.file_size,
        checkpoint.dispatched,
        checkpoint.digest,
        index.file_count,
        index.last_name,
        index.index_count,
        index.end_offset,
        0,
    )[:-_CRC_SIZE]
    head = _ROCKETMQ.pack(
        checkpoint.log_timestamp_ms,
        checkpoint.queue_timestamp_ms,
        checkpoint.index_timestamp_ms,
        *_offset_fields(checkpoint.flushed, checkpoint.confirmed),
    )
    ours += zlib.crc32(ours).to_bytes(_CRC_SIZE, "big")
    steps = b"".join(_STEP.pack(*step) for step in checkpoint.steps)
    unordered = _STEP.pack(*checkpoint.unordered)
    packed = _STEPS.pack(unordered, len(checkpoint.steps), steps, 0)[:-_CRC_SIZE]
    packed += zlib.crc32(packed, zlib.crc32(ours)).to_bytes(_CRC_SIZE, "big")
    return (head.ljust(_OURS_AT, b"\0") + ours).ljust(_STEPS_AT, b"\0") + packed


class CheckpointFile:
    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk
        self._file: DiskFile | None = None

    def read(self) -> Checkpoint | None:
        """Read the checkpoint. Return None if the file is missing or damaged. Raises OSError."""
        if not self._disk.exists(self.path):
            return None
        file = self._disk.open(self.path)
        try:
            return decode(file.pread(FILE_SIZE, 0))
        finally:
            file.close()

    def write(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint durably. Everything that it covers must already be durable."""
        file = self._opened()
        file.pwrite(encode(checkpoint), 0)
        file.sync()

    def note_flushed(self, flushed: int, confirmed: int) -> None:
        """Write the flushed and the confirmed offset, without a sync. Raises OSError.

        Each offset is the end of a whole record. After a crash of the process, a bad record at or
        after `flushed` is a torn tail, and a bad record before it is damage. Records after
        `confirmed` wait for the replicas.
        """
        self._opened().pwrite(_FLUSHED.pack(*_offset_fields(flushed, confirmed)), _FLUSHED_AT)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> DiskFile:
        if self._file is None:
            new = not self._disk.exists(self.path)
            self._file = self._disk.open(self.path, create=True)
            if new or self._file.size() != FILE_SIZE:
                self._file.truncate(FILE_SIZE)
                self._file.sync()
                self._disk.sync_directory(self.path.parent)
        return self._file
