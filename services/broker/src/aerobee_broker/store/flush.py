"""The flush: brings what was appended to the disk, or takes it back. Knows no record.

    append (memory) → seal → write (operating system) → sync (disk) → confirm: visible

Nothing is visible before it is durable. After a failed sync the store is read-only for good: the
system may have dropped what it could not write, and a later sync that succeeds proves nothing.

Owned by the loop's thread. `write_sealed`, `write_and_sync` and `sync` run on the flusher's, one at
a time.
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
        self.read_only_reason = ""  # empty: the store takes appends
        self.role_reason = ""  # why this broker's role takes no appends; empty: it takes them
        self.rollback_count = 0  # of appends that could not be written
        self.append_error: MqError | None = None  # set while appends are blocked
        self._log = log
        self._dispatch = dispatch
        self._checkpoint_file = checkpoint_file
        self._deleted_topics = deleted_topics
        self._event = on_event
        self._replicated = replicated

    # ---- whether appends are taken ----

    def block_appends(self, error: MqError) -> None:
        """Until `unblock_appends`, appends fail with this error."""
        self.append_error = error

    def unblock_appends(self) -> None:
        self.append_error = None

    def close_to_appends(self, reason: str) -> None:
        """Until `open_to_appends`, appends fail with NotMaster: this replica only follows."""
        self.role_reason = reason

    def open_to_appends(self) -> None:
        self.role_reason = ""

    def become_read_only(self, reason: str, path: Path) -> None:
        """For good; the first reason stays. `path`: for the log alone."""
        if not self.read_only_reason:
            self.read_only_reason = reason
            self._event("store_read_only", {"file": str(path), "reason": reason})

    def close(self) -> None:
        """The store is closed: nothing is appended or flushed from now on."""
        self.read_only_reason = self.read_only_reason or "it is closed"

    # ---- the steps ----

    def seal(self) -> None:
        """On the loop: what was appended until now is what the next write takes. Raises
        StoreReadOnly; then it is rolled back.
        """
        if self.read_only_reason and self._log.end > self._log.written:
            self.roll_back()
            raise StoreReadOnly(self.read_only_reason)
        self._log.seal()

    def write(self) -> int:
        """Hands everything appended to the operating system, with one write a file.

        Returns the physical offset up to which it has. Raises StoreWriteError, or DiskFull when
        there is no room; then what was appended since the last write is rolled back.
        """
        self.seal()
        try:
            return self.write_sealed()
        except MqError:
            self.roll_back()
            raise

    def write_and_sync(self) -> int:
        """On the flusher's thread: `write` of what was sealed, and `sync`.

        Returns what `sync` does. Raises as both; then `roll_back` must follow on the loop.
        """
        self.write_sealed()
        return self.sync()

    def write_sealed(self) -> int:
        """On the flusher's thread: `write` of what was sealed. Raises as that does; then
        `roll_back` must follow on the loop.
        """
        try:
            return self._log.write()
        except OSError as error:
            path = self._log.path_of(self._log.written)
            reason = f"{place(path)}: {error.strerror}"
            if error.errno in NO_SPACE:
                problem = f"there is no room on the disk for {reason}"
                raise DiskFull(problem, place(path)) from error
            if error.errno in NO_DESCRIPTOR:  # of opening it: nothing was written
                raise StoreWriteError(
                    f"the message was not stored: a file cannot be opened for now: {reason}; raise "
                    "the limit of open files"
                ) from error
            self.become_read_only(f"writing failed: {reason}", path)
            raise StoreWriteError(f"the message was not stored: {self.read_only_reason}") from error

    def roll_back(self) -> None:
        """On the loop, while no write is under way: takes back what was not written."""
        self.rollback_count += 1
        self._log.drop_unwritten()
        self._dispatch.roll_back(self._log.written)
        try:
            self._deleted_topics.end_at(self._log.end)
        except OSError as error:
            path = self._deleted_topics.path
            self.become_read_only(f"writing failed: {place(path)}: {error.strerror}", path)

    def sync(self) -> int:
        """On the flusher's thread. Makes everything durable that was written when it began.

        Returns that physical offset. Raises StoreFlushError; the store is read-only then.
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
        """On the loop: makes visible what ends at or below `confirmed`, which must be durable.
        Returns the queues that got messages.
        """
        if self._replicated:
            self.note_confirmed(confirmed)
        self._log.close_flushed_writers()
        return self._dispatch.confirm(confirmed)

    def note_confirmed(self, confirmed: int) -> None:
        """On the loop: the replicas hold everything below `confirmed`. The checkpoint tells a later
        start."""
        self._log.confirmed = max(self._log.confirmed, confirmed)
