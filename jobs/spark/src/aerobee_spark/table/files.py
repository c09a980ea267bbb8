"""Manage the files of a facts table, and the locks of its writers.

TABLE/_facts.json                      description of the table: its group or topics
TABLE/_commits/<run>-<n>.json          a commit; the complete file appears in one step
TABLE/run=<query id>/batch=<n>/        the Parquet files of a batch
TABLE/compact=<n>/day=<yyyy-mm-dd>/    files that a compaction joined
TABLE/states.parquet                   the last known state of each dead letter
TABLE/_checkpoint/                     Spark's checkpoint
TABLE/_lock, TABLE/_compact.lock       locks of the job and of a compaction; at a URI: _locks/
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from aerobee_spark.errors import ReportError
from aerobee_spark.table.commits import Commit, active
from aerobee_spark.table.local_files import LocalFiles
from aerobee_spark.table.storage import TableFiles

CHECKPOINT = "_checkpoint"
COMMITS = "_commits"
ABOUT = "_facts.json"
STATES = "states.parquet"
_OURS = (ABOUT, COMMITS, STATES, CHECKPOINT, "_lock", "_compact.lock", "_locks")


class FactsFiles:
    """The files of one facts table, on a local disk or in another file system."""

    def __init__(self, place: Path | TableFiles) -> None:
        self.storage = LocalFiles(place) if isinstance(place, Path) else place
        self.where = self.storage.where

    def create(self, about: Mapping[str, Any]) -> None:
        """Create the table. If it exists, check that it is for the same group or topics.

        Raise ReportError if it is for another group or other topics, or cannot be created.
        """
        if not self.storage.exists(ABOUT):
            self.storage.make(COMMITS)
            foreign = [name for name in self.storage.names() if name not in _OURS]
            if foreign:
                raise ReportError(
                    f"{self.where} has {foreign[0]} and is not a facts table: use an empty folder",
                    self.where,
                )
            if self.storage.create(ABOUT, json.dumps({"v": 1, **about}).encode()):
                return
        found = self.about()
        if any(found.get(key) != value for key, value in about.items()):
            raise ReportError(
                f"{self.where} is a table of {_describe(found)}, not of {_describe(about)}: use "
                "another --table",
                self.where,
            )

    def about(self) -> dict[str, Any]:
        """Return the description of the table: its group or topics.

        Raise ReportError if the folder is not a facts table.
        """
        try:
            found: dict[str, Any] = json.loads(self.storage.read(ABOUT))
        except (OSError, ValueError):
            raise ReportError(
                f"{self.where} is not a facts table: create one with aerobee facts --table "
                f"{self.where}",
                self.where,
            ) from None
        return found

    # ---- commits ----

    def commits(self) -> list[Commit]:
        """Return all existing commits, including replaced ones."""
        return self._read(self._committed())

    def snapshot(self) -> list[Commit]:
        """Return the valid commits, newest first.

        Their files stay until the second compaction from now, so that the caller can read them.
        """
        return active(self.commits())

    def is_committed(self, run: str, batch: int) -> bool:
        return self.storage.exists(_file_of(f"{run}-{batch}"))

    def next_seq(self) -> int:
        """Return a sequence number that is higher than that of any commit.

        Only the last commit of each run, and of the compactions, is read, because it has the
        highest sequence number.
        """
        newest: dict[str, int] = {}
        for name in self._committed():
            run, _, batch = name.rpartition("-")
            newest[run] = max(int(batch), newest.get(run, 0))
        names = (f"{run}-{batch}" for run, batch in newest.items())
        return 1 + max((commit.seq for commit in self._read(names)), default=0)

    def commit(self, commit: Commit) -> None:
        """Make the rows of a commit visible to readers, after its files are durable.

        Raises:
            ReportError: another job created a different commit with this name.
        """
        self.storage.sync(self.files(commit))
        content = json.dumps(commit.as_json()).encode()
        name = _file_of(commit.name)
        if not self.storage.create(name, content) and self.storage.read(name) != content:
            raise ReportError(
                f"another job committed batch {commit.batch} to {self.where}: stop one of the jobs",
                self.where,
            )

    def forget(self, commit: Commit) -> None:
        self.storage.delete(_file_of(commit.name))

    def files(self, commit: Commit) -> list[str]:
        return self.parquet(commit.folder) if commit.folder else []

    def parquet(self, folder: str) -> list[str]:
        """Return the Parquet files in a folder and its subfolders."""
        return [name for name in self.storage.below(folder) if name.endswith(".parquet")]

    def _committed(self) -> list[str]:
        names = self.storage.names(COMMITS)
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def _read(self, names: Iterable[str]) -> list[Commit]:
        found = []
        for name in names:
            with suppress(FileNotFoundError):  # removed by a compaction, whose commit replaces it
                found.append(Commit.parse(json.loads(self.storage.read(_file_of(name)))))
        return found

    # ---- locks ----

    def lock(self, name: str = "_lock") -> AbstractContextManager[Sequence[int]]:
        """Hold a lock of the table during the block. `TableFiles.lock` describes the result."""
        return self.storage.lock(name)


def _file_of(commit: str) -> str:
    return f"{COMMITS}/{commit}.json"


def _describe(about: Mapping[str, Any]) -> str:
    """Return the group or the topics of a table as text for an error."""
    if topics := about.get("topics"):
        return f"the topics {', '.join(topics)}"
    return f"the group {about.get('group')} ({', '.join(about.get('kinds', ()))})"
