"""Cleaning: takes log files that retention gives up out of the log, unless somebody needs them.

What follows from that is done in bounded steps: queues and index learn where the log begins, and
the flusher's thread removes the files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aerobee_broker.disk import Disk
from aerobee_broker.errors import StoreReadError
from aerobee_broker.store.damage import Event
from aerobee_broker.store.derived.consume_queue import ConsumeQueue, ConsumeQueues
from aerobee_broker.store.derived.derived_flush import DerivedFlush
from aerobee_broker.store.derived.index import Index
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.retention.retention import Retention

_SETTLED_A_STEP = 256  # queues, after log files were deleted: 30 µs each

# The physical offset from which on the log is needed; None: not at all. Raises StoreReadError when
# that cannot be read now: no file is deleted then.
NeededFrom = Callable[[], int | None]


class Cleaning:
    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        *,
        queues: ConsumeQueues,
        index: Index | None,
        derived_flush: DerivedFlush,
        retention: Retention,
        interval_ms: int,
        on_event: Event,
    ) -> None:
        # Retention wants the files below this physical offset, and they are protected: whoever
        # protects them may move what it needs to the end of the log.
        self.wanted_below = 0
        self.gone_below = 0  # physical offset: not even a power cut brings back what lay there
        self._protections: list[NeededFrom] = []
        self._disk = disk
        self._log = log
        self._queues = queues
        self._index = index
        self._derived_flush = derived_flush
        self._retention = retention
        self._interval_ms = interval_ms
        self._event = on_event
        self._next_ms = 0
        self._to_settle: list[ConsumeQueue] = []
        self._removals: deque[Path] = deque()  # files that the flusher removes

    # ---- the loop's thread ----

    def protect(self, needed_from: NeededFrom) -> None:
        """See `MessageStore.protect`."""
        self._protections.append(needed_from)

    def look(self, now_ms: int, monotonic_ms: int) -> None:
        """Every `interval_ms`: takes out what may go."""
        if monotonic_ms < self._next_ms:
            return
        self._next_ms = monotonic_ms + self._interval_ms
        was_full = self._retention.full
        count = self._not_needed(self._retention.look(now_ms))
        if bool(was_full) != bool(self._retention.full):
            name = "disk_full" if self._retention.full else "disk_ok"
            self._event(name, {"reason": self._retention.full or was_full})
        for _ in range(count):
            path = self._log.drop_first()
            self._removals.append(path)
            self._event("log_file_deleted", {"file": str(path)})
        if count > 0:
            self._to_settle = list(self._queues.table.values())
            if self._index is not None:
                self._index.forget_below(self._log.min_offset)
            self._derived_flush.want()

    def _not_needed(self, count: int) -> int:
        """How many of the `count` oldest files nobody needs any more."""
        starts = self._log.starts
        # A file that is still to be flushed is open on the flusher's thread.
        durable = sum(start <= self._log.flushed for start in starts[1 : count + 1])
        count = min(count, durable)
        if count <= 0:
            return 0
        try:
            offsets = [offset for ask in self._protections if (offset := ask()) is not None]
        except StoreReadError:  # what is needed is not known: all of it, perhaps
            return 0
        needed = min(offsets, default=starts[count])
        if starts[count] <= needed:
            return count
        if self.wanted_below < starts[count]:
            self.wanted_below = starts[count]
            self._event("log_file_held", {"file": str(self._log.path_of(needed)), "for": needed})
        return sum(start <= needed for start in starts[1 : count + 1])

    def settle_some(self) -> None:
        """Tells some queues where the log begins now. Raises StoreReadError."""
        low = self._log.min_offset
        for _ in range(min(_SETTLED_A_STEP, len(self._to_settle))):
            queue = self._to_settle.pop()
            if not queue.gone and queue.settled_for < low:
                self._queues.settle(queue, low)
        self._removals += self._queues.expired
        self._queues.expired.clear()

    def settle_all(self) -> None:
        self.gone_below = self._log.min_offset  # recovery has synced the directory
        self._queues.settle_all(self._log.min_offset)
        self.settle_some()

    def forget_below(self, directory: Path) -> None:
        """It was removed: what is made there from now on stays."""
        if any(directory in path.parents for path in list(self._removals)):
            kept = [path for path in list(self._removals) if directory not in path.parents]
            self._removals = deque(kept)

    # ---- the flusher's thread ----

    def remove_one(self) -> bool:
        """False: there is nothing to remove. Raises OSError."""
        if not self._removals:
            return False
        path = self._removals.popleft()
        # Its topic may just have been deleted.
        with suppress(FileNotFoundError):
            self._disk.remove(path)
        if path.parent == self._log.folder:
            self._disk.sync_directory(path.parent)
            self.gone_below = int(path.name) + self._log.file_size
        return True
