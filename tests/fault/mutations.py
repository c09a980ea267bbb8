"""Mutations: defects that the fault suite must notice. Each replaces one function of the store or
of the group commit by one that is wrong in the way its name says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.commit.group_commit import GroupCommit
from aerobee_broker.delivery.lite.positions import LitePositions
from aerobee_broker.delivery.pop.lease_journal import LeaseJournal
from aerobee_broker.errors import StoreError
from aerobee_broker.store.derived.checkpoint import Checkpoint, CheckpointFile
from aerobee_broker.store.derived.derived_flush import DerivedFlush
from aerobee_broker.store.derived.dispatch import Dispatch, UnconfirmedAppend
from aerobee_broker.store.flush import Flush
from aerobee_broker.store.follow import LogFollower
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.reading import record_check
from aerobee_broker.store.recovery import scan, walk
from aerobee_broker.store.ship import Chunk, LogShipper
from aerobee_broker.store.truncation import Cutter
from aerobee_wire import record

Mutation = Callable[[pytest.MonkeyPatch], None]


def acknowledge_before_fsync(patch: pytest.MonkeyPatch) -> None:
    def sync(self: CommitLog) -> int:
        self.flushed = self.written
        return self.written

    patch.setattr(CommitLog, "sync", sync)


def skip_the_crc(patch: pytest.MonkeyPatch) -> None:
    good = scan.scan

    def scan_unchecked(*given: Any, check_crc: bool, **named: Any) -> Any:
        return good(*given, check_crc=False)

    patch.setattr(scan, "scan", scan_unchecked)
    patch.setattr(record_check, "crc32", lambda data: 0)
    patch.setattr(record, "crc_tail", lambda crc: b"")
    patch.setattr(record, "has_crc_tail", lambda tail: False)
    patch.setattr(record_check, "_BAD_BODY", "")


def drop_one_dispatch(patch: pytest.MonkeyPatch) -> None:
    good = Dispatch.add
    count = 0

    def add(self: Dispatch, batch: UnconfirmedAppend) -> None:
        nonlocal count
        count += 1
        if count % 10 == 0:
            batch.nexts = batch.nexts[1:]
        good(self, batch)

    patch.setattr(Dispatch, "add", add)


def forget_the_blank_record(patch: pytest.MonkeyPatch) -> None:
    def roll(self: CommitLog) -> int:
        following = self.start_at(self.end) + self.file_size
        self._pending.append((self._parts_at, self._parts))
        self._parts, self._parts_at = [], following
        self.end = following
        return following

    patch.setattr(CommitLog, "roll", roll)


def ignore_a_failed_fsync(patch: pytest.MonkeyPatch) -> None:
    def sync(self: CommitLog) -> int:
        target = self.written
        for start in list(self._unsynced):
            with contextlib.suppress(OSError):
                self._unsynced.pop(start).sync()
        if self._names_unsynced:
            self._names_unsynced = False
            self._disk.sync_directory(self.folder)
        self.flushed = target
        return target

    patch.setattr(CommitLog, "sync", sync)


def expose_before_flush(patch: pytest.MonkeyPatch) -> None:
    good = Flush.write_sealed

    def write(self: Flush) -> int:
        written = good(self)
        self._dispatch.confirm(written)
        return written

    patch.setattr(Flush, "write_sealed", write)


def keep_records_behind_a_torn_tail(patch: pytest.MonkeyPatch) -> None:
    def begin_at(self: CommitLog, end: int, durable: int) -> None:
        self.end = self.written = self.flushed = self._parts_at = end
        for start in [start for start in self.starts if start >= end]:
            self.starts.remove(start)

    patch.setattr(CommitLog, "begin_at", begin_at)


def checkpoint_before_the_files_are_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DerivedFlush, "_sync_file", lambda self, path: None)


def take_a_torn_tail_for_damage(patch: pytest.MonkeyPatch) -> None:
    def judge(self: walk.Walk, place: int, end: Any, limit: int, *, derive: bool) -> int | None:
        self.damage.report(self.log.path_of(place), place, end.reason)
        return None

    patch.setattr(walk.Walk, "_judge", judge)


def skip_the_directory_sync_of_a_new_file(patch: pytest.MonkeyPatch) -> None:
    good = CommitLog._open_writer

    def open_writer(self: CommitLog, start: int) -> Any:
        file = good(self, start)
        self._names_unsynced = False
        return file

    patch.setattr(CommitLog, "_open_writer", open_writer)


def skip_the_rollback_of_a_failed_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatch, "roll_back", lambda self, written: None)


def trust_the_page_cache_after_a_failed_fsync(patch: pytest.MonkeyPatch) -> None:
    good = CommitLog.begin_at

    def begin_at(self: CommitLog, end: int, durable: int) -> None:
        good(self, end, end)

    patch.setattr(CommitLog, "begin_at", begin_at)


# ---- of the group commit, for the histories with a slow disk ----


def acknowledge_appends_of_the_running_sync(patch: pytest.MonkeyPatch) -> None:
    good = GroupCommit.advance

    def advance(self: GroupCommit) -> None:
        good(self)
        self._sent_waiters.release_up_to(self._store.end_offset)

    patch.setattr(GroupCommit, "advance", advance)


def forget_appends_of_the_running_sync(patch: pytest.MonkeyPatch) -> None:
    def on_flushed(self: GroupCommit, flushing: asyncio.Future[int]) -> None:
        self._on_disk = flushing.result()
        self.advance()
        self._end()

    patch.setattr(GroupCommit, "_on_flushed", on_flushed)


def drop_the_back_pressure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DurableLog, "check_room", lambda self: None)


WHILE_THE_DISK_IS_SLOW: tuple[Mutation, ...] = (
    acknowledge_appends_of_the_running_sync,
    forget_appends_of_the_running_sync,
    expose_before_flush,
)


def count_appends_during_a_write_as_written(patch: pytest.MonkeyPatch) -> None:
    good = CommitLog.write

    def write(self: CommitLog) -> int:
        good(self)
        self.written = self.end
        return self.written

    patch.setattr(CommitLog, "write", write)


# ---- of a replica that follows ----


def show_what_is_not_confirmed(patch: pytest.MonkeyPatch) -> None:
    good = LogFollower.confirm

    def confirm(self: LogFollower, confirmed: int, monotonic_ms: int) -> None:
        good(self, self._log.flushed, monotonic_ms)

    patch.setattr(LogFollower, "confirm", confirm)


def show_at_a_start_what_is_not_confirmed(patch: pytest.MonkeyPatch) -> None:
    good = CheckpointFile.read

    def read(self: CheckpointFile) -> Checkpoint | None:
        found = good(self)
        return found and replace(found, confirmed=found.flushed)

    patch.setattr(CheckpointFile, "read", read)


def ship_what_is_not_written(patch: pytest.MonkeyPatch) -> None:
    good = LogShipper.read

    def read(self: LogShipper, at: int, max_bytes: int, limit: int | None = None) -> Chunk | None:
        written, self._log.written = self._log.written, self._log.end
        try:
            return good(self, at, max_bytes, limit)
        except StoreError:
            return None
        finally:
            self._log.written = written

    patch.setattr(LogShipper, "read", read)


def leave_what_was_behind_a_cut(patch: pytest.MonkeyPatch) -> None:
    def cut(self: CommitLog, end: int) -> None:
        self._set_end(end)
        self._stale.clear()

    patch.setattr(CommitLog, "cut", cut)


def cut_before_the_checkpoint_is_lowered(patch: pytest.MonkeyPatch) -> None:
    good = Cutter._lower_checkpoint
    later = CommitLog.cut
    cutters: list[Cutter] = []

    def lower(self: Cutter, physical_offset: int) -> None:
        cutters.append(self)

    def cut(self: CommitLog, end: int) -> None:
        later(self, end)
        good(cutters.pop(), end)

    patch.setattr(Cutter, "_lower_checkpoint", lower)
    patch.setattr(CommitLog, "cut", cut)


def settle_before_the_lease_journal_is_durable(patch: pytest.MonkeyPatch) -> None:
    async def write(
        self: LeaseJournal, records: Any, roll_back: Any, dead_letters: Any = ()
    ) -> None:
        self._append(records, dead_letters)  # the next send brings it to the disk

    patch.setattr(LeaseJournal, "write", write)


def keep_no_position_in_a_lite_topic(patch: pytest.MonkeyPatch) -> None:
    def commit(self: LitePositions, *_: object) -> None:
        self.changes += 1

    patch.setattr(LitePositions, "commit", commit)


WITH_LITE_TOPICS: tuple[Mutation, ...] = (
    settle_before_the_lease_journal_is_durable,
    keep_no_position_in_a_lite_topic,
)

WHILE_A_REPLICA_FOLLOWS: tuple[Mutation, ...] = (
    show_what_is_not_confirmed,
    show_at_a_start_what_is_not_confirmed,
    ship_what_is_not_written,
    leave_what_was_behind_a_cut,
    cut_before_the_checkpoint_is_lowered,
    count_appends_during_a_write_as_written,
)

MUTATIONS: tuple[Mutation, ...] = (
    acknowledge_before_fsync,
    skip_the_crc,
    drop_one_dispatch,
    forget_the_blank_record,
    ignore_a_failed_fsync,
    expose_before_flush,
    keep_records_behind_a_torn_tail,
    checkpoint_before_the_files_are_durable,
    take_a_torn_tail_for_damage,
    skip_the_directory_sync_of_a_new_file,
    skip_the_rollback_of_a_failed_write,
    trust_the_page_cache_after_a_failed_fsync,
    count_appends_during_a_write_as_written,
)


def name_of(mutation: Mutation) -> str:
    return mutation.__name__.replace("_", " ")
