"""The base of the tables: a data version, which crosses the wire; a revision, which does not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from aerobee_broker.metadata.data_version import DataVersion
from aerobee_chassis.clock import Clock


class Table(ABC):
    """`revision` counts the changes since the process started; what was saved or registered last is
    known by it. Every change calls `_changed`. `features`: those of the store's format that a build
    must know to read what the table has had (`store/format.py`).
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.version = DataVersion(timestamp_ms=clock.now_ms())
        self.revision = 0
        self.features: set[str] = set()

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The content of its file."""

    @abstractmethod
    def load(self, content: dict[str, Any]) -> None:
        """Fills the table from the content of its file. Raises KeyError, TypeError, ValueError."""

    def touch(self) -> None:
        """The file is to be written again, although nothing has changed."""
        self.revision += 1

    def take(self, content: dict[str, Any]) -> None:
        """`load` in a table that is in use."""
        self.load(content)
        self.touch()

    def _changed(self) -> None:
        self.revision += 1
        self.version = self.version.next(self._clock.now_ms())


class JournalledTable(Table):
    """A table whose changes a replicated broker journals (`journal_records.py`): row by row. A key
    is what the table has its rows by, a name the same in JSON.
    """

    @abstractmethod
    def rows(self) -> Mapping[Any, Any]:
        """Key → row, as the table has them: not to be kept."""

    @abstractmethod
    def name_of(self, key: Any) -> str:
        """Of the row with this key, in JSON."""

    @abstractmethod
    def row_to_json(self, row: Any) -> Any:
        """As a journal record has it."""

    @abstractmethod
    def take_rows(
        self,
        put: Mapping[str, Any],
        removed: Iterable[str],
        version: DataVersion,
        *,
        anew: bool,
    ) -> None:
        """On another replica: rows by name, as JSON. `anew`: these are all. Raises KeyError,
        TypeError, ValueError; then the table is as before."""

    def _taken(self, version: DataVersion) -> None:
        self.revision += 1
        self.version = version
