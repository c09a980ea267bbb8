"""Connects the replicated tables with the metadata journal and with their JSON files.

The metadata journal is a system topic that replicates the changes of these tables. The classes find
the changes that the journal does not have yet, and record in each file the journal position that it
covers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from aerobee_broker.metadata.journal_records import JournalledTables, TableChange
from aerobee_broker.metadata.persistent_table import Journal, Logged, PersistentTable
from aerobee_broker.metadata.table import DataVersion, JournalledTable, Table, kept
from aerobee_broker.store.message_store import MessageStore
from aerobee_chassis.clock import Clock


class TableChanges:
    """Finds the changes of one table that the journal does not have yet.

    It compares the rows that changed since the previous `take` with their journalled content.

    With `is_known`, the journal already has the present content of the table. Otherwise the first
    change contains the whole table. `take` counts the rows as journalled, and `lose` reverses this.
    """

    def __init__(self, name: str, table: JournalledTable, *, is_known: bool) -> None:
        self._name = name
        self._table = table
        self._known: dict[Any, Any] = {}
        self._version: DataVersion | None = None
        self._anew = not is_known
        self._lost: set[str] = set()  # names of rows whose change was rolled back
        self._compared_at = -1  # revision of the last comparison; -1 to compare all rows
        self._forgotten: set[Any] = set()  # keys to compare even if the rows have not changed
        if is_known:
            self._compared_at = table.revision
            self._known = {key: kept(row) for key, row in table.rows().items()}
            self._version = table.version

    def take(self) -> TableChange | None:
        """Return the rows that have changed since the previous `take`, or None without changes."""
        table, known = self._table, self._known
        rows = table.rows()
        keys = self._keys_to_compare()
        changed = [(key, rows[key]) for key in keys if key in rows and known.get(key) != rows[key]]
        gone = [key for key in keys if key in known and key not in rows]
        self._compared_at = table.revision
        self._forgotten.clear()
        if not (changed or gone or self._lost or self._anew or table.version != self._version):
            return None
        put = {table.name_of(key): table.row_to_json(row) for key, row in changed}
        removed = {table.name_of(key) for key in gone}
        for name in self._lost - put.keys() - removed:
            self._add_lost(name, put, removed)
        change = TableChange(self._name, table.version, put, sorted(removed), self._anew)
        for key, row in changed:
            known[key] = kept(row)
        for key in gone:
            del known[key]
        self._anew, self._version = False, table.version
        self._lost.clear()
        return change

    def _keys_to_compare(self) -> Iterable[Any]:
        touched = self._table.changed_keys(self._compared_at)
        if touched is None:
            return dict.fromkeys([*self._table.rows(), *self._known])
        return dict.fromkeys([*self._forgotten, *touched]) if self._forgotten else touched

    def _add_lost(self, name: str, put: dict[str, Any], removed: set[str]) -> None:
        for key, row in self._table.rows().items():
            if self._table.name_of(key) == name:
                put[name] = self._table.row_to_json(row)
                return
        removed.add(name)

    def lose(self, change: TableChange) -> None:
        """Let the next `take` repeat a change that the log has rolled back."""
        self._anew = self._anew or change.anew
        self._lost.update(change.put, change.removed)
        if self._anew:
            self._known.clear()
            self._compared_at = -1
        self._version = None

    def forget(self, keys: list[Any]) -> None:
        """Forget rows that another kind of journal record deletes.

        A row that is created again then counts as new.
        """
        for key in keys:
            self._known.pop(key, None)
            self._forgotten.add(key)
            self._lost.discard(self._table.name_of(key))

    def known_keys(self) -> list[Any]:
        return list(self._known)


class TableJournal:
    """The journal of a replica, which is a slave or a master.

    On a slave, the tables contain only confirmed changes. `lead` turns the object into the journal
    of a master permanently, because a deposed master loads its tables again.
    """

    def __init__(self) -> None:
        self.applied = 0  # physical offset below which the tables contain all journal records
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
    """The journalled tables, their journal, and their files.

    `files` maps the name of each table to its file.
    """

    tables: JournalledTables
    files: Mapping[str, PersistentTable]
    journal: TableJournal

    def needed_from(self) -> int:
        """Return the lowest physical offset of journal records that a file may lack."""
        positions = [file.position for file in self.files.values()]
        return min(self.journal.applied if at is None else at for at in positions)

    def refresh(self, below: int) -> None:
        """Request a write of the files whose journal position is below this physical offset."""
        for name, table in self.tables.by_name().items():
            if (self.files[name].position or 0) < below:
                table.touch()

    async def save(self) -> None:
        """Save the tables that have changed. Log failures instead of raising them."""
        for file in self.files.values():
            await file.try_save()


# Each file is rewritten after this time, so that a start does not read a long journal.
REWRITE_MS = 3_600_000


class TableUpkeep:
    """Saves the journalled tables of a replica in any role. Create one object for each store.

    It lets retention keep the log from the oldest journal position of the files on.
    """

    def __init__(self, store: MessageStore, saved: SavedTables, clock: Clock) -> None:
        self._store = store
        self._saved = saved
        self._clock = clock
        self._rewritten_ms = clock.monotonic_ms()
        store.cleaning.protect(saved.needed_from)

    async def save(self) -> None:
        """Save the tables that have changed.

        Also rewrite files that are old, or whose journal position keeps old files of the log.
        Failures are logged.
        """
        now_ms = self._clock.monotonic_ms()
        below = self._store.cleaning.wanted_below
        if now_ms - self._rewritten_ms >= REWRITE_MS:
            self._rewritten_ms = now_ms
            below = self._store.end_offset
        self._saved.refresh(below)
        await self._saved.save()
