"""The scrub checks the whole durable log from time to time, a piece at a time.

It finds damage before a reader needs the record, while another replica still has the record.

    read (any one thread) → take (event loop): damage is registered

The scrub also reads one record of each piece through its consume queue. This checks and repairs the
entry (unit) of the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from aerobee_broker.disk import Disk
from aerobee_broker.errors import StoreReadError, is_unreadable
from aerobee_broker.store.damage import DamageRegister
from aerobee_broker.store.log.commit_log import CommitLog, PrivateReader

if TYPE_CHECKING:
    from aerobee_broker.store.recovery.scan import Piece

_SECTOR = 4_096

ReadQueue = Callable[[str, int, int], object]  # topic, queue id, queue offset


class Read(NamedTuple):
    """The result of checking a piece of the log, which begins at the physical offset `begin`."""

    begin: int
    piece: Piece


class Scrub:
    """Checks the log of one store from its start to its durable end, once after each `begin`.

    `position` is the physical offset of the next piece. `bytes`, `records` and `found` count the
    checked bytes, the whole records and the damaged pieces since `begin`.
    """

    def __init__(
        self, disk: Disk, log: CommitLog, damage: DamageRegister, read_queue: ReadQueue
    ) -> None:
        self.position = 0
        self.bytes = 0
        self.records = 0
        self.found = 0
        self._end = 0  # physical offset at which this pass ends
        self._log = log
        self._damage = damage
        self._read_queue = read_queue
        self._reader = _SalvagingReader(disk, log)

    @property
    def is_done(self) -> bool:
        return self.position >= self._end

    def begin(self) -> None:
        """Begin a pass from the start of the log to its present durable end."""
        self.position, self._end = self._log.min_offset, self._log.flushed
        self.bytes = self.records = self.found = 0

    def read(self, size: int) -> Read:
        """Read and check the next piece of about `size` bytes. Raises OSError.

        Any thread may call it, but always the same one.
        """
        return self._verify(max(self.position, self._log.min_offset), self._end, size)

    def read_near(self, physical_offset: int, size: int) -> Read:
        """Read and check the piece that contains this physical offset. Raises OSError.

        Call it on the same thread as `read`.
        """
        from aerobee_broker.store.recovery.scan import boundary_before

        end = self._log.flushed
        begin = boundary_before(self._reader, physical_offset)
        while True:
            read = self._verify(begin, end, size)
            if read.piece.end > physical_offset or read.piece.end >= end:
                return read
            begin = read.piece.end

    def _verify(self, begin: int, end: int, size: int) -> Read:
        from aerobee_broker.store.recovery.scan import Piece, verify  # numpy: only in a scrub

        if begin >= end:
            return Read(begin, Piece(begin, 0))
        try:
            piece = verify(self._reader, begin, end, size=size)
            if piece.damaged is not None:  # a disk may fail once
                piece = verify(self._reader, begin, end, size=size)
        except FileNotFoundError:  # it has expired
            return Read(begin, Piece(min(end, self._log.start_at(begin) + self._log.file_size), 0))
        return Read(begin, piece)

    def take(self, read: Read) -> None:
        """Process a result of `read`, and advance to the next piece. Call it on the event loop."""
        self.note(read)
        self.position = read.piece.end
        self.bytes += max(0, read.piece.end - read.begin)
        self.records += read.piece.records
        self.found += read.piece.damaged is not None
        if read.piece.sample is not None:
            try:
                self._read_queue(*read.piece.sample)
            except StoreReadError:
                return  # a derived file that cannot be read is rebuilt at the next start

    def note(self, read: Read) -> None:
        """Register the damage of a piece, or clear earlier damage. Call it on the event loop."""
        begin, piece = read
        if begin < self._log.min_offset:
            return
        if piece.damaged is None:
            self._damage.clear_range(begin, piece.end)
        else:
            path = self._log.path_of(piece.damaged.begin)
            self._damage.report_range(path, piece.damaged, piece.reason)

    def close(self) -> None:
        """Close the file of the reader. Call it on the thread that calls `read`."""
        self._reader.close()


class _SalvagingReader(PrivateReader):
    """A reader that returns zeros for sectors that the disk cannot read.

    With it, only the records in these sectors fail their check.
    """

    def read(self, physical_offset: int, size: int) -> bytes:
        try:
            return super().read(physical_offset, size)
        except OSError as error:
            if not is_unreadable(error):
                raise
        parts = []
        end = min(physical_offset + size, self.start_at(physical_offset) + self.file_size)
        while physical_offset < end:
            step = min(_SECTOR - physical_offset % _SECTOR, end - physical_offset)
            parts.append(self._sector(physical_offset, step))
            physical_offset += step
        return b"".join(parts)

    def _sector(self, physical_offset: int, size: int) -> bytes:
        try:
            return super().read(physical_offset, size)
        except OSError as error:
            if not is_unreadable(error):
                raise
            return bytes(size)
