"""The lease table that a slave keeps up to date, in case it becomes master.

Built from the lease journal of the slave's log, with its own snapshot. Without it, a new master
would have to read the journal from the point at which it began to follow.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from aerobee_broker.delivery.pop.lease_journal import SLICE_RECORDS, apply_records, first_record
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_broker.metadata.persistent_table import PersistentTable
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire.status import MqError


class WarmLeases:
    """A lease table that follows the journal up to the queue offset `position`.

    `table`: all its content is confirmed. `snapshot`: its file.
    """

    def __init__(
        self, store: MessageStore, table: LeaseTable, snapshot: PersistentTable, topic: str
    ) -> None:
        """Load the snapshot. `topic`: of the lease journal. Raises ConfigFileDamaged."""
        self._store = store
        self._table = table
        self._snapshot = snapshot
        self._topic = topic
        self._is_handed_over = False
        snapshot.load()
        self.position = first_record(store, topic, table.loaded_position)  # queue offset

    def hand_over(self) -> LeaseTable:
        """Return the table to the new master, which owns the table and its file from now on."""
        self._is_handed_over = True
        return self._table

    def take(self, content: dict[str, Any]) -> None:
        """Replace the table by the snapshot of the master. The caller must `save` it.

        Raises ConfigFileDamaged.
        """
        self._snapshot.take(content)
        self.position = self._table.loaded_position

    def step(self) -> bool:
        """Apply some of the visible records; return True if more are left.

        Raises StoreReadError.
        """
        count = 0
        for behind in apply_records(self._store, self._table, self._topic, self.position):
            self.position = behind
            count += 1
            if count == SLICE_RECORDS:
                break
        if count:
            self._table.touch()
        return count == SLICE_RECORDS

    async def catch_up(self) -> None:
        """Apply all visible records.

        Runs in slices, because a blocked event loop could not renew leases. Raises StoreReadError.
        """
        more = self.step()
        while more:
            await asyncio.sleep(0)
            more = self.step()

    async def save(self) -> None:
        """Write the snapshot. Raises MqError if the file cannot be written."""
        await self._snapshot.save()

    async def stop(self) -> None:
        """Apply the visible records, and log a failure.

        Saves nothing, because a new master takes the table over.
        """
        try:
            await self.catch_up()
        except MqError as error:
            structlog.get_logger().error("leases_not_applied", reason=error.message)

    async def try_save(self) -> None:
        """Save the snapshot unless the table was handed over; log a failure."""
        if not self._is_handed_over:
            await self._snapshot.try_save()
