"""Define the messages of master and slave, and check when a stream is invalid.

The module is pure. An invalid message ends the stream. The slave then starts again with a
handshake, which finds the point where both logs agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from isal.isal_zlib import crc32

from aerobee_broker.errors import StreamBroken
from aerobee_broker.replication.log.handshake import LogDescription
from aerobee_broker.store.log.recent_writes import Part

CLOCK_WINDOW_MS = 5_000
BESIDE_APPENDS_BYTES_S = 64 << 20  # pace of a copy while the log grows
RECENT_BYTES = 4 << 20  # copied bytes during which the growth of the log is measured


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a slave.

    A `learner` never joins the in-sync set. `process_id` distinguishes the process from another one
    with a copy of its disk; it is "" in older versions.
    """

    slave: LogDescription
    learner: bool = False
    process_id: str = ""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The master's answer to a `Hello`, with the CRC-32 of the bytes in `checked_range`."""

    master: LogDescription
    crc: int


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Whole records of one log file, from the physical offset `offset` on.

    If `data` is empty, the next chunk begins at the same `offset`.
    """

    epoch: int
    offset: int
    data: Part
    crc: int
    confirmed: int
    end: int
    lowest: int


@dataclass(frozen=True, slots=True)
class Report:
    """The progress of a slave.

    `written` is the end of its log, and `synced` is the end of its log on the disk. `time_ms` is
    its wall clock, or 0 if it was not sent.
    """

    epoch: int
    written: int
    synced: int
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """The limits of a stream.

    - `batch_bytes`: the largest size of a chunk, unless a single record is larger.
    - `heartbeat_ms`: each side sends a message at least this often.
    - `silence_ms`: each side ends a stream on which it has received nothing for this time.
    - `copy_bytes_s`: the most bytes per second for a slave that is far behind; None if unlimited.
    """

    batch_bytes: int = 1 << 20
    heartbeat_ms: int = 500
    silence_ms: int = 5_000
    copy_bytes_s: int | None = None


class CopyPace:
    """Decide when the next chunk of a copy may be sent. Times are ms of one monotonic clock.

    A configured limit is always kept. While messages are appended, a chunk also waits briefly, so
    that the event loop and the disk have time for the appends. The chunk does not wait if the log
    grows at more than half the pace of the copy, because otherwise the copy would never end.
    """

    def __init__(self, bytes_s: int | None, end: int) -> None:
        """Create the pace. `bytes_s` is its limit; `end` is the end of the master's log."""
        self._bytes_s = bytes_s
        self._free_ms = 0.0  # when the time for what has been sent ends
        self._end = end
        self._left_bytes = 0.0  # recently sent bytes of the copy
        self._grown_bytes = 0.0  # recent growth of the log

    def left(self, size: int, end: int, now_ms: int) -> None:
        """Record that `size` bytes of a copy are sent, while the master's log ends at `end`."""
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
        """Return the ms until the next chunk may be sent, or 0 if it may be sent now."""
        return max(0.0, self._free_ms - now_ms)


class ClockOffset:
    """Measure by reports how far a slave's wall clock is ahead of its master's, in ms.

    The travel time of a report makes its offset too low. So the highest offset of five seconds
    counts.
    """

    def __init__(self) -> None:
        self.ahead_ms: int | None = None  # None: not known yet
        self._highest: int | None = None  # since `_since_ms`
        self._since_ms = 0

    def note(self, slave_ms: int, master_ms: int, now_ms: int) -> bool:
        """Record the wall clocks and the monotonic clock; return whether `ahead_ms` is new."""
        if self._highest is None:
            self._since_ms = now_ms
        ahead_ms = slave_ms - master_ms
        self._highest = ahead_ms if self._highest is None else max(self._highest, ahead_ms)
        if now_ms - self._since_ms < CLOCK_WINDOW_MS:
            return False
        self.ahead_ms, self._highest = self._highest, None
        return True


class ReportCheck:
    """Check the reports of one stream: they never exceed the sent bytes and never go back."""

    def __init__(self, epoch: int, begin: int) -> None:
        self.epoch = epoch
        self._sent = begin
        self._last = Report(epoch, begin, 0)

    def sent(self, end: int) -> None:
        """Record the end of a chunk before the chunk is sent."""
        self._sent = end

    def check(self, report: Report) -> None:
        """Check a report. Raises StreamBroken."""
        last = self._last
        if report.epoch != self.epoch:
            raise StreamBroken(f"a report of epoch {report.epoch} in epoch {self.epoch}")
        if report.written > self._sent:
            raise StreamBroken(f"a report of {report.written}, and {self._sent} was sent")
        if not last.synced <= report.synced <= report.written or report.written < last.written:
            raise StreamBroken(f"{report} follows {last}")
        self._last = report


class ChunkCheck:
    """Check that the chunks of one stream have its epoch, are undamaged and arrive in order."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._confirmed = 0

    def check(self, chunk: LogChunk, next_offset: int) -> None:
        """Check a chunk. Raises StreamBroken."""
        if chunk.epoch != self._epoch:
            raise StreamBroken(f"a chunk of epoch {chunk.epoch} in epoch {self._epoch}")
        if chunk.offset != next_offset:
            raise StreamBroken(f"a chunk for {chunk.offset}, and {next_offset} is next")
        if crc32(chunk.data) != chunk.crc:
            raise StreamBroken(f"the chunk for {chunk.offset} is damaged: its CRC-32 differs")
        if chunk.confirmed < self._confirmed:
            raise StreamBroken(f"the confirm offset falls to {chunk.confirmed}")
        self._confirmed = chunk.confirmed
