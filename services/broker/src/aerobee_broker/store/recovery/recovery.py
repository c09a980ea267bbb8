"""Recovery: what a store does between finding its files and serving them.

The commit log is the truth. It is read record by record from the checkpoint on; consume queues and
index are trusted up to the checkpoint, wiped behind it and derived again. Where the records end,
the log ends.

A bad record is judged by where it lies. At or behind the offset that was known to be durable it is
the torn tail of a crash: never acknowledged, truncated. Before that offset it is damage: reported
with file and physical offset, left as a hole, and reading continues behind it. Without a checkpoint
nothing is known to be durable; then a bad record is damage when a whole record follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from aerobee_broker.errors import CommitLogBroken, StoreReadError, is_unreadable
from aerobee_broker.store.damage import DamageRegister, EventListener
from aerobee_broker.store.derived.checkpoint import Checkpoint, CheckpointFile, IndexState
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.log.commit_log import BLANK_RESERVE, CommitLog
from aerobee_broker.store.options import StoreOptions

if TYPE_CHECKING:
    from aerobee_broker.store.recovery.derive import Deriver
    from aerobee_broker.store.recovery.scan import End

_NOWHERE = 1 << 62
_PROGRESS_BYTES = 256 << 20


class Recovery:
    def __init__(
        self,
        log: CommitLog,
        dispatch: Dispatch,
        checkpoint_file: CheckpointFile,
        deleted_topics: Mapping[str, int],
        options: StoreOptions,
        *,
        damage: DamageRegister,
        on_event: EventListener,
    ) -> None:
        self._log = log
        self._dispatch = dispatch
        self._queues = dispatch.queues
        self._index = dispatch.index
        self._checkpoint_file = checkpoint_file
        self._deleted_topics = deleted_topics
        self._check_crc = options.check_crc_on_recover
        self._whole_crc = options.whole_crc
        self._damage = damage.report
        self._event = on_event
        self._durable: int | None = None  # every byte below was durable; None: unknown
        self._queues_from = 0  # physical offset: records below are in the consume queues
        self._index_from = 0  # physical offset: the keys of records below are in the index
        self._lost_bytes = 0  # of damage: bounds the units that may be missing

    def run(self, *, clean: bool) -> Checkpoint:
        """Brings queues and index to the end of the log. `clean`: the store was closed, not left by
        a crash. Returns the checkpoint that holds now. Raises OSError, CommitLogBroken.
        """
        found = self._read_checkpoint()
        if found is not None and found.file_size != self._log.file_size:
            raise CommitLogBroken(
                f"the store was made with mappedFileSizeCommitLog = {found.file_size}, and it is "
                f"{self._log.file_size} now: set it back",
                "mappedFileSizeCommitLog",
            )
        for path in self._log.load():
            self._event("log_file_extended", {"file": str(path)})
        if found is not None:
            self._check_files(found)
            self._durable = found.flushed
        else:
            self._durable = None if self._log.starts else 0
        checkpoint = self._load_derived(found, clean=clean)
        self._dispatch.timestamp_ms = checkpoint.log_timestamp_ms
        end = self._read_log(min(self._queues_from, self._index_from))
        # Nothing known to be durable: at least the last file is written and synced again.
        durable = self._log.start_at(end) if self._durable is None else self._durable
        self._log.begin_at(end, min(end, durable))
        self._dispatch.recover(0, end, 0)
        self._queues.rebuild_starts.clear()
        if self._durable is None:
            self._checkpoint_file.write(replace(checkpoint, flushed=end))
        return checkpoint

    def _read_checkpoint(self) -> Checkpoint | None:
        try:
            return self._checkpoint_file.read()
        except OSError as error:
            if not is_unreadable(error):
                raise
            return None

    def _check_files(self, checkpoint: Checkpoint) -> None:
        """That the log has the files which the checkpoint covers. Raises CommitLogBroken."""
        log = self._log
        end = log.starts[-1] + log.file_size if log.starts else 0
        if end < checkpoint.flushed:
            raise CommitLogBroken(
                f"{log.path_of(end)} is missing from the commit log, which reached "
                f"{checkpoint.flushed}: put it back from a copy; to go on without its messages, "
                f"remove {self._checkpoint_file.path}",
                str(log.path_of(end)),
            )

    # ---- derived files ----

    def _load_derived(self, found: Checkpoint | None, *, clean: bool) -> Checkpoint:
        """Loads what the checkpoint covers, and removes what does not match it. The checkpoint that
        says so is written first: a crash in between must not leave the old one beside new files.
        """
        low = self._log.min_offset if self._log.starts else 0
        checkpoint = found or Checkpoint(self._log.file_size)
        queues_match = index_matches = False
        if found is not None:
            queues_match = self._matches(lambda: self._load_queues(found, low))
            if self._index is not None:
                load, state, end_ms = self._index.load, found.index, found.index_timestamp_ms
                in_order = clean and queues_match
                index_matches = self._matches(lambda: load(state, end_ms, clean=in_order))
        if not queues_match:
            checkpoint = Checkpoint(
                self._log.file_size, index=checkpoint.index, flushed=checkpoint.flushed
            )
        if not index_matches:
            checkpoint = replace(checkpoint, index=IndexState(), index_timestamp_ms=0)
        # Where it is unknown what was durable, no checkpoint is written before the log is read: one
        # that says 0 bytes would make the whole log a torn tail.
        if checkpoint != found and self._durable is not None:
            self._checkpoint_file.write(checkpoint)
        self._queues_from = max(low, checkpoint.dispatched)
        self._lost_bytes += max(0, low - checkpoint.dispatched) if queues_match else 0
        if not queues_match:
            self._report_rebuild("consumequeue", found)
            self._reset_queues(low)
        elif not clean:
            self._queues.wipe_after_end()
        self._index_from = self._queues_from
        if self._index is not None:
            if not index_matches:
                self._report_rebuild("index", found)
                self._index.reset(low)
            self._index_from = max(low, self._index.end_offset)
        return checkpoint

    @staticmethod
    def _matches(load: Callable[[], bool]) -> bool:
        """False also when the files cannot be read: they will be rebuilt. Raises OSError,
        StoreReadError when they may be readable later.
        """
        try:
            return load()
        except (OSError, StoreReadError) as error:
            if not is_unreadable(error):
                raise
            return False

    def _load_queues(self, found: Checkpoint, log_start: int) -> bool:
        self._queues.load(found.dispatched)
        matches = self._queues.digest() == found.digest
        self._finish_deletions()
        # The checkpoint may have been taken before a deletion or after it.
        matches = matches or self._queues.digest() == found.digest
        # A rebuild that was cut short starts again.
        matches = matches and not found.dispatched == 0 < log_start
        matches = matches and self._queues.starts_below(log_start)
        if matches:
            self._queues.trim_all_to(log_start)
        return matches

    def _reset_queues(self, log_start: int) -> None:
        """For a rebuild: removes the units of records in the log, and keeps those of expired
        records where they can be read.
        """

        def load() -> bool:
            self._queues.load_rebuild_starts(log_start)
            self._finish_deletions()
            self._queues.wipe_after_end()
            return True

        self._queues.clear()
        if log_start == 0 or not self._matches(load):
            self._queues.reset()

    def _finish_deletions(self) -> None:
        """Of topics whose deletion a crash, or the disk, cut short."""
        for topic, physical_offset in self._deleted_topics.items():
            if self._queues.ends_below(topic, physical_offset):
                try:
                    self._queues.delete_topic(topic)
                except OSError as error:
                    directory = str(self._queues.folder / topic)
                    self._event("directory_left", {"directory": directory, "reason": str(error)})

    def _report_rebuild(self, directory: str, found: Checkpoint | None) -> None:
        if self._log.starts:
            reason = "it does not fit the checkpoint" if found else "there is no checkpoint"
            self._event("derived_files_rebuilt", {"directory": directory, "reason": reason})

    # ---- the log ----

    def _read_log(self, begin: int) -> int:
        """Derives everything from this physical offset on. Returns the end of the log."""
        if self._ends_at(begin):
            return begin
        # numpy takes 80 ms to import: not for a store that was closed and has nothing to read.
        from aerobee_broker.store.recovery.derive import Deriver
        from aerobee_broker.store.recovery.scan import Stop, scan_log

        log = self._log
        deriver = Deriver(
            log=log,
            dispatch=self._dispatch,
            on_damage=self._damage,
            deleted_topics=self._deleted_topics,
            queues_from=self._queues_from,
            index_from=self._index_from,
            lost_bytes=self._lost_bytes,
        )
        crc_from = self._durable if self._whole_crc and self._durable is not None else _NOWHERE
        total = log.starts[-1] + log.file_size - begin
        at = reported = begin
        while log.start_at(at) in log.starts:
            file_end = log.start_at(at) + log.file_size
            if at + BLANK_RESERVE > file_end:
                at = file_end
                continue
            records, at, end = scan_log(log, at, check_crc=self._check_crc, crc_from=crc_from)
            deriver.derive(records, at)
            if end.stop is Stop.BLANK:
                at = file_end
            elif end.stop is not Stop.MORE:
                next_at = self._judge(deriver, at, end)
                if next_at is None:
                    break
                at = next_at
            if at - reported >= _PROGRESS_BYTES:
                reported = at
                self._event("recovery_progress", {"bytes": at - begin, "at_most": total})
        return at

    def _ends_at(self, physical_offset: int) -> bool:
        """Whether the log has nothing there: no file, or zeros where everything durable ends."""
        if self._log.start_at(physical_offset) not in self._log.starts:
            return True
        if physical_offset != self._durable:
            return False
        return not any(self._log.read(physical_offset, BLANK_RESERVE))

    def _judge(self, deriver: Deriver, physical_offset: int, end: End) -> int | None:
        """Where reading continues behind a bad record; None when the log ends at it."""
        from aerobee_broker.store.recovery.scan import find_record

        durable = self._durable
        if durable is not None and physical_offset >= durable:
            self._report_torn_tail(physical_offset, end)
            return None
        limit = self._log.starts[-1] + self._log.file_size if durable is None else durable
        behind = physical_offset + (len(end.damaged.data) if end.damaged else 1)
        next_at = find_record(self._log, behind, limit, check_crc=self._check_crc)
        if next_at is None:
            if durable is None:
                self._report_torn_tail(physical_offset, end)
                return None
            next_at = durable
        reason = end.reason or "zeros in the place of a record"
        self._damage(self._log.path_of(physical_offset), physical_offset, reason)
        deriver.add_lost_bytes(next_at - physical_offset)
        if end.damaged is not None and behind <= next_at:
            deriver.derive(end.damaged, behind)  # its unit is known, so it keeps its queue offset
        return next_at

    def _report_torn_tail(self, physical_offset: int, end: End) -> None:
        if end.reason:
            self._event(
                "log_tail_truncated",
                {
                    "file": str(self._log.path_of(physical_offset)),
                    "physical_offset": physical_offset,
                    "reason": end.reason,
                },
            )
