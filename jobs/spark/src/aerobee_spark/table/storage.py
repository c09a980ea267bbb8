"""Declare what a facts table needs from its file system.

A file is named by its path inside the table, with / between folders. Operations raise ReportError
if the file system refuses, and FileNotFoundError if a file is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

# Time for the Java of a killed job to notice and exit, and the interval at which this is checked.
LEFTOVER_S = 60.0
INTERVAL_S = 0.2

# A path on a disk of this machine, or a URI.
Table = Path | str


class TableFiles(Protocol):
    @property
    def where(self) -> str:
        """Return the path or URI of the table."""

    def make(self, folder: str) -> None:
        """Create the folder and its parents, if they do not exist."""

    def exists(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes: ...

    def create(self, name: str, content: bytes) -> bool:
        """Create a complete file in one step, durably.

        Return False if it exists already; it is unchanged then.
        """

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names in the folder, without hidden ones; empty if it is missing."""

    def below(self, folder: str) -> list[str]:
        """Return the files in the folder and its subfolders, sorted, as paths inside the table."""

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its content; do nothing if it is missing."""

    def local(self, name: str) -> AbstractContextManager[Path]:
        """Provide the file on a local disk, for the block."""

    def writing(self, folder: str) -> AbstractContextManager[Path]:
        """Provide a local folder. At the end of the block its content is stored in `folder`."""

    def sync(self, names: Iterable[str]) -> None:
        """Make the files and their folders durable."""

    def lock(self, name: str) -> AbstractContextManager[Sequence[int]]:
        """Hold a lock for one job at a time.

        Yield open files that a child process must inherit to hold the lock too. Wait for the
        children of a killed job. Raise ReportError if a job is running.
        """
