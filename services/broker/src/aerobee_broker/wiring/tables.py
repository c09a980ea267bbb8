"""Create the tables of a broker, and load and save their files under `config/`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from aerobee_broker.delivery.delay.progress import DelayOffsets
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.incremental_table import ChangeFile, IncrementalTable
from aerobee_broker.metadata.journal_records import JournalledTables
from aerobee_broker.metadata.offset_history_file import OffsetHistoryFile
from aerobee_broker.metadata.persistent_table import Journal, JsonFile, PersistentTable
from aerobee_broker.metadata.subscription_groups import SubscriptionGroups
from aerobee_broker.metadata.table import JournalledTable, Table
from aerobee_broker.metadata.table_journal import SavedTables, TableJournal
from aerobee_broker.metadata.topics import Topics
from aerobee_broker.registry.broker_permission import Drain
from aerobee_broker.store.format import TABLE_CHANGES
from aerobee_broker.wiring.environment import Environment
from aerobee_chassis.lifecycle import Component


class Tables(Component):
    """Own the tables and their files.

    If `replicated` is True, changes of topics, groups and consumer offsets go to a journal in the
    log.
    """

    def __init__(self, environment: Environment, *, replicated: bool = False) -> None:
        self._environment = environment
        self._is_restored = False
        journal = TableJournal() if replicated else None
        self.topics = Topics(environment.clock)
        self.groups = SubscriptionGroups(environment.clock)
        self.offsets = ConsumerOffsets(environment.clock)
        self.delay_offsets = DelayOffsets(environment.clock)
        self.drain = Drain(environment.clock)
        self.saved_topics = self._incremental(self.topics, "topics.json", journal)
        self.saved_groups = self._incremental(self.groups, "subscriptionGroup.json", journal)
        self.saved_offsets = self._incremental(self.offsets, "consumerOffset.json", journal)
        self.saved_delay_offsets = self.file_of(self.delay_offsets, "delayOffset.json")
        self.saved_drain = self.file_of(self.drain, "brokerDrain.json")
        self.all_saved = (
            self.saved_topics,
            self.saved_groups,
            self.saved_offsets,
            self.saved_delay_offsets,
            self.saved_drain,
        )
        self.saved_history = OffsetHistoryFile(
            history=self.offsets.history,
            disk=environment.disk,
            folder=environment.path / "config",
            worker=environment.writer,
            now_ms=environment.clock.now_ms,
        )
        # None for a broker without replicas.
        self.journalled = None if journal is None else self._journalled(journal)

    def _journalled(self, journal: TableJournal) -> SavedTables:
        tables = JournalledTables(self.topics, self.groups, self.offsets)
        files = self.saved_topics, self.saved_groups, self.saved_offsets
        return SavedTables(tables, dict(zip(tables.by_name(), files, strict=True)), journal)

    def restore(self) -> None:
        """Load the files at the first call.

        Later calls do nothing, because a new master continues with the tables that it has. Raises
        ConfigFileDamaged.
        """
        if not self._is_restored:
            self.load()

    def load(self) -> None:
        """Load the files, and replace the contents of the tables. Raises ConfigFileDamaged."""
        for saved in self.all_saved:
            saved.load()
        self.saved_history.restore()
        store_format = self._environment.format
        features = {TABLE_CHANGES, *self.topics.features, *self.groups.features}
        if reason := store_format.note(features):
            structlog.get_logger().warning(
                "format_not_written", file=str(store_format.path), reason=reason
            )
        self._is_restored = True

    async def start(self) -> None:
        """Save the changes that other components made while they restored their state.

        A full disk does not stop the start, because retention may free space.
        """
        await self.save()

    async def stop(self) -> None:
        """Save the tables.

        A replica that only changes its role does not rewrite the JSON files.
        """
        if self.journalled is None:
            await self.finish()
        else:
            await self.save()

    async def finish(self) -> None:
        """Write the whole tables to the JSON files before the process stops.

        Older versions of the broker can read only these files.
        """
        for saved in self.all_saved:
            await saved.finish()
        await self.saved_history.save()

    async def save(self) -> None:
        for saved in self.all_saved:
            await saved.try_save()
        await self.saved_history.save()

    async def save_incremental(self) -> None:
        """Save the tables that write only their changes: topics, groups and consumer offsets."""
        for saved in (self.saved_topics, self.saved_groups, self.saved_offsets):
            await saved.try_save()

    def file_of(
        self,
        table: Table,
        name: str,
        logged: Callable[[], Awaitable[None]] | None = None,
    ) -> PersistentTable:
        file = JsonFile(self._environment.disk, self._path_of(name))
        require = self._environment.format.require
        writer = self._environment.writer
        return PersistentTable(table, file, writer, logged, require=require)

    def _incremental(
        self, table: JournalledTable, name: str, journal: Journal | None
    ) -> IncrementalTable:
        disk, path = self._environment.disk, self._path_of(name)
        file, changes = JsonFile(disk, path), ChangeFile(disk, path)
        require = self._environment.format.require
        return IncrementalTable(
            table, file, changes, self._environment.writer, journal, require=require
        )

    def _path_of(self, name: str) -> Path:
        return self._environment.path / "config" / name
