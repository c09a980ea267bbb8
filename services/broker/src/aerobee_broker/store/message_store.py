"""The message store: a commit log and the files derived from it, behind one interface.

    DATA/broker/store/
      commitlog/      records, the source of everything else              may never be lost
      consumequeue/   positions of the records of each message queue      may be lost: rebuilt
      index/          positions of the records of each key                may be lost: rebuilt
      checkpoint      offsets up to which the files above are durable     may be lost: rebuilt
      diverged/       bytes that were cut off the log                     (`cut.py`)
      abort           exists while the store is open, or after a crash
      lock            held while the store is open
      config/deletedTopics.json   topic → physical offset below which its records are deleted

append (memory) → write (operating system) → sync (disk) → confirm: visible (`flush.py`).

The event loop's thread owns the store. `maintain_files`, and the methods of `flush` that say so,
run on the flusher thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, Self

from aerobee_broker.disk import Disk, FileLock
from aerobee_broker.errors import (
    NO_DESCRIPTOR,
    DiskFull,
    NotMaster,
    StoreFlushError,
    StoreLocked,
    StoreOpenError,
    StoreReadError,
    StoreReadOnly,
    StoreWriteError,
    reason_of,
)
from aerobee_broker.store.append import Appender
from aerobee_broker.store.damage import DamageRegister, EventListener, ignore_event
from aerobee_broker.store.derived.checkpoint import Checkpoint, CheckpointFile
from aerobee_broker.store.derived.derived_flush import DerivedFlush
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.derived.topic_encoding import TagsCode
from aerobee_broker.store.flush import Flush
from aerobee_broker.store.follow import LogFollower
from aerobee_broker.store.integrity.repair import LogRepair
from aerobee_broker.store.integrity.scrub import Scrub
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.log.open_files import OpenFiles
from aerobee_broker.store.messages import (
    Appended,
    AppendedBatch,
    NewBatch,
    NewMessage,
)
from aerobee_broker.store.options import StoreOptions
from aerobee_broker.store.reading.reader import Reader
from aerobee_broker.store.recovery.recovery import Recovery
from aerobee_broker.store.retention.cleaning import Cleaning
from aerobee_broker.store.retention.deleted_topics import DeletedTopics
from aerobee_broker.store.retention.retention import Retention
from aerobee_broker.store.ship import LogShipper
from aerobee_broker.store.truncation import Cut, Cutter
from aerobee_wire.message_id import pack_host

_HELD_MS = 10_000  # a clock may be this far behind the last store time


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...


class MessageStore:
    """Connects the parts of the store.

    `flush` makes appends durable and visible. `cleaning` deletes log files that have expired.
    `follower` appends the log of a master on a slave (`follow.py`), and `shipper` reads it on the
    master (`ship.py`). The methods that read are methods of Reader (`reading/reader.py`). `damage`
    is the damage of the log found since the start. `repair` repairs it (`integrity/repair.py`).
    """

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        *,
        clock: Clock,
        disk: Disk,
        store_host: str,
        tags_code_of: Mapping[str, TagsCode] | None = None,
        on_event: EventListener = ignore_event,
    ) -> None:
        """Create a closed store, without reading a file. Call `open` next.

        `tags_code_of` has the topics whose consume queues contain another code than the hash of
        TAGS, for example a deliver time. `on_event` receives the name and fields of events to log.
        """
        self.path = path
        self._clock = clock
        self._disk = disk
        self._event = on_event
        self._options = options
        self._lock: FileLock | None = None
        self.damage = DamageRegister(on_event, repairable=options.replicated)
        self._deleted_topics = DeletedTopics(disk, path / "config" / "deletedTopics.json")
        self._open_files = OpenFiles(disk, options.max_open_files)
        self._log = CommitLog(
            disk,
            path / "commitlog",
            options.commit_log_file_size,
            self._open_files,
            step=options.commit_log_step,
        )
        self._tags_code_of = dict(tags_code_of or {})
        self._dispatch = Dispatch.of_store(
            disk, path, options, self._open_files, self._tags_code_of
        )
        self._queues = self._dispatch.queues
        self._checkpoint_file = CheckpointFile(disk, path / "checkpoint")
        log, dispatch, deleted_topics = self._log, self._dispatch, self._deleted_topics
        checkpoint_file, replicated = self._checkpoint_file, options.replicated
        self._derived_flush = DerivedFlush(disk, log, dispatch, checkpoint_file, options)
        reader = Reader(log, dispatch, deleted_topics, self.damage, clock.monotonic_ms)
        self.topic_times = reader.topic_times
        self._retention = Retention(disk, path, log, options, self.topic_times)
        self.flush = Flush(
            log, dispatch, checkpoint_file, deleted_topics, on_event, replicated=replicated
        )
        self.cleaning = Cleaning(
            disk,
            log,
            dispatch,
            derived_flush=self._derived_flush,
            retention=self._retention,
            interval_ms=options.clean_interval_ms,
            on_event=on_event,
        )
        if replicated:
            self.cleaning.protect(lambda: self._dispatch.confirmed)
        self._appender = Appender(log, dispatch, pack_host(store_host), options)
        parts = self._derived_flush, self._retention, deleted_topics
        self.follower = LogFollower(
            log, dispatch, self.flush, parts, damage=self.damage, on_event=on_event
        )

        self.topics, self.queues = self._queues.topics, self._queues.queue_ids
        self.deleted_below = self._deleted_topics.deleted_below
        self.enable_read_retries = reader.enable_retries
        self.read, self.get, self.query = reader.read, reader.get, reader.query
        self.units, self.store_timestamp = reader.units, reader.store_timestamp
        self.log_timestamp = reader.log_timestamp
        self.min_offset, self.max_offset = reader.min_offset, reader.max_offset
        self.search_offset = reader.search_offset
        self.indexed, self.indexed_record = reader.indexed, reader.indexed_record
        self.is_indexed = reader.is_indexed
        self.repair = LogRepair(disk, log, dispatch, self._derived_flush, self.damage)
        self.ended_in_order = True  # whether the last process closed the store in order

    # ---- open, close ----

    def open(self) -> Self:
        """Lock the directory and recover its content. Return the store itself.

        Raises StoreLocked, CommitLogBroken, ConfigFileDamaged, StoreOpenError.
        """
        try:
            self._open()
        except OSError as error:
            self.abandon()
            raise StoreOpenError(f"the store in {self.path} cannot be opened: {error}") from error
        except BaseException:
            self.abandon()
            raise
        return self

    def _open(self) -> None:
        disk = self._disk
        for folder in ("commitlog", "consumequeue", "index", "config"):
            disk.make_directory(self.path / folder)
        self._lock = disk.lock(self.path / "lock")
        if self._lock is None:
            raise StoreLocked(self.path)
        clean = self.ended_in_order = not disk.exists(self.path / "abort")
        disk.open(self.path / "abort", create=True).close()
        disk.sync_directory(self.path)
        if not self._deleted_topics.load():
            self._event("file_unreadable", {"file": str(self._deleted_topics.path)})
        recovery = Recovery(
            self._log,
            self._dispatch,
            self._checkpoint_file,
            self._deleted_topics.offsets,
            self._options,
            on_deletion=self._note_deletion,
            damage=self.damage,
            on_event=self._event,
        )
        checkpoint = recovery.run(clean=clean)
        self._deleted_topics.end_at(self._log.end)
        self.follower.begin(recovery.lost_bytes)
        self.cleaning.trim_all()
        soon = not clean or self.corruption_count > 0
        self._derived_flush.begin(checkpoint.dispatched, self._clock.monotonic_ms(), soon=soon)
        self._retention.evaluate(self._clock.now_ms())

    def _note_deletion(self, topic: str, below: int) -> None:
        self._deleted_topics.found(self._event, self._log.min_offset, topic, below)

    def close(self) -> None:
        """Make everything appended durable, and close the store.

        The checkpoint covers all confirmed messages, so the next `open` does not need to read them.
        Raises StoreWriteError, StoreFlushError. After an error, the next `open` reads them.
        """
        try:
            if not self.flush.read_only_reason:
                self.flush.write()
                flushed = self.flush.sync()
                if not self._options.replicated:
                    self.flush.confirm(flushed)
                self._finish()
        finally:
            self.abandon()

    def _finish(self) -> None:
        try:
            self._derived_flush.finish()
            while self.cleaning.remove_one():
                pass
            self._log.close()
            self._disk.remove(self.path / "abort")
            self._disk.sync_directory(self.path)
        except OSError as error:
            raise StoreFlushError(f"the store in {self.path} was not closed: {error}") from error

    def abandon(self) -> None:
        """Release the files and the lock without a flush. The next `open` recovers the store."""
        self.flush.close()
        self._log.abandon()
        self._open_files.close()
        self._checkpoint_file.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def use(self, options: StoreOptions) -> None:
        """Use the limits of retention, disk and bodies in `options`. Other options stay."""
        self._retention.use(options)
        self._appender.use(options)

    # ---- positions and state ----

    @property
    def end_offset(self) -> int:
        """The physical offset after the last appended byte."""
        return self._log.end

    @property
    def written_offset(self) -> int:
        return self._log.written

    @property
    def flushed_offset(self) -> int:
        return self._log.flushed

    @property
    def confirmed_offset(self) -> int:
        """The physical offset below which all messages are visible."""
        return self._dispatch.confirmed

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message appended to a queue gets."""
        queue = self._queues.get(topic, queue_id)
        return queue.next_offset if queue else 0

    @property
    def min_physical_offset(self) -> int:
        return self._log.min_offset

    @property
    def corruption_count(self) -> int:
        """The number of damaged records found since the start."""
        return self.damage.count

    @property
    def disk_full_reason(self) -> str:
        """The reason why the store refuses producers, or "" if it accepts them."""
        if self._dispatch.error is not None:
            return f"consume queues cannot be written: {self._dispatch.error}"
        return self._retention.full

    # ---- append ----

    def append(self, messages: Sequence[NewMessage], *, reserve: bool = False) -> list[Appended]:
        """Append all messages or none, in memory. The caller must then use `flush`.

        Use `reserve` for messages that were accepted earlier and move to another topic. They may
        use the disk space that the warning watermark keeps from producers, and may be larger than
        messages of producers. Raises MessageIllegal, DiskFull, StoreReadOnly, NotMaster.
        """
        self.check_open_to_appends(reserve=reserve)
        return self._appender.append(messages, self._store_time(), accepted=reserve)

    def append_batch(self, batch: NewBatch) -> AppendedBatch:
        """Append messages of one topic and queue.

        The method makes the same records as `append`, and takes less than half the time for a large
        batch. Raises the same errors as `append`.
        """
        self.check_open_to_appends(reserve=False)
        return self._appender.append_batch(batch, self._store_time())

    def _store_time(self) -> int:
        """Return the store time (ms) for the next message.

        If the clock is up to 10 s behind the last store time, return the last store time, so that
        store times do not decrease. The clock of a new master may be behind. If the clock was set
        back further, the store time follows it, because delay levels count from the store time.
        """
        now_ms, last_ms = self._clock.now_ms(), self._dispatch.stored_ms
        return last_ms if now_ms < last_ms <= now_ms + _HELD_MS else now_ms

    def check_open_to_appends(self, *, reserve: bool) -> None:
        """Raise the error that `append` would raise now: DiskFull, StoreReadOnly, NotMaster."""
        if self.flush.read_only_reason:
            raise StoreReadOnly(self.flush.read_only_reason)
        if self.flush.role_reason:
            raise NotMaster(self.flush.role_reason)
        if self.flush.append_error is not None:
            raise self.flush.append_error
        refused = self._retention.stop if reserve else self.disk_full_reason
        if refused:
            raise DiskFull(refused)

    def expiries(self, physical_offsets: Sequence[int], now_ms: int) -> list[int]:
        """Return for each record the earliest time at which age alone removes it.

        Times are in milliseconds since the epoch. A time of 0 means never. The time of a topic with
        its own retention time is exact; otherwise the record goes with its file. Size limits and
        protected files are ignored.
        """
        by_file = self._retention.expiries(physical_offsets, now_ms)
        if not self.topic_times.in_use:
            return by_file
        return [
            self._own_expiry(offset, expiry)
            for offset, expiry in zip(physical_offsets, by_file, strict=True)
        ]

    def _own_expiry(self, physical_offset: int, by_file: int) -> int:
        found = self.indexed_record(physical_offset)
        if found is None:
            return by_file
        own = self.topic_times.expiry_ms(found.topic, found.store_timestamp_ms)
        return by_file if own is None else own

    def set_tags_code(self, topic: str, code: TagsCode) -> None:
        """Let the consume queues of a new topic contain this code instead of the hash of TAGS.

        The constructor must receive the code when the store is opened the next time.
        """
        self._tags_code_of[topic] = code

    def clear_tags_code(self, topic: str) -> None:
        """Remove the code of a topic that was deleted."""
        self._tags_code_of.pop(topic, None)

    # ---- deletion ----

    def delete_topic(self, topic: str, below: int | None = None) -> None:
        """Remove the messages of a topic at once. Their bytes stay until their files expire.

        A later topic of the same name starts at queue offset 0. `below` is the physical offset of
        the deletion, by default the end of the log. A replica passes the offset up to which its
        queues have all records. Raises StoreWriteError.
        """
        place = self._log.end if below is None else below
        try:
            self._deleted_topics.add(topic, place, self.cleaning.deleted_below)
        except OSError as error:
            raise StoreWriteError(f"the topic {topic} was not deleted: {error}") from error
        self._dispatch.forget_topic(topic)
        directory = self._queues.folder / topic
        try:
            self._queues.delete_topic(topic)
        except OSError as error:  # it uses disk space until the next start deletes it
            fields = {"directory": str(directory), "reason": str(error)}
            self._event("directory_left", fields)
        self.cleaning.cancel_removals_in(directory)
        self._derived_flush.request()

    def deleted_at_end(self) -> list[str]:
        """Return the topics whose deletions come after the last record of the log.

        No record of the log proves these deletions. Raises OSError.
        """
        end = self._log.end
        before = end - self._log.file_size  # the file of `end` may end in a blank record
        return [
            topic
            for topic in self._deleted_topics.from_on(before)
            if self._log.behind_blank(self.deleted_below(topic)) >= end
        ]

    def undo_deletions(self, topics: Collection[str]) -> None:
        """Restore deleted topics and close the store. The next `open` rebuilds queues and index.

        A replica calls this if the log of the new master does not contain the deletions. Raises
        OSError.
        """
        self._checkpoint_file.write(
            Checkpoint(self._log.file_size, flushed=self._log.flushed, confirmed=0)
        )
        self._deleted_topics.undo(topics)
        self.abandon()

    def take_deletions(self, deleted_topics: Mapping[str, int]) -> None:
        """Add the deletions of the store that this store copies. Raises OSError."""
        self._deleted_topics.take({**self.deleted_topics, **deleted_topics})

    @property
    def deleted_topics(self) -> Mapping[str, int]:
        """Deleted topic → physical offset below which the records of the topic are deleted."""
        return self._deleted_topics.offsets

    # ---- replicas ----

    def shipper(self) -> LogShipper:
        """Return a reader of the log for one replica."""
        return LogShipper(self._disk, self._log, self.damage)

    def scrub(self) -> Scrub:
        return Scrub(self._disk, self._log, self.damage, partial(self.read, max_messages=1))

    def fronts(self, begin: int = 0) -> dict[tuple[str, int], int]:
        """Return the next queue offset of each queue without records at or after `begin`.

        The keys are (topic, queue id). All messages of these queues have expired, or are before the
        physical offset `begin`. A copy of this store whose log begins at `begin` needs these
        offsets (`LogFollower.begin_at`). Raises StoreReadError.
        """
        self._queues.trim_all_to(self._log.min_offset)
        return self._queues.fronts(max(begin, self._log.min_offset))

    def cut(self, physical_offset: int, epoch: int) -> Cut:
        """End the log at this physical offset, and keep the cut bytes in a file (`cut.py`).

        The method blocks, and no other part may use the store meanwhile. If confirmed messages were
        cut, it closes the store, which must then be opened again. Raises CutRefused, OSError.
        """
        cutter = Cutter(
            self._disk,
            self.path / "diverged",
            self._log,
            self._dispatch,
            self._checkpoint_file,
            self._deleted_topics,
        )
        cut = cutter.cut(physical_offset, epoch)
        self.damage.end_at(physical_offset)
        if cut.confirmed:
            self.abandon()
        return cut

    # ---- upkeep ----

    def maintain(self, now_ms: int) -> None:
        """Do a bounded amount of work for retention and the checkpoint.

        Call it on the event loop, once a second.
        """
        self.topic_times.step(now_ms)
        if self.flush.read_only_reason:
            return
        try:
            self._derived_flush.step(self._clock.monotonic_ms())
            self.cleaning.trim_some()
            self._dispatch.error = None
        except (OSError, StoreReadError) as error:
            self._dispatch.error = error
        self.cleaning.run_when_due(now_ms, self._clock.monotonic_ms())
        self.damage.begin_at(self.min_physical_offset)

    @property
    def has_file_work(self) -> bool:
        """Return whether `maintain_files` has work.

        Call it on the event loop while no `maintain_files` runs.
        """
        return (
            self._dispatch.wants_numpy
            or self._log.wants_next_file()
            or self.cleaning.has_removals
            or self._derived_flush.has_work
        )

    def maintain_files(self) -> bool:
        """Allocate the next log file, remove expired files, and sync derived files.

        Call it on the flusher thread after each `maintain`. A call takes a few milliseconds. Return
        True if the caller must call it again at once.
        """
        if self.flush.read_only_reason:
            return False
        try:
            self._dispatch.import_numpy()
            if self._log.wants_next_file():
                self._allocate_ahead()
            return self.cleaning.remove_one() or self._derived_flush.work()
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:  # nothing is lost: the next call continues
                self._event("flush_put_off", {"directory": str(self.path), "reason": str(error)})
            else:
                reason = f"flushing the derived files failed: {reason_of(error)}"
                self.flush.become_read_only(reason, self.path)
            return False

    def _allocate_ahead(self) -> None:
        try:
            self._log.allocate_next_file()
        except OSError as error:
            # The write that needs the file allocates it, and fails with the right error.
            self._event("allocation_failed", {"file": str(self._log.folder), "reason": str(error)})
