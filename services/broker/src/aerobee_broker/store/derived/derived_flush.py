"""Flushes the derived files, a few at a time, and then writes a checkpoint that covers them.

A run has three steps. First, the event loop makes a checkpoint in memory that covers all visible
messages, and writes the consume queue units to the operating system. Then the flusher thread syncs
the files. Finally it writes the checkpoint. Until then, the previous checkpoint is valid. The
flusher opens the files itself, because the event loop may close its own handles.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from aerobee_broker.disk import Disk
from aerobee_broker.store.derived.checkpoint import Checkpoint, CheckpointFile
from aerobee_broker.store.derived.consume_queue import ConsumeQueue
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.options import StoreOptions

_QUEUES_A_STEP = 128  # 10 µs each: 1.3 ms of the event loop
_FILES_A_SLICE = 8  # a flush of the log waits for at most this many syncs of other files


@dataclass(slots=True)
class _Job:
    """The files that the flusher must sync before it may write the checkpoint."""

    files: list[Path]
    directories: list[Path]
    checkpoint: Checkpoint
    expired: list[Path]  # files that the checkpoint no longer includes


class DerivedFlush:
    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        dispatch: Dispatch,
        checkpoint_file: CheckpointFile,
        options: StoreOptions,
    ) -> None:
        self._disk = disk
        self._log = log
        self._dispatch = dispatch
        self._queues = dispatch.queues
        self._index = dispatch.index
        self._checkpoint_file = checkpoint_file
        self._interval_ms = options.checkpoint_interval_ms
        self._interval_bytes = options.checkpoint_bytes
        self._covered = 0  # physical offset of the last checkpoint
        self._last_ms = 0  # when it was taken, monotonic
        self._requested = False
        self._checkpoint: Checkpoint | None = None  # while its units are being written
        self._unwritten: list[ConsumeQueue] = []  # queues of that run that must still be written
        self._index_expired: list[Path] = []  # index files that it no longer includes
        self._job: _Job | None = None  # written by the loop, cleared by the flusher

    def begin(self, covered: int, monotonic_ms: int, *, soon: bool) -> None:
        """Begin after recovery.

        `covered` is the physical offset up to which the last checkpoint covers the log. With
        `soon`, the next `step` takes a checkpoint.
        """
        self._covered, self._last_ms, self._requested = covered, monotonic_ms, soon

    def request(self) -> None:
        """Let the next `step` take a checkpoint."""
        self._requested = True

    # ---- the loop ----

    def step(self, monotonic_ms: int) -> None:
        """Start a run if it is due, or continue it with a bounded amount of work.

        Raises OSError. After an error, the next call repeats the step.
        """
        if self._job is not None:
            return
        if self._checkpoint is None and self._due(monotonic_ms):
            self._take_checkpoint(monotonic_ms)
        elif self._checkpoint is None and self._index is not None and self._idle(monotonic_ms):
            self._index.release_slots()
        if self._checkpoint is not None:
            self._write_units(self._checkpoint, _QUEUES_A_STEP)

    def _due(self, monotonic_ms: int) -> bool:
        new = self._dispatch.confirmed - self._covered
        late = monotonic_ms - self._last_ms >= self._interval_ms
        return self._requested or new >= self._interval_bytes or (new > 0 and late)

    def _idle(self, monotonic_ms: int) -> bool:
        """Return whether no message became visible in an interval after the last checkpoint."""
        late = monotonic_ms - self._last_ms >= self._interval_ms
        return late and self._dispatch.confirmed == self._covered

    def _take_checkpoint(self, monotonic_ms: int) -> Checkpoint:
        dispatch = self._dispatch
        dispatch.put_index()
        dispatch.time_steps.drop_below(self._log.min_offset)
        steps, unordered = dispatch.time_steps.below(dispatch.confirmed)
        checkpoint = Checkpoint(
            self._log.file_size,
            dispatched=dispatch.confirmed,
            digest=self._queues.digest(),
            log_timestamp_ms=dispatch.timestamp_ms,
            queue_timestamp_ms=dispatch.timestamp_ms,
            steps=steps,
            unordered=unordered,
        )
        if self._index is not None:
            self._index.write()
            self._index_expired += self._index.expired
            self._index.expired.clear()
            checkpoint = replace(
                checkpoint, index=self._index.state(), index_timestamp_ms=self._index.end_ms
            )
        self._unwritten = list(self._queues.unwritten)
        self._covered, self._last_ms, self._requested = dispatch.confirmed, monotonic_ms, False
        self._checkpoint = checkpoint
        return checkpoint

    def _write_units(self, checkpoint: Checkpoint, count: int) -> None:
        """Write the units of `count` queues. After the last one, the flusher continues the run."""
        for _ in range(min(count, len(self._unwritten))):
            queue = self._unwritten[-1]
            if queue.written < queue.visible and not queue.deleted:
                self._dispatch.write_queue(queue)
            self._unwritten.pop()
        if not self._unwritten:
            self._job = self._hand_over(checkpoint)
            self._checkpoint = None

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

    @property
    def has_work(self) -> bool:
        return self._job is not None

    def work(self) -> bool:
        """Sync a few files. Return True if more files are left. Raises OSError."""
        job = self._job
        if job is None:
            return False
        for _ in range(_FILES_A_SLICE):
            # Remove an entry only after the sync, so that a failed sync is repeated.
            if job.files:
                self._sync_file(job.files[-1])
                job.files.pop()
            elif job.directories:
                self._sync_directory(job.directories[-1])
                job.directories.pop()
            else:
                confirmed, flushed = self._log.confirmed, self._log.flushed  # confirmed is lower
                checkpoint = replace(job.checkpoint, flushed=flushed, confirmed=confirmed)
                self._checkpoint_file.write(checkpoint)
                for path in job.expired:
                    self._disk.remove(path)
                self._job = None
                return False
        return True

    def _sync_file(self, path: Path) -> None:
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return  # it expired, or its topic was deleted meanwhile
        try:
            file.sync()
        finally:
            file.close()

    def _sync_directory(self, path: Path) -> None:
        # The loop may be deleting its topic.
        with suppress(FileNotFoundError):
            self._disk.sync_directory(path)

    # ---- close of the store: only one thread is left ----

    def finish(self) -> None:
        """Finish the current run, and do another complete one. Raises OSError."""
        while self.work():
            pass
        checkpoint = self._take_checkpoint(self._last_ms)
        self._write_units(checkpoint, len(self._unwritten))
        while self.work():
            pass
