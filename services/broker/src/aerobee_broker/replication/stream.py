"""What master and slave say to each other once they have agreed, and when they stop believing it.

Pure. Anything that does not fit ends the stream: the slave begins again with a handshake, which
finds out what both have.
"""

from __future__ import annotations

from dataclasses import dataclass

from isal.isal_zlib import crc32

from aerobee_broker.errors import StreamBroken
from aerobee_broker.replication.handshake import LogDescription
from aerobee_broker.store.log.recent_writes import Part

CLOCK_WINDOW_MS = 5_000
BESIDE_APPENDS_BYTES_S = 64 << 20  # of a copy, while the log grows
RECENT_BYTES = 4 << 20  # of a copy, beside which it has grown or not


@dataclass(frozen=True, slots=True)
class Hello:
    """A slave's first message. `learner`: it never joins the in-sync set."""

    slave: LogDescription
    learner: bool = False


@dataclass(frozen=True, slots=True)
class Welcome:
    """A master's answer to it, with the CRC-32 of the bytes that `checked_range` names."""

    master: LogDescription
    crc: int


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Whole records of one file. Without data: the next begins at `offset`."""

    epoch: int
    offset: int
    data: Part
    crc: int
    confirmed: int
    end: int
    lowest: int


@dataclass(frozen=True, slots=True)
class Report:
    """`written`: the end of the slave's log, `synced`: of what is on its disk. `time_ms`: the
    slave's wall clock; 0: not told."""

    epoch: int
    written: int
    synced: int
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """`batch_bytes`: of a chunk, unless one record is larger. Each side says something every
    `heartbeat_ms`, and ends a stream on which it has heard nothing for `silence_ms`.
    `copy_bytes_s`: bytes a second that a slave which is far behind is sent at most; None: no
    bound."""

    batch_bytes: int = 1 << 20
    heartbeat_ms: int = 500
    silence_ms: int = 5_000
    copy_bytes_s: int | None = None


class CopyPace:
    """When the next chunk of a copy may leave. Times in ms of one monotonic clock.

    A bound is kept to. Beside appends a chunk also waits for a moment, which loop and disk have for
    these; but not where the log grows at more than half of the pace of the copy, or that would
    never come to its end.
    """

    def __init__(self, bytes_s: int | None, end: int) -> None:
        """`end`: of the master's log."""
        self._bytes_s = bytes_s
        self._free_ms = 0.0  # what has left by now has had its time until then
        self._end = end
        self._left_bytes = 0.0  # of late, of the copy,
        self._grown_bytes = 0.0  # and of the log

    def left(self, size: int, end: int, now_ms: int) -> None:
        """So many bytes of a copy leave, while the master's log ends there."""
        self._left_bytes += size
        self._grown_bytes += end - self._end
        self._end = end
        beside_appends = 0 < 2 * self._grown_bytes < self._left_bytes
        took_ms = size * 1000 / self._bytes_s if self._bytes_s is not None else 0
        took_ms = max(took_ms, size * 1000 / BESIDE_APPENDS_BYTES_S if beside_appends else 0)
        self._free_ms = max(self._free_ms, now_ms) + took_ms
        if self._left_bytes > RECENT_BYTES:
            self._left_bytes /= 2
            self._grown_bytes = self._grown_bytes / 2 if self._grown_bytes > 512 else 0

    def wait_ms(self, now_ms: int) -> float:
        """0: the next chunk may leave now."""
        return max(0.0, self._free_ms - now_ms)


class ClockOffset:
    """How far a slave's wall clock is ahead of its master's, by its reports, in ms. A report takes
    time to come, and says that much too little: the highest of five seconds counts."""

    def __init__(self) -> None:
        self.ahead_ms: int | None = None  # None: not known yet
        self._highest: int | None = None  # since `_since_ms`
        self._since_ms = 0

    def note(self, slave_ms: int, master_ms: int, now_ms: int) -> bool:
        """Both wall clocks, and the master's monotonic one. Whether `ahead_ms` is a new one."""
        if self._highest is None:
            self._since_ms = now_ms
        ahead_ms = slave_ms - master_ms
        self._highest = ahead_ms if self._highest is None else max(self._highest, ahead_ms)
        if now_ms - self._since_ms < CLOCK_WINDOW_MS:
            return False
        self.ahead_ms, self._highest = self._highest, None
        return True


class ReportCheck:
    """Of one stream: a report tells of no more than was sent, and takes nothing back."""

    def __init__(self, epoch: int, begin: int) -> None:
        self.epoch = epoch
        self._sent = begin
        self._last = Report(epoch, begin, 0)

    def sent(self, end: int) -> None:
        """Before the chunk that ends there leaves."""
        self._sent = end

    def check(self, report: Report) -> None:
        """Raises StreamBroken."""
        last = self._last
        if report.epoch != self.epoch:
            raise StreamBroken(f"a report of epoch {report.epoch} in epoch {self.epoch}")
        if report.written > self._sent:
            raise StreamBroken(f"a report of {report.written}, and {self._sent} was sent")
        if not last.synced <= report.synced <= report.written or report.written < last.written:
            raise StreamBroken(f"{report} follows {last}")
        self._last = report


class ChunkCheck:
    """Of one stream: chunks are of its epoch and as they were sent. Their order is the log's to
    check."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._confirmed = 0

    def check(self, chunk: LogChunk, next_offset: int) -> None:
        """Raises StreamBroken."""
        if chunk.epoch != self._epoch:
            raise StreamBroken(f"a chunk of epoch {chunk.epoch} in epoch {self._epoch}")
        if chunk.offset != next_offset:
            raise StreamBroken(f"a chunk for {chunk.offset}, and {next_offset} is next")
        if crc32(chunk.data) != chunk.crc:
            raise StreamBroken(f"the chunk for {chunk.offset} is damaged: its CRC-32 differs")
        if chunk.confirmed < self._confirmed:
            raise StreamBroken(f"the confirm offset falls to {chunk.confirmed}")
        self._confirmed = chunk.confirmed
