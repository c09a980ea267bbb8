"""Recovers a store at its start: finds the end of the log, and completes consume queues and index.

The commit log is authoritative. Recovery reads it record by record from the checkpoint on. It
trusts consume queues and index up to the checkpoint. Their later parts are wiped and derived again.
`walk.py` judges bytes that are not a record, and so finds the end of the log.

If the log has replicas, recovery derives only confirmed records, and none after damage. Later
records may be cut if another replica has become master. They are derived after they are confirmed
and the damage is repaired (`follow.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from aerobee_broker.errors import CommitLogBroken, StoreReadError, is_unreadable
from aerobee_broker.store.damage import DamageRegister, EventListener
from aerobee_broker.store.derived.checkpoint import Checkpoint, CheckpointFile, IndexState
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.derived.time_steps import TimeSteps
from aerobee_broker.store.log.commit_log import BLANK_RESERVE, CommitLog
from aerobee_broker.store.options import StoreOptions

_NOWHERE = 1 << 62
_PROGRESS_BYTES = 256 << 20
_TAIL_BYTES = 64 << 20  # end of a replica's log that each start checks: 50 ms


class Recovery:
    def __init__(
        self,
        log: CommitLog,
        dispatch: Dispatch,
        checkpoint_file: CheckpointFile,
        deleted_topics: Mapping[str, int],
        options: StoreOptions,
        *,
        on_deletion: Callable[[str, int], None],
        damage: DamageRegister,
        on_event: EventListener,
    ) -> None:
        self._log = log
        self._dispatch = dispatch
        self._queues = dispatch.queues
        self._index = dispatch.index
        self._checkpoint_file = checkpoint_file
        self._deleted_topics = deleted_topics
        self._on_deletion = on_deletion
        self._check_crc = options.check_crc_on_recover
        self._whole_crc = options.whole_crc
        self._replicated = options.replicated
        self._damage = damage
        self._event = on_event
        self._durable: int | None = None  # all bytes below were durable; None if unknown
        self._queues_from = 0  # physical offset: earlier records are in the consume queues
        self._index_from = 0  # physical offset: the keys of earlier records are in the index
        self._lost_bytes = 0  # damaged bytes, which limit the number of missing units
        self.lost_bytes = 0  # result of `run`: damaged bytes

    def run(self, *, clean: bool) -> Checkpoint:
        """Bring queues and index to the end of the log, or to the end of its confirmed part.

        `clean` is True if the last process closed the store. Return the checkpoint that is valid
        now. Raises OSError, CommitLogBroken.
        """
        found = self._read_checkpoint()
        if found is not None and found.file_size != self._log.file_size:
            raise CommitLogBroken(
                f"the store was made with mappedFileSizeCommitLog = {found.file_size}, and it is "
                f"{self._log.file_size} now: set it back",
                "mappedFileSizeCommitLog",
            )
        short_at = self._log.load()
        if short_at is not None:
            self._event("log_file_extended", {"file": str(self._log.path_of(short_at))})
        if found is not None:
            self._check_files(found)
            self._durable = found.flushed
        else:
            self._durable = None if self._log.starts else 0
        checkpoint = self._load_derived(found, clean=clean)
        begin = min(self._queues_from, self._index_from)
        steps = TimeSteps(checkpoint.steps, checkpoint.unordered)
        is_before = begin < self._queues_from  # the index lacks records, whose steps are known
        self._dispatch.begin(checkpoint.log_timestamp_ms, steps, is_before=is_before)
        confirmed = _NOWHERE
        if self._replicated:
            confirmed = max(begin, found.confirmed if found is not None else 0)
        confirmed, end = self._read_log(begin, confirmed)
        # If the durable end is unknown, at least the last file is written and synced again.
        durable = self._log.start_at(end) if self._durable is None else self._durable
        self._log.begin_at(end, min(end, durable))
        self._check_tail(begin, end, short_at)
        self._log.confirmed = confirmed
        self._dispatch.recover(0, confirmed, 0)
        if confirmed == end and not self._replicated:
            self._queues.rebuild_starts.clear()
        if self._durable is None:
            self._checkpoint_file.write(replace(checkpoint, flushed=end, confirmed=confirmed))
        return checkpoint

    def _read_checkpoint(self) -> Checkpoint | None:
        try:
            return self._checkpoint_file.read()
        except OSError as error:
            if not is_unreadable(error):
                raise
            return None

    def _check_files(self, checkpoint: Checkpoint) -> None:
        """Check that the log has the files that the checkpoint covers. Raises CommitLogBroken."""
        log = self._log
        end = log.starts[-1] + log.file_size if log.starts else 0
        if end < checkpoint.flushed:
            raise CommitLogBroken(
                f"{log.path_of(end)} is missing from the commit log, which reached "
                f"{checkpoint.flushed}: put it back from a copy; to continue without its messages, "
                f"remove {self._checkpoint_file.path}",
                str(log.path_of(end)),
            )

    # ---- derived files ----

    def _load_derived(self, found: Checkpoint | None, *, clean: bool) -> Checkpoint:
        """Load the derived files up to the checkpoint, and remove files that do not match it.

        Return the checkpoint that is valid after the removal. It is written first, because a crash
        must not leave the old checkpoint with new files.
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
                self._log.file_size,
                index=checkpoint.index,
                flushed=checkpoint.flushed,
                confirmed=checkpoint.confirmed,
            )
        if not index_matches:
            checkpoint = replace(checkpoint, index=IndexState(), index_timestamp_ms=0)
        # If the durable end is unknown, no checkpoint is written before the log is read: a
        # checkpoint with 0 bytes would make the whole log a torn tail.
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
        """Return the result of `load`, or False if damaged files cannot be read.

        Raises OSError or StoreReadError if the files may be readable later.
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
        # The checkpoint may have been taken before or after a deletion.
        matches = matches or self._queues.digest() == found.digest
        # An interrupted rebuild starts again.
        matches = matches and not found.dispatched == 0 < log_start
        matches = matches and self._queues.starts_below(log_start)
        if matches:
            self._queues.trim_all_to(log_start)
        return matches

    def _reset_queues(self, log_start: int) -> None:
        """Prepare a rebuild: remove all units whose records are in the log.

        Keep the units of expired records if they can be read.
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
        """Finish deletions of topics that a crash or a disk error interrupted."""
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

    def _read_log(self, begin: int, confirmed: int) -> tuple[int, int]:
        """Add the records between two physical offsets to queues and index.

        Return the offset up to which queues and index have all records, and the end of the log.
        """
        if self._ends_at(begin):
            return begin, begin
        # numpy takes 80 ms to import: not for a store that was closed and has nothing to read.
        from aerobee_broker.store.recovery.derive import Deriver
        from aerobee_broker.store.recovery.walk import Walk

        log = self._log
        deriver = Deriver(
            log=log,
            dispatch=self._dispatch,
            on_damage=self._damage.report,
            on_deletion=self._on_deletion,
            deleted_topics=self._deleted_topics,
            queues_from=self._queues_from,
            index_from=self._index_from,
            lost_bytes=self._lost_bytes,
        )
        walk = Walk(
            log=log,
            deriver=deriver,
            damage=self._damage,
            on_event=self._event,
            durable=self._durable,
            check_crc=self._check_crc,
            whole_crc=self._whole_crc,
            over_damage=not self._replicated,
        )
        total = log.starts[-1] + log.file_size - begin
        reported = begin

        def on_progress(at: int) -> None:
            nonlocal reported
            if at - reported >= _PROGRESS_BYTES:
                reported = at
                self._event("recovery_progress", {"bytes": at - begin, "at_most": total})

        derived, ended = walk.run(begin, confirmed, derive=True, on_progress=on_progress)
        self.lost_bytes = deriver.lost_bytes
        if ended:
            return derived, derived
        return derived, walk.run(derived, _NOWHERE, derive=False, on_progress=on_progress).at

    def _ends_at(self, physical_offset: int) -> bool:
        """Return whether the log certainly ends at this physical offset.

        It does if the file is missing, or if zeros follow the durable end.
        """
        if self._log.start_at(physical_offset) not in self._log.starts:
            return True
        if physical_offset != self._durable:
            return False
        return not any(self._log.read(physical_offset, BLANK_RESERVE))

    def _check_tail(self, read_from: int, end: int, short_at: int | None) -> None:
        """Check records at the end of the log that recovery did not read. Report damage.

        A replica checks the last 64 MiB, because it must not be elected if it has lost the end of
        its log. Without replicas, only the records after the end of a file that was too short are
        checked. Raises OSError.
        """
        begin = max(self._log.min_offset, end - _TAIL_BYTES) if self._replicated else read_from
        begin = min(begin, end if short_at is None else short_at)
        if begin >= min(read_from, end):
            return
        from aerobee_broker.store.recovery.scan import boundary_before, verify_all

        log, limit = self._log, min(read_from, end)
        for piece in verify_all(log, boundary_before(log, begin), limit):
            if piece.damaged is not None:
                path = log.path_of(piece.damaged.begin)
                self._damage.report_range(path, piece.damaged, piece.reason)
