"""Takes what pop did to the log: one append, one wait for the disk, and back if that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.pop import journal_format
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_broker.errors import FlushTimeout
from aerobee_broker.store.messages import NewMessage
from aerobee_chassis.clock import Clock
from aerobee_wire.record import iter_records
from aerobee_wire.status import MqError

READ_MESSAGES = 4_096
READ_BYTES = 16 * 1024 * 1024
APPEND_AGAIN_S = 1.0


class LeaseJournal:
    def __init__(self, *, log: DurableLog, table: LeaseTable, clock: Clock, topic: str) -> None:
        self._log = log
        self._store = log.store
        self._table = table
        self._clock = clock
        self._topic = topic
        # What holds in memory and was lost to the log: appended before anything else.
        self._owed: list[NewMessage] = []

    def check_room(self) -> None:
        """Before a lease is made. Raises TooMuchUnflushed."""
        self._log.check_room()

    async def write(
        self,
        kind: str,
        content: Mapping[str, Any],
        *,
        undo: Callable[[], None],
        along: Sequence[NewMessage] = (),
    ) -> None:
        """Returns when the record, and the messages `along` before it, are durable.

        What it stands for is already done in memory; `undo` takes it back when the log does not
        take it. Raises MqError: what the store raises, FlushTimeout (then it stands in the log).
        """
        try:
            self._append(kind, content, along)
            await self._log.durable()
        except FlushTimeout:
            raise
        except MqError:
            undo()
            raise

    def note(self, kind: str, content: Mapping[str, Any]) -> None:
        """Appends without waiting: in the log before whatever is appended from now on."""
        self._append(kind, content)
        self._log.schedule_flush()

    def check_open(self) -> None:
        """Before something is done that is to be stated. Raises DiskFull, StoreReadOnly."""
        self._store.check_open_to_appends(reserve=True)

    def state(self, kind: str, contents: Sequence[Mapping[str, Any]]) -> asyncio.Future[None]:
        """Appends what was done and is not taken back. The future ends when it is on the disk, or
        with the MqError that kept it from there; then it is appended again, before anything else
        of pop's: the leases made since are meaningless without it. Shield it: it is watched.
        """
        now_ms = self._clock.now_ms()
        self._owed += [journal_format.record(self._topic, kind, one, now_ms) for one in contents]
        self._table.touch()
        try:
            return self._append_owed()
        except MqError as error:
            self._append_owed_later()
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            refused.exception()  # known, also when nobody waits
            return refused

    def _append_owed(self, behind: Sequence[NewMessage] = ()) -> asyncio.Future[None]:
        owed = self._owed
        self._store.append([*owed, *behind], reserve=True)
        self._owed = []

        def ended(error: BaseException | None) -> None:
            if error is not None:
                self._owed = owed + self._owed
                self._append_owed_later()

        return self._log.when_flushed(ended)

    def _append_owed_later(self) -> None:
        def again() -> None:
            if self._owed and not self._store.read_only_reason:
                try:
                    self._append_owed()
                except MqError:
                    self._append_owed_later()

        asyncio.get_running_loop().call_later(APPEND_AGAIN_S, again)

    async def settled(self) -> None:
        """Returns when everything that was appended until now is durable."""
        await self._log.durable()

    def _append(
        self, kind: str, content: Mapping[str, Any], along: Sequence[NewMessage] = ()
    ) -> None:
        entry = journal_format.record(self._topic, kind, content, self._clock.now_ms())
        if self._owed:
            self._append_owed([*along, entry])
        else:
            self._store.append([*along, entry], reserve=True)
        self._table.touch()

    @property
    def position(self) -> int:
        """The queue offset of the log up to which it is durable."""
        return self._store.max_offset(self._topic, journal_format.QUEUE_ID)

    # ---- at start ----

    def replay(self) -> int:
        """Applies what the snapshot does not have; returns the number of records. Blocks."""
        store, topic, queue_id = self._store, self._topic, journal_format.QUEUE_ID
        offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if self._table.loaded_position <= end:  # else it is of another log
            offset = max(self._table.loaded_position, offset)
        count = 0
        while offset < end:
            result = store.read(
                topic,
                queue_id,
                offset,
                max_messages=READ_MESSAGES,
                max_bytes=READ_BYTES,
                tags=None,
            )
            for one in iter_records(result.records, check_crc=False):
                self._apply(one.queue_offset, one.body)
                count += 1
            if result.next_begin_offset <= offset:
                break
            offset = result.next_begin_offset
        return count

    def _apply(self, queue_offset: int, body: bytes) -> None:
        try:
            self._table.apply(journal_format.parse(body))
        except (KeyError, TypeError, ValueError) as error:
            structlog.get_logger().error(
                "lease_record_unreadable", queue_offset=queue_offset, reason=repr(error)
            )
