"""What a slave keeps ready for the day on which it becomes master: the lease table, from the lease
journal of its log, with a snapshot of its own.

Without it a new master would read the journal since it began to follow.
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
    """`table`: whose position is `position`, `snapshot`: its file. All in it is confirmed."""

    def __init__(
        self, store: MessageStore, table: LeaseTable, snapshot: PersistentTable, topic: str
    ) -> None:
        """`topic`: of the lease journal. Loads the snapshot. Raises ConfigFileDamaged."""
        self._store = store
        self._table = table
        self._snapshot = snapshot
        self._topic = topic
        self._is_handed_over = False
        snapshot.load()
        self.position = first_record(store, topic, table.loaded_position)  # queue offset

    def hand_over(self) -> LeaseTable:
        """To who becomes master: the table and its file are that one's from now on."""
        self._is_handed_over = True
        return self._table

    def take(self, content: dict[str, Any]) -> None:
        """The snapshot of the master, in place of what is here; `save` is to follow. Raises
        ConfigFileDamaged."""
        self._snapshot.take(content)
        self.position = self._table.loaded_position

    def step(self) -> bool:
        """Applies some of what has become visible. True: there is more. Raises StoreReadError."""
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
        """Everything that is visible, in slices: a blocked loop renews no lease. Raises
        StoreReadError."""
        more = self.step()
        while more:
            await asyncio.sleep(0)
            more = self.step()

    async def save(self) -> None:
        """Raises MqError: the file cannot be written."""
        await self._snapshot.save()

    async def stop(self) -> None:
        """Applies what is visible. Saves nothing: who becomes master takes the table over. A
        failure is logged."""
        try:
            await self.catch_up()
        except MqError as error:
            structlog.get_logger().error("leases_not_applied", reason=error.message)

    async def try_save(self) -> None:
        """Unless it was handed over. A failure is logged."""
        if not self._is_handed_over:
            await self._snapshot.try_save()
