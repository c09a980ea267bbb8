"""What a facts table asks of the file system it lies on.

A file is named by its path inside the table, with / between folders. Operations raise ReportError
when the file system refuses, and FileNotFoundError where a file is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

# How long the Java of a job that was killed may take to notice it, and how often that is looked at.
LEFTOVER_S = 60.0
INTERVAL_S = 0.2

# A path on a disk of this machine, or a URI.
Table = Path | str


class TableFiles(Protocol):
    @property
    def where(self) -> str:
        """Path or URI of the table."""

    def make(self, folder: str) -> None:
        """Makes the folder and those above it, unless they are there."""

    def exists(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes: ...

    def create(self, name: str, content: bytes) -> bool:
        """The file appears complete, in one step, and is on the disk. False: it was there already,
        and is as it was."""

    def names(self, folder: str = "") -> list[str]:
        """Of what lies directly in the folder, sorted, without hidden files; empty without it."""

    def below(self, folder: str) -> list[str]:
        """The files in the folder and below it, sorted, each named from the table on."""

    def delete(self, name: str) -> None:
        """A file, or a folder with all that it holds; nothing when it is not there."""

    def local(self, name: str) -> AbstractContextManager[Path]:
        """The file on a disk of this machine, for the block."""

    def writing(self, folder: str) -> AbstractContextManager[Path]:
        """A folder on a disk of this machine; what it holds at the end of the block is in `folder`
        then."""

    def sync(self, names: Iterable[str]) -> None:
        """The files, and the folders they are in, are on the disk."""

    def lock(self, name: str) -> AbstractContextManager[Sequence[int]]:
        """For one job at a time; yields open files that a child process of the job must inherit to
        hold the lock as well. Waits for the children of a job that was killed. Raises ReportError
        when a job runs."""
