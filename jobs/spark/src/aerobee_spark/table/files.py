"""The files of a facts table on a disk of this machine, and who may write them.

DIR/_facts.json                      what the table is of
DIR/_commits/<run>-<n>.json          a commit; appears in one step
DIR/run=<query id>/batch=<n>/        the Parquet files of a batch
DIR/compact=<n>/day=<yyyy-mm-dd>/    files that a compaction joined
DIR/_checkpoint/                     of Spark
DIR/_lock, DIR/_compact.lock         held by the job, and by a compaction
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from aerobee_spark.errors import ReportError
from aerobee_spark.table.commits import Commit, active

# How long the Java of a job that was killed may take to notice it.
LEFTOVER_S = 60.0
INTERVAL_S = 0.2


class FactsFiles:
    """One table. Raises ReportError when the folder is none."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.checkpoint = self.path / "_checkpoint"
        self._commits = self.path / "_commits"
        self._about = self.path / "_facts.json"

    def create(self, about: Mapping[str, Any]) -> None:
        """Makes the folder, or checks that it is a table of the same. Raises ReportError."""
        if not self._about.exists():
            try:
                self._commits.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ReportError(
                    f"{self.path} cannot be made into a folder ({error.strerror}): give another "
                    "--table",
                    str(self.path),
                ) from None
            foreign = [each.name for each in self.path.iterdir() if each.name not in _OURS]
            if foreign:
                raise ReportError(
                    f"{self.path} holds {foreign[0]} and is no facts table: give an empty folder",
                    str(self.path),
                )
            write_once(self._about, json.dumps({"v": 1, **about}))
            return
        found = self.about()
        for key, value in about.items():
            if found.get(key) != value:
                raise ReportError(
                    f"{self.path} is a table of {key} {found.get(key)}, and this is {key} {value}: "
                    "give another --table",
                    str(self.path),
                )

    def about(self) -> dict[str, Any]:
        """What the table is of. Raises ReportError when the folder is no table."""
        try:
            found: dict[str, Any] = json.loads(self._about.read_text("utf-8"))
        except (OSError, ValueError):
            raise ReportError(
                f"{self.path} is no facts table: write one with aerobee facts --table {self.path}",
                str(self.path),
            ) from None
        return found

    # ---- commits ----

    def commits(self) -> list[Commit]:
        """All that are there now, those that are replaced too."""
        return _read(sorted(self._commits.glob("*.json")))

    def snapshot(self) -> list[Commit]:
        """The commits that count, newest first. Their files stay while a compaction runs."""
        return active(self.commits())

    def is_committed(self, run: str, batch: int) -> bool:
        return (self._commits / f"{run}-{batch}.json").exists()

    def next_seq(self) -> int:
        """Above those of all commits. Of a run, and of the compactions, the one with the highest
        batch has the highest `seq`: the others are not opened."""
        newest: dict[str, int] = {}
        for path in self._commits.glob("*.json"):
            run, _, batch = path.stem.rpartition("-")
            newest[run] = max(int(batch), newest.get(run, 0))
        paths = (self._commits / f"{run}-{batch}.json" for run, batch in newest.items())
        return 1 + max((commit.seq for commit in _read(paths)), default=0)

    def commit(self, commit: Commit) -> None:
        """The rows count from here on. What was written before is on the disk then."""
        folders: set[Path] = set()
        for file in self.files(commit):
            _sync(file)
            folders |= {above for above in file.parents if above.is_relative_to(self.path)}
        for folder in sorted(folders, reverse=True):
            _sync(folder)
        write_once(self._commits / f"{commit.name}.json", json.dumps(commit.as_json()))

    def forget(self, commit: Commit) -> None:
        (self._commits / f"{commit.name}.json").unlink(missing_ok=True)

    def files(self, commit: Commit) -> list[Path]:
        return sorted((self.path / commit.folder).rglob("*.parquet")) if commit.folder else []

    # ---- who writes ----

    @contextmanager
    def lock(self, name: str = "_lock") -> Iterator[int]:
        """For one job at a time; yields the open file, which a child process that inherits it holds
        as well. Waits for the children of a job that was killed. Raises ReportError when a job
        runs."""
        number = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _wait_for(number, self.path)
            os.ftruncate(number, 0)
            os.pwrite(number, str(os.getpid()).encode(), 0)
            yield number
        finally:
            os.close(number)


def _read(paths: Iterable[Path]) -> list[Commit]:
    found = []
    for path in paths:
        with suppress(FileNotFoundError):  # a compaction removed it; another replaces it
            found.append(Commit.parse(json.loads(path.read_text("utf-8"))))
    return found


_OURS = ("_facts.json", "_commits", "_checkpoint", "_lock", "_compact.lock")


def _wait_for(number: int, path: Path) -> None:
    deadline = time.monotonic() + LEFTOVER_S
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(number, 32, 0).decode()
            if not holder.isdigit() or _lives(int(holder)) or time.monotonic() > deadline:
                raise ReportError(
                    f"another job writes {path} (process {holder}): wait for its end, or stop it",
                    str(path),
                ) from None
            time.sleep(INTERVAL_S)
        else:
            return


def _lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def write_once(path: Path, text: str) -> None:
    """The file appears complete, in one step, and is on the disk."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    _sync(beside)
    beside.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
