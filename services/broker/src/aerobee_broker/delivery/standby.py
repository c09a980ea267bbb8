"""The lease table that a slave keeps up to date, in case the slave becomes master.

The slave builds the table from the lease journal in its log, and saves it in its own snapshot.
Without the table, a new master would have to read all records of the lease journal since it became
a slave.
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
    """A slave's lease table, up to date with the lease journal below the queue offset `position`.

    `table` contains only confirmed changes. `snapshot` is the file of the table.
    """

    def __init__(
        self, store: MessageStore, table: LeaseTable, snapshot: PersistentTable, topic: str
    ) -> None:
        """Load the snapshot. `topic` is the lease journal's topic. Raises ConfigFileDamaged."""
        self._store = store
        self._table = table
        self._snapshot = snapshot
        self._topic = topic
        self._is_handed_over = False
        snapshot.load()
        self.position = first_record(store, topic, table.loaded_position)  # queue offset

    def hand_over(self) -> LeaseTable:
        """Return the table to the part of this broker that becomes master.

        The new master owns the table and its file, so `try_save` saves nothing from now on.
        """
        self._is_handed_over = True
        return self._table

    def take(self, content: dict[str, Any]) -> None:
        """Replace the content of the table by a snapshot of the master.

        The caller must call `save` afterwards. Raises ConfigFileDamaged.
        """
        self._snapshot.take(content)
        self.position = self._table.loaded_position

    def step(self) -> bool:
        """Apply up to SLICE_RECORDS visible records to the table.

        Returns True if more records may be left. Raises StoreReadError.
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
        """Apply all visible records of the lease journal to the table.

        Yields to the event loop between batches of records, so that other tasks are not blocked.
        Raises StoreReadError.
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

        The table is not saved, because a new master may use it next.
        """
        try:
            await self.catch_up()
        except MqError as error:
            structlog.get_logger().error("leases_not_applied", reason=error.message)

    async def try_save(self) -> None:
        """Save the snapshot, and log a failure. Do nothing after `hand_over`."""
        if not self._is_handed_over:
            await self._snapshot.try_save()
