"""The scrub: reads the whole durable log from time to time, a little at a time.

It finds damage before a reader needs the record, and while another replica still has it.

    read (any one thread) → take (the loop): damage is registered

One record of each piece is also read through its consume queue, which checks and repairs its unit.
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
    """A piece of the log that begins at `begin`."""

    begin: int
    piece: Piece


class Scrub:
    """Rounds over the log of one store.

    `position`: where the next piece begins. `bytes`, `records`: of the pieces since `begin`.
    `found`: damaged pieces among them.
    """

    def __init__(
        self, disk: Disk, log: CommitLog, damage: DamageRegister, read_queue: ReadQueue
    ) -> None:
        self.position = 0
        self.bytes = 0
        self.records = 0
        self.found = 0
        self._end = 0  # of this round
        self._log = log
        self._damage = damage
        self._read_queue = read_queue
        self._reader = _SalvagingReader(disk, log)

    @property
    def is_done(self) -> bool:
        return self.position >= self._end

    def begin(self) -> None:
        """Begin a round: from the start of the log to its present durable end."""
        self.position, self._end = self._log.min_offset, self._log.flushed
        self.bytes = self.records = self.found = 0

    def read(self, size: int) -> Read:
        """Read the next piece of about `size` bytes, on any one thread. Raises OSError."""
        return self._verify(max(self.position, self._log.min_offset), self._end, size)

    def read_near(self, physical_offset: int, size: int) -> Read:
        """Read the piece with this physical offset, on the same thread. Raises OSError."""
        from aerobee_broker.store.recovery.scan import boundary_before

        end = self._log.flushed
        begin = boundary_before(self._reader, physical_offset)
        while True:
            read = self._verify(begin, end, size)
            if read.piece.end > physical_offset or read.piece.end >= end:
                return read
            begin = read.piece.end

    def _verify(self, begin: int, end: int, size: int) -> Read:
        from aerobee_broker.store.recovery.scan import Piece, verify  # numpy: only in a round

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
        """Process the next piece of the round. Runs on the loop."""
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
        """Register damage in a piece, or clear it. Runs on the loop."""
        begin, piece = read
        if begin < self._log.min_offset:
            return
        if piece.damaged is None:
            self._damage.clear_range(begin, piece.end)
        else:
            path = self._log.path_of(piece.damaged.begin)
            self._damage.report_range(path, piece.damaged, piece.reason)

    def close(self) -> None:
        """Close the reader. Runs on the thread that reads."""
        self._reader.close()


class _SalvagingReader(PrivateReader):
    """Returns zeros for sectors that the disk cannot read.

    Only the records in these sectors then fail their check.
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
