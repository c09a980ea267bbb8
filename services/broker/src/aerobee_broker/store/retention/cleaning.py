"""Deletes the log files that retention selects, unless they are protected.

The work that follows is done in bounded steps. The event loop trims consume queues and index to the
new start of the log, and the flusher thread removes the files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from aerobee_broker.disk import Disk
from aerobee_broker.errors import StoreReadError
from aerobee_broker.store.damage import EventListener
from aerobee_broker.store.derived.consume_queue import ConsumeQueue
from aerobee_broker.store.derived.derived_flush import DerivedFlush
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.retention.retention import Retention

_TRIMMED_A_STEP = 256  # queues, after log files were deleted: 30 µs each

NeededFrom = Callable[[], int | None]


@dataclass(slots=True, eq=False)
class Cleaning:
    disk: Disk
    log: CommitLog
    dispatch: Dispatch
    derived_flush: DerivedFlush
    retention: Retention
    interval_ms: int
    on_event: EventListener
    # Physical offset: retention wants to delete the protected files below it.
    wanted_below: int = field(default=0, init=False)
    # Physical offset: a power cut cannot bring back files below it.
    deleted_below: int = field(default=0, init=False)
    _protections: list[NeededFrom] = field(default_factory=list, init=False)
    _given_up_below: list[Callable[[], int]] = field(default_factory=list, init=False)
    _next_ms: int = field(default=0, init=False)
    _to_trim: list[ConsumeQueue] = field(default_factory=list, init=False)
    # Files that the flusher removes.
    _removals: deque[Path] = field(default_factory=deque, init=False)

    # ---- the loop's thread ----

    def protect(self, needed_from: NeededFrom) -> None:
        """Do not delete log files at or after the physical offset that `needed_from` returns.

        If `needed_from` returns None, no file is protected. While it raises StoreReadError, no file
        is deleted.
        """
        self._protections.append(needed_from)

    def give_up(self, below: Callable[[], int]) -> None:
        """Allow the deletion of all files below the physical offset that `below` returns.

        The age of these files does not matter. Protected files stay.
        """
        self._given_up_below.append(below)

    def _count_given_up(self) -> int:
        below = max((given() for given in self._given_up_below), default=0)
        return sum(start <= below for start in self.log.starts[1:])

    def run_when_due(self, now_ms: int, monotonic_ms: int) -> None:
        """Delete the log files that retention selects, once every `interval_ms`.

        While the disk is full, every call measures it, because producers wait for free space.
        """
        was_full = self.retention.full
        if monotonic_ms < self._next_ms:
            if was_full or self.retention.stop:
                self.retention.measure()
                self._report_disk(was_full)
            return
        self._next_ms = monotonic_ms + self.interval_ms
        count = max(self.retention.evaluate(now_ms), self._count_given_up())
        count = self._not_needed(count)
        self._report_disk(was_full)
        for _ in range(count):
            path = self.log.drop_first()
            self._removals.append(path)
            self.on_event("log_file_deleted", {"file": str(path)})
        if count > 0:
            self._to_trim = list(self.dispatch.queues.table.values())
            if self.dispatch.index is not None:
                self.dispatch.index.drop_below(self.log.min_offset)
            self.derived_flush.request()

    def _report_disk(self, was_full: str) -> None:
        if bool(was_full) != bool(self.retention.full):
            name = "disk_full" if self.retention.full else "disk_ok"
            reason = self.retention.full or was_full
            self.on_event(name, {"directory": str(self.log.folder.parent), "reason": reason})

    def _not_needed(self, count: int) -> int:
        """Return how many of the `count` oldest files are not protected."""
        starts = self.log.starts
        # A file that is not flushed yet is open on the flusher's thread.
        durable = sum(start <= self.log.flushed for start in starts[1 : count + 1])
        count = min(count, durable)
        if count <= 0:
            return 0
        try:
            offsets = [
                offset for needed_from in self._protections if (offset := needed_from()) is not None
            ]
        except StoreReadError:  # unknown: perhaps the whole log is needed
            return 0
        needed = min(offsets, default=starts[count])
        if starts[count] <= needed:
            return count
        if self.wanted_below < starts[count]:
            self.wanted_below = starts[count]
            self.on_event("log_file_held", {"file": str(self.log.path_of(needed)), "for": needed})
        return sum(start <= needed for start in starts[1 : count + 1])

    def trim_some(self) -> None:
        """Trim up to 256 queues to the start of the log. Raises StoreReadError."""
        low = self.log.min_offset
        for _ in range(min(_TRIMMED_A_STEP, len(self._to_trim))):
            queue = self._to_trim.pop()
            if not queue.deleted and queue.trimmed_to < low:
                self.dispatch.queues.trim_to(queue, low)
        self._removals += self.dispatch.queues.expired
        self.dispatch.queues.expired.clear()

    def trim_all(self) -> None:
        """Trim all queues after recovery. Raises StoreReadError."""
        self.deleted_below = self.log.min_offset  # recovery has synced the directory
        self.dispatch.queues.trim_all_to(self.log.min_offset)
        self.trim_some()

    def cancel_removals_in(self, directory: Path) -> None:
        """Cancel removals of files in a deleted directory, because new files there must stay."""
        if any(directory in path.parents for path in list(self._removals)):
            kept = [path for path in list(self._removals) if directory not in path.parents]
            self._removals = deque(kept)

    # ---- the flusher's thread ----

    @property
    def has_removals(self) -> bool:
        return bool(self._removals)

    def remove_one(self) -> bool:
        """Remove one dropped file. Return False if no file is left to remove. Raises OSError."""
        if not self._removals:
            return False
        path = self._removals.popleft()
        # Its topic may have been deleted meanwhile.
        with suppress(FileNotFoundError):
            self.disk.remove(path)
        if path.parent == self.log.folder:
            self.disk.sync_directory(path.parent)
            self.deleted_below = int(path.name) + self.log.file_size
        return True
