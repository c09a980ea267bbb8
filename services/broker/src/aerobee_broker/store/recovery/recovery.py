"""Recovery: what a store does between finding its files and serving them.

The commit log is the truth. From the checkpoint on it is read record by record; consume queues and
index are trusted up to the checkpoint, wiped behind it and derived again. Where the records end,
the log ends.

A bad record is judged by where it lies. At or behind the offset that was known to be durable it is
the torn tail of a crash: never acknowledged, cut off. Before that offset it is damage: reported
with file and physical offset, kept as a hole, and reading goes on behind it. Without a checkpoint
nothing is known to be durable; then a bad record is damage when a whole record follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from aerobee_broker.disk import Disk
from aerobee_broker.errors import CommitLogBroken, StoreReadError, is_unreadable
from aerobee_broker.store.derived.checkpoint import Checkpoint, CheckpointFile, IndexState
from aerobee_broker.store.derived.consume_queue import ConsumeQueues
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.derived.index import Index
from aerobee_broker.store.log.commit_log import BLANK_RESERVE, CommitLog

if TYPE_CHECKING:
    from aerobee_broker.store.recovery.derive import Damage, Deriver
    from aerobee_broker.store.recovery.scan import End

Event = Callable[[str, Mapping[str, object]], None]

_NOWHERE = 1 << 62
_PROGRESS_BYTES = 256 << 20


class Recovery:
    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        *,
        queues: ConsumeQueues,
        index: Index | None,
        dispatch: Dispatch,
        checkpoint_file: CheckpointFile,
        deleted_topics: Mapping[str, int],
        check_crc: bool,
        whole_crc: bool,
        on_event: Event,
        on_damage: Damage,
    ) -> None:
        self._disk = disk
        self._log = log
        self._queues = queues
        self._index = index
        self._dispatch = dispatch
        self._checkpoint_file = checkpoint_file
        self._deleted = deleted_topics
        self._check_crc = check_crc
        self._whole_crc = whole_crc
        self._event = on_event
        self._damage = on_damage
        self._durable: int | None = None  # every byte below was durable; None: not known
        self._queues_from = 0  # records below are in the consume queues
        self._index_from = 0
        self._lost_bytes = 0  # of damage: bounds the units that may be missing

    def run(self, *, clean: bool) -> Checkpoint:
        """Brings everything to the end of the log. Returns the checkpoint that holds now. Raises
        OSError, CommitLogBroken.
        """
        found = self._read_checkpoint()
        if found is not None and found.file_size != self._log.file_size:
            raise CommitLogBroken(
                f"the store was made with mappedFileSizeCommitLog = {found.file_size}, and it is "
                f"{self._log.file_size} now: set it back"
            )
        for path in self._log.load():
            self._event("log_file_extended", {"file": str(path)})
        if found is not None:
            self._check(found)
            self._durable = found.flushed
        else:
            self._durable = None if self._log.starts else 0
        checkpoint = self._take_over(found, clean=clean)
        self._dispatch.timestamp_ms = checkpoint.log_timestamp_ms
        end = self._read_log(min(self._queues_from, self._index_from))
        # Without a checkpoint nothing tells: then at least what the last file has is made sure.
        durable = self._log.start_at(end) if self._durable is None else self._durable
        self._log.begin_at(end, min(end, durable))
        self._dispatch.recover(0, end, 0)
        self._queues.fronts.clear()
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

    def _check(self, checkpoint: Checkpoint) -> None:
        """That the log has the files which the checkpoint saw."""
        log = self._log
        end = log.starts[-1] + log.file_size if log.starts else 0
        if end < checkpoint.flushed:
            raise CommitLogBroken(
                f"{log.path_of(end)} is missing from the commit log, which reached "
                f"{checkpoint.flushed}: put it back from a copy; to go on without its messages, "
                f"remove {self._checkpoint_file.path}"
            )

    def _take_over(self, found: Checkpoint | None, *, clean: bool) -> Checkpoint:
        """Loads what the checkpoint covers. What it does not cover, or does not fit, goes, but not
        before a checkpoint says so: a crash in the middle must not leave the old one beside new
        files.
        """
        low = self._log.min_offset if self._log.starts else 0
        checkpoint = found or Checkpoint(self._log.file_size)
        queues_fit = index_fits = False
        if found is not None:
            queues_fit = self._fits(lambda: self._load_queues(found, low))
            if self._index is not None:
                load, state, end_ms = self._index.load, found.index, found.index_timestamp_ms
                in_order = clean and queues_fit
                index_fits = self._fits(lambda: load(state, end_ms, clean=in_order))
        if not queues_fit:
            checkpoint = Checkpoint(
                self._log.file_size, index=checkpoint.index, flushed=checkpoint.flushed
            )
        if not index_fits:
            checkpoint = _without_index(checkpoint)
        # Where nothing tells what was durable, nothing may say so before the log is read: a
        # checkpoint of 0 bytes would make a torn tail of the whole log.
        if checkpoint != found and self._durable is not None:
            self._checkpoint_file.write(checkpoint)
        self._queues_from = max(low, checkpoint.dispatched)
        self._lost_bytes += max(0, low - checkpoint.dispatched) if queues_fit else 0
        if not queues_fit:
            self._rebuild("consumequeue", found)
            self._reset_queues(low)
        elif not clean:
            self._queues.wipe_behind()
        self._index_from = self._queues_from
        if self._index is not None:
            if not index_fits:
                self._rebuild("index", found)
                self._index.reset(low)
            self._index_from = max(low, self._index.end_offset)
        return checkpoint

    @staticmethod
    def _fits(load: Callable[[], bool]) -> bool:
        """What cannot be read is as good as lost: it will be rebuilt. Raises OSError,
        StoreReadError when it can be read later."""
        try:
            return load()
        except (OSError, StoreReadError) as error:
            if not is_unreadable(error):
                raise
            return False

    def _load_queues(self, found: Checkpoint, log_start: int) -> bool:
        self._queues.load(found.dispatched)
        fit = self._queues.digest() == found.digest
        self._finish_deletions()
        # Without what a deletion left, whether the checkpoint was taken before it or after.
        fit = fit or self._queues.digest() == found.digest
        # A rebuild that was cut short begins anew.
        fit = fit and not found.dispatched == 0 < log_start
        fit = fit and self._queues.begin_below(log_start)
        if fit:
            self._queues.settle_all(log_start)
        return fit

    def _reset_queues(self, log_start: int) -> None:
        """Of what the log has; of what it has no longer, as much stays as can be trusted."""

        def load() -> bool:
            self._queues.load_fronts(log_start)
            self._finish_deletions()
            self._queues.wipe_behind()
            return True

        self._queues.forget()
        if log_start == 0 or not self._fits(load):
            self._queues.reset()

    def _finish_deletions(self) -> None:
        """Of topics whose deletion a crash, or the disk, cut short."""
        for topic, place in self._deleted.items():
            if self._queues.ends_below(topic, place):
                try:
                    self._queues.delete_topic(topic)
                except OSError as error:
                    directory = str(self._queues.folder / topic)
                    self._event("directory_left", {"directory": directory, "reason": str(error)})

    def _rebuild(self, what: str, found: Checkpoint | None) -> None:
        if self._log.starts:
            reason = "it does not fit the checkpoint" if found else "there is no checkpoint"
            self._event("derived_files_rebuilt", {"directory": what, "reason": reason})

    # ---- reading ----

    def _read_log(self, place: int) -> int:
        """Derives everything from `place` on. Returns the end of the log."""
        if self._nothing_at(place):
            return place
        # numpy takes 80 ms to import: not for a store that was closed and has nothing to read.
        from aerobee_broker.store.recovery.derive import Deriver
        from aerobee_broker.store.recovery.scan import Stop, scan_log

        log = self._log
        deriver = Deriver(
            log,
            self._queues,
            self._index,
            self._dispatch,
            deleted_topics=self._deleted,
            queues_from=self._queues_from,
            index_from=self._index_from,
            on_damage=self._damage,
        )
        deriver.lost_bytes = self._lost_bytes
        crc_from = self._durable if self._whole_crc and self._durable is not None else _NOWHERE
        total = log.starts[-1] + log.file_size - place
        begun = reported = place
        while log.start_at(place) in log.starts:
            file_end = log.start_at(place) + log.file_size
            if place + BLANK_RESERVE > file_end:
                place = file_end
                continue
            records, place, end = scan_log(log, place, check_crc=self._check_crc, crc_from=crc_from)
            deriver.derive(records, place)
            if end.stop is Stop.BLANK:
                place = file_end
            elif end.stop is not Stop.MORE:
                following = self._judge(deriver, place, end)
                if following is None:
                    break
                place = following
            if place - reported >= _PROGRESS_BYTES:
                reported = place
                self._event("recovery_progress", {"bytes": place - begun, "at_most": total})
        return place

    def _nothing_at(self, place: int) -> bool:
        """The log ends there: no file, or zeros where everything durable ends."""
        if self._log.start_at(place) not in self._log.starts:
            return True
        return place == self._durable and not any(self._log.read(place, BLANK_RESERVE))

    def _judge(self, deriver: Deriver, place: int, end: End) -> int | None:
        """Where reading goes on behind a bad record; None when the log ends at it."""
        from aerobee_broker.store.recovery.scan import find_record

        durable = self._durable
        if durable is not None and place >= durable:
            self._tell_torn(place, end)
            return None
        limit = self._log.starts[-1] + self._log.file_size if durable is None else durable
        behind = place + (len(end.damaged.data) if end.damaged else 1)
        following = find_record(self._log, behind, limit, check_crc=self._check_crc)
        if following is None:
            if durable is None:
                self._tell_torn(place, end)
                return None
            following = durable
        reason = end.reason or "zeros in the place of a record"
        self._damage(self._log.path_of(place), place, reason)
        deriver.lost_bytes += following - place
        if end.damaged is not None and behind <= following:
            deriver.derive(end.damaged, behind)  # its unit is known, so it keeps its queue offset
        return following

    def _tell_torn(self, place: int, end: End) -> None:
        if end.reason:
            self._event(
                "log_tail_truncated",
                {
                    "file": str(self._log.path_of(place)),
                    "physical_offset": place,
                    "reason": end.reason,
                },
            )


def _without_index(checkpoint: Checkpoint) -> Checkpoint:
    return Checkpoint(
        checkpoint.file_size,
        checkpoint.dispatched,
        checkpoint.digest,
        IndexState(),
        checkpoint.flushed,
        checkpoint.log_timestamp_ms,
        checkpoint.queue_timestamp_ms,
    )
