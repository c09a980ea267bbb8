"""Selects the commit log files to delete, and detects whether the disk is too full.

This module does not delete files. A file has expired if the first record of the next file is older
than the retention time. Modification times would be wrong for copied and restored files.

A topic with a longer time of its own keeps the files that have its messages (`topic_times.py`). A
file that no topic needs is deleted at any age. Neither applies above the forcible mark of the disk
or beyond `retain_bytes`.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from aerobee_broker.disk import Disk, Usage
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.options import HOUR_MS, StoreOptions
from aerobee_broker.store.retention.topic_times import TopicTimes
from aerobee_wire import record

# At least a day, including a day on which the clocks change.
HOURS_AHEAD = 26
_SIZE_BYTES = record.HEADER_LAYOUT.view("total_size").size


def deletion_hint(usage: Usage, options: StoreOptions) -> str:
    """Return a sentence about what a nearly full disk costs, or "" if there is enough room."""
    if usage.percent <= options.disk_max_used_ratio:
        return ""
    consequence = (
        f"above {options.disk_clean_forcibly_ratio} %, the oldest messages are deleted at any age, "
        "also unread messages and dead letters"
        if options.clean_file_forcibly
        else f"above {options.disk_warning_ratio} %, messages of producers are refused"
    )
    return f"the disk of the store is {usage.percent:.0f} % full: {consequence}"


class Retention:
    def __init__(
        self,
        disk: Disk,
        path: Path,
        log: CommitLog,
        options: StoreOptions,
        topic_times: TopicTimes,
    ) -> None:
        self.full = ""  # reason to refuse producers, or ""
        self.stop = ""  # reason to refuse every append, or ""
        self.forced = False  # the disk is above the forcible mark: files are deleted at any age
        self._disk = disk
        self._path = path
        self._log = log
        self._options = options
        self._topic_times = topic_times
        self._dispatch = topic_times.dispatch

    def use(self, options: StoreOptions) -> None:
        """Use other times, sizes and marks from the next evaluation on."""
        self._options = options

    def evaluate(self, now_ms: int) -> int:
        """Measure the disk. Return the number of oldest log files that must be deleted now."""
        return self._deletable(self.measure(), now_ms)

    def measure(self) -> Usage | None:
        """Measure the disk and compare it with the watermarks.

        Return None if the disk cannot be measured. Expired files are then deleted at any hour, but
        producers are not refused.
        """
        try:
            usage = self._disk.usage(self._path)
        except OSError:
            return None
        self._compare_watermarks(usage)
        return usage

    def expiries(self, physical_offsets: Sequence[int], now_ms: int) -> list[int]:
        """Return for each record the earliest time at which age alone deletes its file.

        Times are in milliseconds since the epoch. A time of 0 means never. Size limits and
        protected files are ignored.
        """
        try:
            tight = self._is_tight(self._disk.usage(self._path))
        except OSError:
            tight = True
        starts = self._log.starts
        followers = {offset: bisect_right(starts, offset) for offset in physical_offsets}
        # Neighbours share a file, and its expiry.
        answers = {
            number: self._expiry(number, now_ms, tight) for number in set(followers.values())
        }
        return [answers[followers[offset]] for offset in physical_offsets]

    def _expiry(self, follower: int, now_ms: int, tight: bool) -> int:
        """Return the expiry of the file before the log's file number `follower`.

        The newest file is treated as if the next one began now.
        """
        starts = self._log.starts
        begun = (self._first_timestamp(start) for start in starts[follower:])
        complete_ms = next((stored for stored in begun if stored > 0), now_ms)
        if follower:  # otherwise, the log has no such file yet
            end = starts[follower] if follower < len(starts) else self._log.end
            highest_ms = self._dispatch.time_steps.highest_ms(starts[follower - 1], end)
            complete_ms = max(complete_ms, highest_ms)
        expired_ms = max(complete_ms + self._options.file_reserved_time_ms, now_ms)
        return expired_ms if tight else self._deletion_from(expired_ms)

    def _deletion_from(self, moment_ms: int) -> int:
        """Return the first time (ms) from `moment_ms` on in an hour of deletion; 0 without one."""
        for _ in range(HOURS_AHEAD):
            local = time.localtime(moment_ms / 1000)
            if local.tm_hour in self._options.delete_when:
                return moment_ms
            into_the_hour_ms = (local.tm_min * 60 + local.tm_sec) * 1000 + moment_ms % 1000
            moment_ms += HOUR_MS - into_the_hour_ms
        return 0

    def _is_tight(self, usage: Usage | None) -> bool:
        """Return whether the disk is so full that expired files are deleted at any hour."""
        return usage is None or usage.percent > self._options.disk_max_used_ratio

    def _compare_watermarks(self, usage: Usage) -> None:
        options = self._options
        too_few = usage.free < options.disk_min_free_bytes
        if usage.percent > options.disk_warning_ratio or too_few:
            self.full = self._describe(usage, too_few, options.disk_warning_ratio)
        elif usage.percent <= options.disk_clean_forcibly_ratio:
            self.full = ""
        stopped = usage.percent > options.disk_stop_ratio
        self.stop = self._describe(usage, False, options.disk_stop_ratio) if stopped else ""

    def _describe(self, usage: Usage, too_few: bool, ratio: int) -> str:
        mark = f"{self._options.disk_min_free_bytes:,} bytes free" if too_few else f"{ratio} % used"
        return (
            f"the disk of the store has {usage.free:,} bytes free ({usage.percent:.1f} % used), "
            f"beyond the watermark of {mark}: make room there, or keep messages for a shorter time"
        )

    def _deletable(self, usage: Usage | None, now_ms: int) -> int:
        options = self._options
        tight = self._is_tight(usage)
        hour = time.localtime(now_ms / 1000).tm_hour
        count = 0
        if tight or hour in options.delete_when:
            count = self._topic_times.released(
                self._expired(now_ms - options.file_reserved_time_ms)
            )
        most = min(options.delete_file_batch_max, len(self._log.starts) - 1)
        count = max(count, self._topic_times.unneeded(most))
        if options.retain_bytes:
            count = max(count, self._beyond(options.retain_bytes))
        above = usage is not None and usage.percent > options.disk_clean_forcibly_ratio
        self.forced = above and options.clean_file_forcibly
        if self.forced:
            count = options.delete_file_batch_max
        return min(count, most)

    def _beyond(self, retain_bytes: int) -> int:
        """Return the number of oldest files to delete so that the log keeps `retain_bytes`."""
        return max(0, self._log.end - retain_bytes - self._log.min_offset) // self._log.file_size

    def _expired(self, before_ms: int) -> int:
        count = 0
        begun = self._first_timestamp(self._log.starts[0]) if self._log.starts else 0
        for number, next_start in enumerate(self._log.starts[1:], 1):
            stored = self._first_timestamp(next_start)
            # If the clock was set back, the next file may begin in the past.
            highest_ms = self._dispatch.time_steps.highest_ms(
                self._log.starts[number - 1], next_start
            )
            is_young = max(begun, stored, highest_ms) >= before_ms
            if is_young or count >= self._options.delete_file_batch_max:
                break
            if stored > 0:  # otherwise the next file decides
                count = number
            begun = stored
        return count

    def _first_timestamp(self, start: int) -> int:
        """Return the store timestamp (ms) of a file's first record, or 0 if it cannot be read."""
        if start >= self._log.written:
            return 0
        try:
            size = int.from_bytes(self._log.read(start, _SIZE_BYTES), "big")
            if size > self._log.file_size:
                return 0
            first = record.decode(self._log.read(start, size))
        except (OSError, record.CorruptRecord):
            return 0
        return first.store_timestamp_ms if first.physical_offset == start else 0
