"""The lease journal: stores changes of leases in the commit log.

A request makes one append and waits for the disk once. If the append fails, the change is rolled
back. The snapshot of the journal is a file with the lease table. At startup, the broker loads the
snapshot, and applies the later records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.pop import lease_journal_format
from aerobee_broker.delivery.pop.lease_journal_format import JournalRecord
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_broker.errors import FlushTimeout
from aerobee_broker.metadata.persistent_table import PersistentTable
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_chassis.clock import Clock
from aerobee_chassis.lifecycle import Component
from aerobee_wire.record import iter_records
from aerobee_wire.status import MqError

READ_MESSAGES = 4_096
READ_BYTES = 16 * 1024 * 1024
APPEND_AGAIN_S = 1.0
SLICE_RECORDS = 2_000  # applied at once: about 50 ms of the event loop


@dataclass(slots=True, kw_only=True, eq=False)
class LeaseJournal(Component):
    """Writes changes of leases to a topic, and restores the lease table from it."""

    log: DurableLog
    table: LeaseTable
    snapshot: PersistentTable
    clock: Clock
    topic: str
    # Records that must not be rolled back, but that the log rejected or lost. They are appended
    # again before any other record.
    _unlogged: list[NewMessage] = field(default_factory=list, init=False)
    _is_warm: bool = field(default=False, init=False)

    def check_room(self) -> None:
        """Check that the log accepts new leases. Raises TooMuchUnflushed."""
        self.log.check_room()

    async def write(
        self,
        records: Sequence[JournalRecord],
        roll_back: Callable[[], None],
        dead_letters: Sequence[NewMessage] = (),
        *,
        even_later: bool = False,
    ) -> None:
        """Append dead letters and then records, and wait until all of them are durable.

        The caller has already applied the records to the table. If the log rejects them, calls
        `roll_back`, which must undo that. Raises the errors of the store.

        Raises FlushTimeout if the records are in the log but are not flushed in time. The log may
        still lose them, as after a cancellation of this call. With `even_later`, `roll_back` is
        called then. Otherwise, nothing is rolled back.
        """
        end_offset = -1  # no append to watch
        try:
            self._append(records, dead_letters)
            end_offset = self.log.store.end_offset
            await self.log.settled()
        except (FlushTimeout, asyncio.CancelledError):
            if even_later and end_offset >= 0:
                self.log.when_rolled_back(end_offset, roll_back)
            raise
        except MqError:
            roll_back()
            raise

    def append(self, record: JournalRecord) -> None:
        """Append a record to the log without waiting for the disk."""
        self._append([record])
        self.log.schedule_flush()

    def check_open_to_appends(self) -> None:
        """Check that `write_until_durable` may append. Raises DiskFull, StoreReadOnly."""
        self.log.store.check_open_to_appends(reserve=True)

    def write_until_durable(self, records: Sequence[JournalRecord]) -> asyncio.Future[None]:
        """Write records that must not be rolled back, and repeat the append until they are durable.

        Records that the log loses are appended again before any other record, because later records
        are valid only after them.

        Returns a future of the first attempt. It is done when the records are durable, or has the
        MqError of the failure. Await it with `asyncio.shield`, because cancelling it would cancel
        the later attempts.
        """
        now_ms = self.clock.now_ms()
        self._unlogged += [
            lease_journal_format.encode(record, self.topic, now_ms) for record in records
        ]
        self.table.touch()
        try:
            return self._append_unlogged()
        except MqError as error:
            self._append_unlogged_later()
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            failed.exception()  # otherwise asyncio logs it if the caller does not await it
            return failed

    def _append_unlogged(self, others: Sequence[NewMessage] = ()) -> asyncio.Future[None]:
        records = self._unlogged
        self.log.store.append([*records, *others], reserve=True)
        self._unlogged = []

        def ended(error: BaseException | None) -> None:
            if error is not None:
                self._unlogged = records + self._unlogged
                self._append_unlogged_later()

        return self.log.when_flushed(ended)

    def _append_unlogged_later(self) -> None:
        def again() -> None:
            if self._unlogged and not self.log.store.flush.read_only_reason:
                try:
                    self._append_unlogged()
                except MqError:
                    self._append_unlogged_later()

        asyncio.get_running_loop().call_later(APPEND_AGAIN_S, again)

    async def flush(self) -> None:
        """Wait until all records appended before this call are durable."""
        await self.log.settled()

    def _append(self, records: Sequence[JournalRecord], before: Sequence[NewMessage] = ()) -> None:
        topic, now_ms = self.topic, self.clock.now_ms()
        entries = [lease_journal_format.encode(record, topic, now_ms) for record in records]
        if self._unlogged:
            self._append_unlogged([*before, *entries])
        else:
            self.log.store.append([*before, *entries], reserve=True)
        self.table.touch()

    # ---- startup and shutdown ----

    def take_over(self, warm: LeaseTable, position: int) -> None:
        """Use the lease table that this broker kept up to date as a slave, not the snapshot.

        `warm` contains the journal up to the queue offset `position`. Call this before `restore`.
        The caller must not use `warm` afterwards.
        """
        self.table.take_over(warm, position)
        self._is_warm = True

    def restore(self) -> None:
        """Fill the table from the snapshot, unless `take_over` was called.

        Raises ConfigFileDamaged.
        """
        if not self._is_warm:
            self.snapshot.load()

    async def start(self) -> None:
        """Save the restored table. If that fails, log the error and continue.

        After `take_over`, the table is not saved now, but later.
        """
        if not self._is_warm:
            await self.save_snapshot()

    async def stop(self) -> None:
        await self.save_snapshot()

    async def save_snapshot(self) -> None:
        """Save the table as the snapshot, or log an error if that fails.

        First waits until all records are durable, because the snapshot must not contain changes
        that may be rolled back later.
        """
        try:
            await self.flush()
        except MqError as error:
            structlog.get_logger().error("leases_not_saved", reason=error.message)
        else:
            await self.snapshot.try_save()

    def replay(self) -> Generator[None, None, int]:
        """Apply the records that are newer than the snapshot, and return their number.

        Yields between slices of the records.
        """
        store, topic, count = self.log.store, self.topic, 0
        offset = first_record(store, topic, self.table.loaded_position)
        for count, _ in enumerate(apply_records(store, self.table, topic, offset), 1):
            if count % SLICE_RECORDS == 0:
                yield
        if count:  # the next snapshot includes them
            self.table.touch()
        return count


def first_record(store: MessageStore, topic: str, position: int) -> int:
    """Return the queue offset of the first journal record that is not in a snapshot.

    The snapshot contains the records below the queue offset `position`.
    """
    low = store.min_offset(topic, lease_journal_format.QUEUE_ID)
    end = store.max_offset(topic, lease_journal_format.QUEUE_ID)
    return max(position, low) if position <= end else low  # else, it is from another log


def apply_records(store: MessageStore, table: LeaseTable, topic: str, offset: int) -> Iterator[int]:
    """Apply the visible records of the lease journal to a table, starting at a queue offset.

    After each record, yields the queue offset of the next one. Raises StoreReadError.
    """
    queue_id = lease_journal_format.QUEUE_ID
    while offset < store.max_offset(topic, queue_id):
        result = store.read(
            topic,
            queue_id,
            offset,
            max_messages=READ_MESSAGES,
            max_bytes=READ_BYTES,
            tags=None,
        )
        for message in iter_records(result.records, check_crc=False):
            _apply(table, message.queue_offset, message.body)
            yield message.queue_offset + 1
        if result.next_begin_offset <= offset:
            return
        offset = result.next_begin_offset


def _apply(table: LeaseTable, queue_offset: int, body: bytes) -> None:
    try:
        table.apply(lease_journal_format.decode(body))
    except (KeyError, TypeError, ValueError) as error:
        structlog.get_logger().error(
            "lease_record_unreadable", queue_offset=queue_offset, reason=repr(error)
        )
