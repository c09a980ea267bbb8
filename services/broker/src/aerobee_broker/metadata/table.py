"""The base classes of the broker's tables.

A table has a data version, which other processes receive. It also has a revision, which is used
only within the process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Self

from aerobee_chassis.clock import Clock


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of a table. Two tables with the same version have the same content."""

    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(self.state_version, now_ms, self.counter + 1)

    def to_json(self) -> dict[str, int]:
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        return cls(
            int(content.get("stateVersion", 0)),
            int(content.get("timestamp", 0)),
            int(content.get("counter", 0)),
        )


_LEAST_KEPT = 1024  # number of changed keys that a table of any size may keep


class Table(ABC):
    """A table of the broker.

    `revision` counts the changes since the process started. It identifies the content that was
    saved or registered last. Every change calls `_changed`. `features` has all format features that
    the table has ever used (`store/format.py`).
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.version = DataVersion(timestamp_ms=clock.now_ms())
        self.revision = 0
        self.features: set[str] = set()

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the content of the table's JSON file."""

    @abstractmethod
    def load(self, content: dict[str, Any]) -> None:
        """Fill the table with the content of its JSON file.

        Raises KeyError, TypeError, ValueError.
        """

    def touch(self) -> None:
        """Let the next save write the file even if the table has not changed."""
        self.revision += 1

    def take(self, content: dict[str, Any]) -> None:
        """Replace the content of a table that is in use. Let the next save write it."""
        self.load(content)
        self.touch()

    def _changed(self) -> None:
        self.revision += 1
        self.version = self.version.next(self._clock.now_ms())


class JournalledTable(Table):
    """A table that is saved row by row (`incremental_table.py`).

    A replicated broker also journals it (`journal_records.py`). A *key* identifies a row in memory,
    a *name* in JSON.
    """

    ROWS: ClassVar[str]  # the member of the file that contains the rows

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._changed_at: dict[Any, int] = {}  # key → revision of its last change, oldest first
        self._all_changed_at = 0  # revision; changes up to it are not listed

    def changed_keys(self, revision: int) -> list[Any] | None:
        """Return the keys of rows that were put or removed after `revision`.

        The keys are in the order of their last change. Return None if the keys are unknown. The
        caller must then compare all rows. The cost depends on the number of returned keys.
        """
        if revision < self._all_changed_at:
            return None
        found = []
        for key, at in reversed(self._changed_at.items()):
            if at <= revision:
                break
            found.append(key)
        return found[::-1]

    def to_json(self) -> dict[str, Any]:
        rows = {self.name_of(key): self.row_to_json(row) for key, row in self.rows().items()}
        return {**self.head_to_json(), self.ROWS: rows}

    @abstractmethod
    def head_to_json(self) -> dict[str, Any]:
        """Return all members of the JSON file except the rows."""

    def take(self, content: dict[str, Any]) -> None:
        super().take(content)
        self._rows_replaced()

    @abstractmethod
    def rows(self) -> Mapping[Any, Any]:
        """Return the rows by key. The mapping changes with the table, so do not keep it."""

    @abstractmethod
    def name_of(self, key: Any) -> str:
        """Return the name that identifies the row of this key in JSON."""

    @abstractmethod
    def row_to_json(self, row: Any) -> Any:
        """Convert a row to JSON, for the file and for journal records."""

    @abstractmethod
    def take_rows(
        self,
        put: Mapping[str, Any],
        removed: Iterable[str],
        version: DataVersion,
        *,
        anew: bool,
    ) -> None:
        """Apply changes from a journal record or a change file. Rows have names and are JSON.

        With `anew`, first remove all rows. Raises KeyError, TypeError or ValueError before changing
        the table.
        """

    def _take(
        self,
        rows: dict[Any, Any],
        put: Mapping[Any, Any],
        removed: Iterable[Any],
        version: DataVersion,
        *,
        anew: bool,
    ) -> None:
        """Apply parsed changes to `rows`, for an implementation of `take_rows`."""
        self.revision += 1
        self.version = version
        if anew:
            rows.clear()
            self._rows_replaced()
        for key in removed:
            rows.pop(key, None)
            self._row_changed(key)
        for key, row in put.items():
            rows[key] = row
            self._row_changed(key)

    def _row_changed(self, key: Any) -> None:
        """Record that a row changes at the present revision.

        Removed rows need an entry too, so the table keeps up to two entries a row and 1,024 more.
        """
        changed_at = self._changed_at
        changed_at.pop(key, None)
        changed_at[key] = self.revision
        if len(changed_at) > 2 * len(self.rows()) + _LEAST_KEPT:
            for oldest in list(islice(changed_at, len(changed_at) // 2)):
                self._all_changed_at = changed_at.pop(oldest)

    def _rows_replaced(self) -> None:
        self._changed_at.clear()
        self._all_changed_at = self.revision


def kept(row: Any) -> Any:
    """Return a row for later comparison: a copy if the row may change."""
    return dict(row) if isinstance(row, dict) else row
