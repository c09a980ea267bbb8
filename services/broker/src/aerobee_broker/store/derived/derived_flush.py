"""Makes the derived files durable, a few at a time, and then says so in the checkpoint.

A run has three steps: on the loop a cut is made (everything visible now is to be covered) and the
units are handed to the operating system; on the flusher's thread the files are synced; last the
checkpoint is written. Until then the one before holds. The flusher opens the files by itself: those
of the loop may be closed under it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from aerobee_broker.disk import Disk
from aerobee_broker.store.derived.checkpoint import Checkpoint, CheckpointFile
from aerobee_broker.store.derived.consume_queue import ConsumeQueue, ConsumeQueues
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.derived.index import Index
from aerobee_broker.store.log.commit_log import CommitLog

_QUEUES_A_STEP = 128  # 10 µs each: 1.3 ms of the loop
_FILES_A_SLICE = 8  # a flush of the log waits for at most this many syncs of other files


class _Job:
    """What the flusher has to sync before it may write the checkpoint."""

    __slots__ = ("checkpoint", "directories", "expired", "files")

    def __init__(
        self,
        files: list[Path],
        directories: list[Path],
        checkpoint: Checkpoint,
        expired: list[Path],
    ) -> None:
        self.files = files
        self.directories = directories
        self.checkpoint = checkpoint
        self.expired = expired  # files that the checkpoint no longer counts


class DerivedFlush:
    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        *,
        queues: ConsumeQueues,
        index: Index | None,
        dispatch: Dispatch,
        checkpoint_file: CheckpointFile,
        interval_ms: int,
        interval_bytes: int,
    ) -> None:
        self._disk = disk
        self._log = log
        self._queues = queues
        self._index = index
        self._dispatch = dispatch
        self._checkpoint_file = checkpoint_file
        self._interval_ms = interval_ms
        self._interval_bytes = interval_bytes
        self._covered = 0  # physical offset of the last cut
        self._last_ms = 0
        self._wanted = False
        self._cut: Checkpoint | None = None
        self._waiting: list[ConsumeQueue] = []
        self._index_expired: list[Path] = []  # at the cut
        self._job: _Job | None = None  # written by the loop, cleared by the flusher

    def begin(self, covered: int, now_ms: int, *, wanted: bool) -> None:
        """After recovery. `wanted`: take a checkpoint soon."""
        self._covered, self._last_ms, self._wanted = covered, now_ms, wanted

    def want(self) -> None:
        self._wanted = True

    # ---- the loop ----

    def step(self, monotonic_ms: int) -> None:
        """Starts a run when it is time, or brings it on by a bounded amount of work. Raises
        OSError; then the same step is made again.
        """
        if self._job is not None:
            return
        if self._cut is None and self._due(monotonic_ms):
            self._make_cut(monotonic_ms)
        elif self._cut is None and self._index is not None and self._idle(monotonic_ms):
            self._index.rest()
        if self._cut is not None:
            self._write_some(_QUEUES_A_STEP)

    def _due(self, monotonic_ms: int) -> bool:
        new = self._dispatch.confirmed - self._covered
        late = monotonic_ms - self._last_ms >= self._interval_ms
        return self._wanted or new >= self._interval_bytes or (new > 0 and late)

    def _idle(self, monotonic_ms: int) -> bool:
        """Nothing has come for an interval after the last cut."""
        late = monotonic_ms - self._last_ms >= self._interval_ms
        return late and self._dispatch.confirmed == self._covered

    def _make_cut(self, monotonic_ms: int) -> None:
        dispatch = self._dispatch
        dispatch.put_index()
        checkpoint = Checkpoint(
            self._log.file_size,
            dispatched=dispatch.confirmed,
            digest=self._queues.digest(),
            log_timestamp_ms=dispatch.timestamp_ms,
            queue_timestamp_ms=dispatch.timestamp_ms,
        )
        if self._index is not None:
            self._index.write()
            self._index_expired += self._index.expired
            self._index.expired.clear()
            checkpoint = replace(
                checkpoint, index=self._index.state(), index_timestamp_ms=self._index.end_ms
            )
        self._waiting = list(self._queues.unwritten)
        self._covered, self._last_ms, self._wanted = dispatch.confirmed, monotonic_ms, False
        self._cut = checkpoint

    def _write_some(self, count: int) -> None:
        assert self._cut is not None
        for _ in range(min(count, len(self._waiting))):
            queue = self._waiting[-1]
            if queue.written < queue.visible and not queue.gone:
                self._dispatch.write_queue(queue)
            self._waiting.pop()
        if not self._waiting:
            self._job = self._hand_over(self._cut)
            self._cut = None

    def _hand_over(self, checkpoint: Checkpoint) -> _Job:
        files = set(self._queues.unsynced)
        directories = set(self._queues.new_directories)
        self._queues.unsynced.clear()
        self._queues.new_directories.clear()
        expired: list[Path] = []
        if self._index is not None:
            files |= self._index.unsynced
            self._index.unsynced.clear()
            if self._index.names_unsynced:
                directories.add(self._index.folder)
                self._index.names_unsynced = False
            expired = self._index_expired
            self._index_expired = []
        return _Job(sorted(files), sorted(directories), checkpoint, expired)

    # ---- the flusher's thread ----

    def work(self) -> bool:
        """A slice of the syncing. True: there is more. Raises OSError."""
        job = self._job
        if job is None:
            return False
        for _ in range(_FILES_A_SLICE):
            # Not taken out before: what could not be opened is still to be synced.
            if job.files:
                self._sync_file(job.files[-1])
                job.files.pop()
            elif job.directories:
                self._sync_directory(job.directories[-1])
                job.directories.pop()
            else:
                self._checkpoint_file.write(replace(job.checkpoint, flushed=self._log.flushed))
                for path in job.expired:
                    self._disk.remove(path)
                self._job = None
                return False
        return True

    def _sync_file(self, path: Path) -> None:
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return  # expired, or its topic was deleted meanwhile
        try:
            file.sync()
        finally:
            file.close()

    def _sync_directory(self, path: Path) -> None:
        # Its topic may just be being deleted.
        with suppress(FileNotFoundError):
            self._disk.sync_directory(path)

    # ---- both: nobody else is there any more ----

    def finish(self) -> None:
        """A whole run, on one thread. Raises OSError."""
        while self.work():
            pass
        self._make_cut(self._last_ms)
        self._write_some(len(self._waiting))
        while self.work():
            pass
