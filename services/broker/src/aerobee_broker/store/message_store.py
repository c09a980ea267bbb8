"""The message store: a commit log and what is derived from it, as one thing.

    DATA/broker/store/
      commitlog/      records, the truth                                  may never be lost
      consumequeue/   places of the records of each message queue         may be lost: rebuilt
      index/          places of the records of each key                   may be lost: rebuilt
      checkpoint      up to where all that is durable                     may be lost: rebuilt
      abort           there while the store is open, or after a crash
      lock            held while the store is open
      config/deletedTopics.json   topic → physical offset: its records below are no more

Owned by one thread, the loop's. `write_and_sync`, `sync` and `upkeep` alone run on another one, the
flusher's.

append (memory) → write (operating system) → sync (disk) → confirm: visible. Nothing is visible
before it is durable. After a failed sync the store is read-only for ever: the system may have
dropped what it could not write, and a later sync that succeeds proves nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from aerobee_broker.disk import Disk, Held
from aerobee_broker.errors import (
    NO_SPACE,
    DiskFull,
    MessageCorrupted,
    StoreFlushError,
    StoreLocked,
    StoreOpenError,
    StoreReadError,
    StoreReadOnly,
    StoreWriteError,
)
from aerobee_broker.store.append import Appender
from aerobee_broker.store.damage import DamageRegister, Event
from aerobee_broker.store.derived.checkpoint import CheckpointFile
from aerobee_broker.store.derived.consume_queue import ConsumeQueue, ConsumeQueues, TagsCode
from aerobee_broker.store.derived.derived_flush import DerivedFlush
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.derived.index import Index
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.log.open_files import OpenFiles
from aerobee_broker.store.messages import (
    Appended,
    AppendedColumns,
    Arrival,
    Corruption,
    NewColumns,
    NewMessage,
    ReadResult,
    Unit,
)
from aerobee_broker.store.options import MAX_BODY, RECORD_OVERHEAD, StoreOptions
from aerobee_broker.store.reading.reader import Reader
from aerobee_broker.store.recovery.recovery import Recovery
from aerobee_broker.store.retention.cleaning import Cleaning, NeededFrom
from aerobee_broker.store.retention.deleted_topics import DeletedTopics
from aerobee_broker.store.retention.retention import Retention
from aerobee_wire.message_id import pack_host
from aerobee_wire.record import Record
from aerobee_wire.status import MqError

_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_END_OF_TIME = (1 << 63) - 1


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...


def unheard(event: str, fields: Mapping[str, object]) -> None:
    """For those who do not want to know."""


class MessageStore:
    """See the head of the module."""

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        *,
        clock: Clock,
        disk: Disk,
        store_host: str,
        tags_code_of: Mapping[str, TagsCode],
        on_event: Event,
    ) -> None:
        """Use `open`."""
        self.path = path
        self.read_only_reason = ""
        self.rollback_count = 0  # of appends that could not be written
        self._append_block: MqError | None = None
        self._damage = DamageRegister(on_event)
        self._clock = clock
        self._disk = disk
        self._event = on_event
        self._options = options
        self._lock: Held | None = None
        self._deleted_topics = DeletedTopics(disk, path / "config" / "deletedTopics.json")
        self._open_files = OpenFiles(disk, options.max_open_files)
        self._log = CommitLog(
            disk, path / "commitlog", options.commit_log_file_size, self._open_files
        )
        self._queues = ConsumeQueues(
            disk,
            path / "consumequeue",
            options.consume_queue_file_size,
            self._open_files,
            tags_code_of,
        )
        self._index = (
            Index(
                disk,
                path / "index",
                options.index_slot_count,
                options.index_entry_count,
                self._open_files,
            )
            if options.index_enabled
            else None
        )
        self._dispatch = Dispatch(self._queues, self._index, options.unwritten_units)
        self._checkpoint_file = CheckpointFile(disk, path / "checkpoint")
        self._derived_flush = DerivedFlush(
            disk,
            self._log,
            queues=self._queues,
            index=self._index,
            dispatch=self._dispatch,
            checkpoint_file=self._checkpoint_file,
            interval_ms=options.checkpoint_interval_ms,
            interval_bytes=options.checkpoint_bytes,
        )
        self._retention = Retention(disk, path, self._log, options)
        self.cleaning = Cleaning(
            disk,
            self._log,
            queues=self._queues,
            index=self._index,
            derived_flush=self._derived_flush,
            retention=self._retention,
            interval_ms=options.clean_interval_ms,
            on_event=on_event,
        )
        self._reader = Reader(
            self._log,
            self._queues,
            self._index,
            self._dispatch,
            max_record=MAX_BODY + RECORD_OVERHEAD,
            monotonic_ms=clock.monotonic_ms,
            on_damage=self._damage.report,
        )
        self._appender = Appender(
            self._log,
            self._queues,
            self._dispatch,
            store_host=pack_host(store_host),
            max_message_size=options.max_message_size,
            whole_crc=options.whole_crc,
            indexed=options.index_enabled,
        )

    # ---- open, close ----

    @classmethod
    def open(
        cls,
        path: Path,
        options: StoreOptions,
        *,
        clock: Clock,
        disk: Disk,
        store_host: str,
        tags_code_of: Mapping[str, TagsCode] | None = None,
        on_event: Event = unheard,
    ) -> MessageStore:
        """Locks the directory, recovers what is there, and is ready.

        `tags_code_of`: topics whose units carry something else than the hash of TAGS, a deliver
        time for instance. `on_event` gets a name and fields, to be logged as they are. Raises
        StoreLocked, CommitLogBroken, StoreOpenError.
        """
        store = cls(
            path,
            options,
            clock=clock,
            disk=disk,
            store_host=store_host,
            tags_code_of=tags_code_of or {},
            on_event=on_event,
        )
        try:
            store._open()
        except OSError as error:
            store._release()
            raise StoreOpenError(f"the store in {path} cannot be opened: {error}") from error
        except BaseException:
            store._release()
            raise
        return store

    def _open(self) -> None:
        disk = self._disk
        for folder in ("commitlog", "consumequeue", "index", "config"):
            disk.make_directory(self.path / folder)
        self._lock = disk.lock(self.path / "lock")
        if self._lock is None:
            raise StoreLocked(self.path)
        clean = not disk.exists(self.path / "abort")
        disk.open(self.path / "abort", create=True).close()
        disk.sync_directory(self.path)
        if not self._deleted_topics.load():
            self._event("file_unreadable", {"file": str(self._deleted_topics.path)})
        recovery = Recovery(
            disk,
            self._log,
            queues=self._queues,
            index=self._index,
            dispatch=self._dispatch,
            checkpoint_file=self._checkpoint_file,
            deleted_topics=self._deleted_topics.places,
            check_crc=self._options.check_crc_on_recover,
            whole_crc=self._options.whole_crc,
            on_event=self._event,
            on_damage=self._damage.report,
        )
        checkpoint = recovery.run(clean=clean)
        self._deleted_topics.end_at(self._log.end)
        self.cleaning.settle_all()
        wanted = not clean or self.corruption_count > 0
        self._derived_flush.begin(checkpoint.dispatched, self._clock.monotonic_ms(), wanted=wanted)
        self._retention.look(self._clock.now_ms())

    def close(self) -> None:
        """Everything that was appended becomes durable, the checkpoint covers it, and the next
        open need not look. Raises StoreWriteError, StoreFlushError; then the next one will.
        """
        try:
            if not self.read_only_reason:
                self.write()
                self.confirm(self.sync())
                self._finish()
        finally:
            self._release()

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
        """Lets go of files and lock as a crash would: the next open recovers."""
        self._release()

    def _release(self) -> None:
        self.read_only_reason = self.read_only_reason or "it is closed"
        self._log.abandon()
        self._open_files.close()
        self._checkpoint_file.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # ---- where things are ----

    @property
    def end_offset(self) -> int:
        """After the last appended byte."""
        return self._log.end

    @property
    def written_offset(self) -> int:
        return self._log.written

    @property
    def flushed_offset(self) -> int:
        return self._log.flushed

    @property
    def confirmed_offset(self) -> int:
        """Everything below is visible."""
        return self._dispatch.confirmed

    @property
    def min_physical_offset(self) -> int:
        return self._log.min_offset

    @property
    def corruption_count(self) -> int:
        """Damaged records that were met since the start."""
        return self._damage.count

    @property
    def corruptions(self) -> Sequence[Corruption]:
        """The last 1,000 of them."""
        return self._damage.last

    @property
    def disk_full_reason(self) -> str:
        """Why producers are refused; empty when they are not."""
        if self._dispatch.error is not None:
            return f"consume queues cannot be written: {self._dispatch.error}"
        return self._retention.full

    # ---- append, write, sync, confirm ----

    def append(self, messages: Sequence[NewMessage], *, reserve: bool = False) -> list[Appended]:
        """Gives the messages their places, all or none; `write`, `sync`, `confirm` follow.

        `reserve`: messages that were accepted before, now on their way to another topic; they may
        use the space that the warning watermark keeps from producers, and be larger than a producer
        may send by now. Raises MessageIllegal,
        DiskFull, StoreReadOnly.
        """
        self.check_open_to_appends(reserve=reserve)
        return self._appender.append(messages, self._clock.now_ms(), accepted=reserve)

    def append_columns(self, columns: NewColumns) -> AppendedColumns:
        """`append` for messages of one topic and queue: the same records in less than half the
        time when they are many. Raises as `append` does.
        """
        self.check_open_to_appends(reserve=False)
        return self._appender.append_columns(columns, self._clock.now_ms())

    def check_open_to_appends(self, *, reserve: bool) -> None:
        """Raises DiskFull, StoreReadOnly, as `append` would now."""
        if self.read_only_reason:
            raise StoreReadOnly(self.read_only_reason)
        if self._append_block is not None:
            raise self._append_block
        refused = self._retention.stop if reserve else self.disk_full_reason
        if refused:
            raise DiskFull(refused)

    def seal(self) -> None:
        """On the loop: what was appended until now is what the next write takes. Raises
        StoreReadOnly; then it was not appended.
        """
        if self.read_only_reason and self._log.end > self._log.written:
            self.forget_unwritten()
            raise StoreReadOnly(self.read_only_reason)
        self._log.seal()

    def write(self) -> int:
        """Hands everything appended to the operating system, with one write a file.

        Returns the physical offset up to which it has. Raises StoreWriteError, or DiskFull when
        there is no room; the messages since the last write were not appended then.
        """
        self.seal()
        try:
            return self._write_sealed()
        except MqError:
            self.forget_unwritten()
            raise

    def write_and_sync(self) -> int:
        """On the flusher's thread: `write` of what was sealed, and `sync`.

        Returns what `sync` does. Raises as both; then `forget_unwritten` must follow on the loop.
        """
        self._write_sealed()
        return self.sync()

    def _write_sealed(self) -> int:
        try:
            return self._log.write()
        except OSError as error:
            path = self._log.path_of(self._log.written)
            if error.errno in NO_SPACE:
                raise DiskFull(f"there is no room on the disk for {path}: {error}") from error
            if error.errno in _NO_DESCRIPTOR:  # of opening it: nothing was written
                raise StoreWriteError(
                    f"the message was not stored: {path} cannot be opened for now: {error}; raise "
                    "the limit of open files"
                ) from error
            self._become_read_only(f"writing {path} failed: {error}")
            raise StoreWriteError(f"the message was not stored: {self.read_only_reason}") from error

    def forget_unwritten(self) -> None:
        """On the loop, while nothing is being written: what was not written was not appended."""
        self.rollback_count += 1
        self._log.forget_pending()
        self._dispatch.undo(self._log.written)
        try:
            self._deleted_topics.end_at(self._log.end)
        except OSError as error:
            self._become_read_only(f"writing {self._deleted_topics.path} failed: {error}")

    def block_appends(self, error: MqError) -> None:
        """Until `unblock_appends`, appends fail with this error."""
        self._append_block = error

    def unblock_appends(self) -> None:
        self._append_block = None

    def sync(self) -> int:
        """On the flusher's thread. Makes everything durable that was written when it began.

        Returns that physical offset. Raises StoreFlushError; the store is read-only then.
        """
        if self.read_only_reason:
            raise StoreFlushError(f"nothing was flushed: {self.read_only_reason}")
        before = self._log.flushed
        try:
            flushed = self._log.sync()
            if flushed != before:
                self._checkpoint_file.note_flushed(flushed)
        except OSError as error:
            self._become_read_only(f"flushing {self._log.folder} failed: {error}")
            raise StoreFlushError(
                f"the message may not be stored: {self.read_only_reason}"
            ) from error
        return flushed

    def confirm(self, flushed: int) -> list[Arrival]:
        """Shows what is durable up to `flushed`, and says which queues have new messages."""
        self._log.close_flushed_writers()
        return self._dispatch.confirm(flushed)

    def _become_read_only(self, reason: str) -> None:
        if not self.read_only_reason:
            self.read_only_reason = reason
            self._event("store_read_only", {"reason": reason})

    # ---- reading ----

    def restored(self) -> None:
        """Whoever read at the start has done so: what the disk cannot read is from now on tried
        again later, for a minute, before it counts as damaged."""
        self._reader.be_patient()

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 262_144,
        tags: frozenset[int] | None = None,
    ) -> ReadResult:
        """Records of a message queue from an offset on, as they are stored, one after the other.

        `tags`: only those with one of these codes; then at most 800 units are looked at. The first
        record comes even if it is larger than `max_bytes`. Raises StoreReadError, as everything
        below that looks at a queue.
        """
        self._settled(topic, queue_id)
        return self._reader.read(
            topic,
            queue_id,
            queue_offset,
            max_messages=max_messages,
            max_bytes=max_bytes,
            tags=tags,
        )

    def get(self, physical_offset: int, size: int | None = None) -> Record:
        """The record at a physical offset. Raises MessageNotFound, MessageCorrupted; StoreShort:
        for now it cannot be read."""
        return self._reader.get(physical_offset, size)

    def units(self, topic: str, queue_id: int, from_offset: int, count: int) -> list[Unit]:
        """(physical offset, size, tags code) of visible messages; those that there are."""
        queue = self._settled(topic, queue_id)
        if queue is None or from_offset < queue.min_offset:
            return []
        return self._reader.units(queue, from_offset, count)

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._settled(topic, queue_id)
        return queue.min_offset if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset that the next visible message gets."""
        queue = self._queues.get(topic, queue_id)
        return queue.visible if queue else 0

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Milliseconds; 0 when there is no such message."""
        queue = self._settled(topic, queue_id)
        return self._reader.store_timestamp(queue, queue_offset) if queue else 0

    def search_offset(
        self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False
    ) -> int:
        """First offset stored at or after the time (the next one when all are older); with `upper`
        the last one stored at or before it.
        """
        queue = self._settled(topic, queue_id)
        return self._reader.search_offset(queue, timestamp_ms, upper=upper) if queue else 0

    def query(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 32,
        begin_ms: int = 0,
        end_ms: int = _END_OF_TIME,
        unique: bool = False,
        damaged: list[MessageCorrupted] | None = None,
    ) -> list[Record]:
        """Messages with a key, or with a unique id (`unique`: only that), newest first. `damaged`:
        gets why records that the index names could not be read; they may have been meant.
        """
        return self._reader.query(
            topic,
            key,
            since=self._deleted_topics.places.get(topic, 0),
            max_messages=max_messages,
            begin_ms=begin_ms,
            end_ms=end_ms,
            unique=unique,
            damaged=damaged,
        )

    def topics(self) -> list[str]:
        return self._queues.topics()

    def queues(self, topic: str) -> list[int]:
        """Queue ids that have, or had, a message."""
        return self._queues.queue_ids(topic)

    def _settled(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, with its lowest offset brought up to where the log starts."""
        queue = self._queues.get(topic, queue_id)
        if queue is not None and queue.settled_for < self._log.min_offset:
            self._queues.settle(queue, self._log.min_offset)
        return queue

    # ---- deletion ----

    def delete_topic(self, topic: str) -> None:
        """Its messages are gone at once, their bytes when their files expire. A topic of the same
        name starts at offset 0. Raises StoreWriteError.
        """
        try:
            self._deleted_topics.add(topic, self._log.end, self.cleaning.gone_below)
        except OSError as error:
            raise StoreWriteError(f"the topic {topic} was not deleted: {error}") from error
        self._dispatch.forget_topic(topic)
        directory = self._queues.folder / topic
        try:
            self._queues.delete_topic(topic)
        except OSError as error:  # it takes space, and the next start tries again
            fields = {"directory": str(directory), "reason": str(error)}
            self._event("directory_left", fields)
        self.cleaning.forget_below(directory)
        self._derived_flush.want()

    def deleted_below(self, topic: str) -> int:
        """The physical offset of the topic's last deletion; 0 when there was none. What was meant
        for the topic before is not meant for the one that has its name now."""
        return self._deleted_topics.place(topic)

    # ---- retention ----

    def protect(self, needed_from: NeededFrom) -> None:
        """Retention asks `needed_from` before it deletes log files, and leaves those from that
        physical offset on. Before the first `maintain`."""
        self.cleaning.protect(needed_from)

    # ---- upkeep ----

    def maintain(self, now_ms: int) -> None:
        """On the loop, once a second: a bounded step of checkpoint and retention."""
        if self.read_only_reason:
            return
        try:
            self._derived_flush.step(self._clock.monotonic_ms())
            self.cleaning.settle_some()
            self._dispatch.error = None
        except (OSError, StoreReadError) as error:
            self._dispatch.error = error
        self.cleaning.look(now_ms, self._clock.monotonic_ms())

    def upkeep(self) -> bool:
        """On the flusher's thread, after each `maintain`: allocates the next file, removes expired
        ones, syncs what is derived; a few milliseconds at a time. True: call again at once.
        """
        if self.read_only_reason:
            return False
        try:
            self._dispatch.warm_up()
            if self._log.wants_blank():
                self._allocate_ahead()
            return self.cleaning.remove_one() or self._derived_flush.work()
        except OSError as error:
            if error.errno in _NO_DESCRIPTOR:  # nothing was lost: the next one goes on
                self._event("flush_put_off", {"directory": str(self.path), "reason": str(error)})
            else:
                self._become_read_only(f"flushing the derived files of {self.path} failed: {error}")
            return False

    def _allocate_ahead(self) -> None:
        try:
            self._log.prepare_blank()
        except OSError as error:
            # The append that needs the file tries again, and fails with the right error.
            self._event("allocation_failed", {"file": str(self._log.folder), "reason": str(error)})
