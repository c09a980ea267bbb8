"""What the files of the journalled tables wait for, and which position they name, by role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from aerobee_broker.metadata.journal_records import JournalledTables
from aerobee_broker.metadata.persistent_table import Journal, Logged, PersistentTable
from aerobee_broker.metadata.table import Table


class TableJournal:
    """Of a replica that follows everything in a table is confirmed. `lead` makes it a master's, for
    good: one that is deposed loads its tables anew."""

    def __init__(self) -> None:
        self.applied = 0  # physical: what the journal says below is in the tables
        self._leader: Journal | None = None

    def applied_to(self, physical_offset: int) -> None:
        self.applied = max(self.applied, physical_offset)

    def lead(self, journal: Journal) -> None:
        """Changes are logged by it from now on."""
        self._leader = journal

    def log(self, table: Table) -> Logged:
        if self._leader is not None:
            return self._leader.log(table)
        return Logged(self.applied, None)


class SavedTables(NamedTuple):
    """The journalled tables, their files by name of the table, and what joins the two."""

    tables: JournalledTables
    files: Mapping[str, PersistentTable]
    journal: TableJournal

    def needed_from(self) -> int:
        """The physical offset from which on the log has journal records that some file lacks."""
        positions = [file.position for file in self.files.values()]
        return min(self.journal.applied if at is None else at for at in positions)

    def refresh(self, below: int) -> None:
        """Files whose position lies below this physical offset are to be written again."""
        for name, table in self.tables.by_name().items():
            if (self.files[name].position or 0) < below:
                table.touch()

    async def save(self) -> None:
        """A failure is logged."""
        for file in self.files.values():
            await file.try_save()
