"""The base of the tables: a data version, which crosses the wire; a revision, which does not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, ClassVar

from aerobee_broker.metadata.data_version import DataVersion
from aerobee_chassis.clock import Clock

_LEAST_KEPT = 1024  # changed keys


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
    """A table that is saved row by row (`changes/`), and that a replicated broker journals
    (`journal_records.py`). A key is what the table has its rows by, a name the same in JSON.
    """

    ROWS: ClassVar[str]  # the member of its file that has the rows

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._changed_at: dict[Any, int] = {}  # key → revision; the newest change is the last
        self._all_changed_at = 0  # revision: changes up to it are not listed

    def changed_keys(self, revision: int) -> list[Any] | None:
        """Keys of the rows that were put or removed after `revision`, in the order of their last
        change. None: they are not known, so compare all rows. Costs as much as there are."""
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
        """The members of its file besides the rows."""

    def take(self, content: dict[str, Any]) -> None:
        super().take(content)
        self._rows_replaced()

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

    def _row_changed(self, key: Any) -> None:
        """At the present revision. Keeps up to two entries a row, for removed ones count too."""
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
    """A row that stays as it is; rows of consumer offsets change."""
    return dict(row) if isinstance(row, dict) else row
