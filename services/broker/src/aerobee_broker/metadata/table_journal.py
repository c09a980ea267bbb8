"""The journal position of the journalled tables' files, and what their writes wait for, by role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from aerobee_broker.metadata.journal_records import JournalledTables
from aerobee_broker.metadata.persistent_table import Journal, Logged, PersistentTable
from aerobee_broker.metadata.table import Table


class TableJournal:
    """The journal of a replica. While it follows, everything in its tables is confirmed.

    `lead` turns it into the journal of a master permanently: a deposed master loads its tables
    again.
    """

    def __init__(self) -> None:
        self.applied = 0  # physical offset; the tables contain all journal records below it
        self._leader: Journal | None = None

    def applied_to(self, physical_offset: int) -> None:
        self.applied = max(self.applied, physical_offset)

    def lead(self, journal: Journal) -> None:
        """Log changes with `journal` from now on."""
        self._leader = journal

    def log(self, table: Table) -> Logged:
        if self._leader is not None:
            return self._leader.log(table)
        return Logged(self.applied, None)


class SavedTables(NamedTuple):
    """The journalled tables, their files by the name of the table, and the journal."""

    tables: JournalledTables
    files: Mapping[str, PersistentTable]
    journal: TableJournal

    def needed_from(self) -> int:
        """Return the physical offset from which the log has journal records that a file lacks."""
        positions = [file.position for file in self.files.values()]
        return min(self.journal.applied if at is None else at for at in positions)

    def refresh(self, below: int) -> None:
        """Request a write of the files whose position is below this physical offset."""
        for name, table in self.tables.by_name().items():
            if (self.files[name].position or 0) < below:
                table.touch()

    async def save(self) -> None:
        """Save the files. Log a failure."""
        for file in self.files.values():
            await file.try_save()
