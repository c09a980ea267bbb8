"""Writes appended bytes to the disk, or rolls them back.

    append (memory) → seal → write (operating system) → sync (disk) → confirm: visible

A message is visible only after it is durable. After a failed sync, the store is read-only
permanently. The operating system may have dropped pages that it could not write, so a later
successful sync proves nothing.

The event loop's thread owns the object. `write_sealed`, `write_and_sync` and `sync` run on the
flusher thread, one at a time.
"""

from __future__ import annotations

from pathlib import Path

from aerobee_broker.errors import (
    NO_DESCRIPTOR,
    NO_SPACE,
    DiskFull,
    StoreFlushError,
    StoreReadOnly,
    StoreWriteError,
    place,
)
from aerobee_broker.store.damage import EventListener
from aerobee_broker.store.derived.checkpoint import CheckpointFile
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.messages import Arrival
from aerobee_broker.store.retention.deleted_topics import DeletedTopics
from aerobee_wire.status import MqError


class Flush:
    def __init__(
        self,
        log: CommitLog,
        dispatch: Dispatch,
        checkpoint_file: CheckpointFile,
        deleted_topics: DeletedTopics,
        on_event: EventListener,
        *,
        replicated: bool,
    ) -> None:
        self.read_only_reason = ""  # reason why the store is read-only, or ""
        self.role_reason = ""  # reason why the role of this broker refuses appends, or ""
        self.rollback_count = 0  # number of rollbacks of appends that could not be written
        self.append_error: MqError | None = None  # set while appends are blocked
        self._log = log
        self._dispatch = dispatch
        self._checkpoint_file = checkpoint_file
        self._deleted_topics = deleted_topics
        self._event = on_event
        self._replicated = replicated

    # ---- accept or refuse appends ----

    def block_appends(self, error: MqError) -> None:
        """Refuse appends with this error until `unblock_appends`."""
        self.append_error = error

    def unblock_appends(self) -> None:
        self.append_error = None

    def close_to_appends(self, reason: str) -> None:
        """Refuse appends with NotMaster until `open_to_appends`, because this replica follows."""
        self.role_reason = reason

    def open_to_appends(self) -> None:
        self.role_reason = ""

    def become_read_only(self, reason: str, path: Path) -> None:
        """Make the store read-only permanently. The first reason stays. `path` is only logged."""
        if not self.read_only_reason:
            self.read_only_reason = reason
            self._event("store_read_only", {"file": str(path), "reason": reason})

    def close(self) -> None:
        """Refuse appends and flushes from now on, because the store is closed."""
        self.read_only_reason = self.read_only_reason or "it is closed"

    # ---- the steps ----

    def seal(self) -> None:
        """Let the next write include everything that is appended now. Call it on the event loop.

        Raises StoreReadOnly, after rolling back the appends that are not written.
        """
        if self.read_only_reason and self._log.end > self._log.written:
            self.roll_back()
            raise StoreReadOnly(self.read_only_reason)
        self._log.seal()

    def write(self) -> int:
        """Write all appended bytes to the operating system, with one write for each file.

        Return the physical offset after them. Raises StoreWriteError, or DiskFull if the disk is
        full, after rolling back the appends since the last write.
        """
        self.seal()
        try:
            return self.write_sealed()
        except MqError:
            self.roll_back()
            raise

    def write_and_sync(self) -> int:
        """Write all sealed bytes, and make them durable. Call it on the flusher thread.

        Return the result of `sync`. Raises the errors of `write_sealed` and `sync`. After an error,
        call `roll_back` on the event loop.
        """
        self.write_sealed()
        return self.sync()

    def write_sealed(self) -> int:
        """Write all sealed bytes to the operating system. Call it on the flusher thread.

        Return the physical offset after them. Raises StoreWriteError, DiskFull. After an error,
        call `roll_back` on the event loop.
        """
        try:
            return self._log.write()
        except OSError as error:
            path = self._log.path_of(self._log.written)
            reason = f"{place(path)}: {error.strerror}"
            if error.errno in NO_SPACE:
                problem = f"there is no room on the disk for {reason}"
                raise DiskFull(problem, place(path)) from error
            if error.errno in NO_DESCRIPTOR:  # opening failed: nothing was written
                raise StoreWriteError(
                    f"the message was not stored: a file cannot be opened for now: {reason}; raise "
                    "the limit of open files"
                ) from error
            self.become_read_only(f"writing failed: {reason}", path)
            raise StoreWriteError(f"the message was not stored: {self.read_only_reason}") from error

    def roll_back(self) -> None:
        """Roll back all appends that are not written.

        Call it on the event loop. Do not call it during a write.
        """
        self.rollback_count += 1
        self._log.drop_unwritten()
        self._dispatch.roll_back(self._log.written)
        try:
            self._deleted_topics.end_at(self._log.end)
        except OSError as error:
            path = self._deleted_topics.path
            self.become_read_only(f"writing failed: {place(path)}: {error.strerror}", path)

    def sync(self) -> int:
        """Make all bytes durable that are written now. Call it on the flusher thread.

        Return the physical offset after them. Raises StoreFlushError, after making the store
        read-only.
        """
        if self.read_only_reason:
            raise StoreFlushError(f"nothing was flushed: {self.read_only_reason}")
        before = self._log.flushed
        try:
            flushed = self._log.sync()
            if not self._replicated:
                self._log.confirmed = flushed
            if flushed != before:
                self._checkpoint_file.note_flushed(flushed, self._log.confirmed)
        except OSError as error:
            folder = self._log.folder
            self.become_read_only(f"flushing {folder.name} failed: {error.strerror}", folder)
            raise StoreFlushError(
                f"the message may not be stored: {self.read_only_reason}"
            ) from error
        return flushed

    def confirm(self, confirmed: int) -> list[Arrival]:
        """Make all messages visible that end at or below a physical offset, which is durable.

        Return an arrival for each queue that received messages. Call it on the event loop.
        """
        if self._replicated:
            self.note_confirmed(confirmed)
        self._log.close_flushed_writers()
        return self._dispatch.confirm(confirmed)

    def note_confirmed(self, confirmed: int) -> None:
        """Note that the replicas have all records below the physical offset `confirmed`.

        The checkpoint stores this offset for a later start. Call it on the event loop.
        """
        self._log.confirmed = max(self._log.confirmed, confirmed)
