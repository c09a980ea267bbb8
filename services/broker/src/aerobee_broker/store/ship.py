"""Reads the log for a replica, in chunks of whole records, byte for byte.

The shipper reads only bytes below `CommitLog.written`. The bytes of a failed write are never below
that offset, and later records replace them. Records from a file are checked before they are sent,
so that damage never spreads to another replica.
"""

from __future__ import annotations

from typing import NamedTuple

from isal.isal_zlib import crc32

from aerobee_broker.disk import Disk
from aerobee_broker.errors import MessageCorrupted, MessageNotFound, TransientReadError
from aerobee_broker.store.damage import DamageRegister
from aerobee_broker.store.log.commit_log import CommitLog, PrivateReader
from aerobee_broker.store.log.recent_writes import Part
from aerobee_broker.store.log.whole_records import IDENTITY, whole_records


class Chunk(NamedTuple):
    """Consecutive whole records of one log file.

    The chunk includes the blank record if it reaches the end of the file. The next chunk begins at
    the physical offset `end`: after a blank record, at the start of the next file.
    """

    physical_offset: int
    data: Part
    end: int


class LogShipper:
    """Reads the log for one replica.

    The shipper has its own file handle, so that a thread other than the event loop's may use it. If
    retention removes the file during a read, the shipper can still read it to its end.
    """

    def __init__(self, disk: Disk, log: CommitLog, damage: DamageRegister) -> None:
        self._log = log
        self._reader = PrivateReader(disk, log)
        self._damage = damage

    def read(self, physical_offset: int, max_bytes: int, limit: int | None = None) -> Chunk | None:
        """Return the chunk of at most `max_bytes` that begins at this physical offset.

        A larger record is returned alone. Return None at the end of the written log, or at `limit`.
        The chunk does not extend beyond `limit`, which is the end of a record. Raises
        MessageNotFound before the start of the log, MessageCorrupted if the first record is missing
        or damaged, TransientReadError.
        """
        log = self._log
        written = log.written if limit is None else min(limit, log.written)
        if physical_offset >= written:
            return None
        if physical_offset < log.min_offset:
            raise MessageNotFound(
                f"the log begins at physical offset {log.min_offset}, behind {physical_offset}"
            )
        room = log.start_at(physical_offset) + log.file_size - physical_offset
        if limit is None:
            recent = log.recent.find(physical_offset, max_bytes, physical_offset + room)
            if recent is not None:
                return Chunk(*recent)
        there = min(room, written - physical_offset)
        data = self._read(physical_offset, min(there, max(max_bytes, IDENTITY.size)))
        whole = whole_records(data, physical_offset, room)
        if not whole.length and 0 < whole.cut_off <= there:
            data = self._read(physical_offset, whole.cut_off)
            whole = whole_records(data, physical_offset, room)
        if not whole.length:
            raise self._damaged(physical_offset, "no whole record is there")
        return self._checked(Chunk(physical_offset, data[: whole.length], whole.end), room)

    def _checked(self, chunk: Chunk, room: int) -> Chunk:
        """Return the part of the chunk before its first damaged record.

        Raises MessageCorrupted if the first record is damaged.
        """
        from aerobee_broker.store.recovery.scan import Stop, scan  # numpy: only if a slave lags

        data = bytes(chunk.data)
        _, end = scan(data, chunk.physical_offset, room, check_crc=True)
        if end.stop is Stop.BLANK or end.at == len(data):
            return chunk
        error = self._damaged(chunk.physical_offset + end.at, end.reason)
        if end.at == 0:
            raise error
        return Chunk(chunk.physical_offset, data[: end.at], chunk.physical_offset + end.at)

    def _damaged(self, physical_offset: int, reason: str) -> MessageCorrupted:
        self._damage.suspects.append(physical_offset)  # the scrub checks and registers it
        return MessageCorrupted(self._log.path_of(physical_offset), physical_offset, reason)

    def check(self, begin: int, end: int) -> None:
        """Check each record that overlaps a range of physical offsets.

        `end` must be the end of a record. Raises MessageCorrupted, TransientReadError.
        """
        from aerobee_broker.store.recovery.scan import boundary_before, verify_all

        if begin >= end:
            return
        try:
            for piece in verify_all(self._reader, boundary_before(self._reader, begin), end):
                if piece.damaged is not None and piece.damaged.end > begin:
                    raise self._damaged(piece.damaged.begin, piece.reason)
        except OSError as error:
            raise TransientReadError(error) from error

    def crc(self, begin: int, end: int) -> int:
        """Return the CRC-32 of all bytes of the log between two physical offsets.

        Raises TransientReadError.
        """
        crc = 0
        while begin < end:
            file_end = self._log.start_at(begin) + self._log.file_size
            data = self._read(begin, min(file_end, end) - begin)
            crc = crc32(data, crc)
            begin += len(data)
        return crc

    def close(self) -> None:
        self._reader.close()

    def _read(self, physical_offset: int, size: int) -> bytes:
        try:
            return self._reader.read(physical_offset, size)
        except OSError as error:
            raise TransientReadError(error) from error
