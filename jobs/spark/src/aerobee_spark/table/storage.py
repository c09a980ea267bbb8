"""Declare the operations that a facts table needs from its file system.

The name of a file is its path inside the table, with / between folders. Operations raise
ReportError if the file system refuses them, and FileNotFoundError if a file is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

# The longest wait for the Java process of a killed job to exit, and the interval of checks for it.
LEFTOVER_S = 60.0
INTERVAL_S = 0.2

# The location of a table: a path on this machine, or a URI.
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
        """Create a complete, durable file in one step.

        Return False, and keep the existing file, if the file exists already.
        """

    def replace(self, name: str, content: bytes) -> None:
        """Create or replace a complete, durable file in one step."""

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names of the files and folders in a folder, without hidden ones.

        Return an empty list if the folder is missing.
        """

    def below(self, folder: str) -> list[str]:
        """Return the files in the folder and its subfolders, sorted, as paths inside the table."""

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its content. Do nothing if it is missing."""

    def local(self, name: str) -> AbstractContextManager[Path]:
        """Provide a local path at which the file can be read during the block."""

    def writing(self, folder: str) -> AbstractContextManager[Path]:
        """Provide a local folder to write to. At the end of the block, store it as `folder`."""

    def sync(self, names: Iterable[str]) -> None:
        """Make the files and their folders durable."""

    def lock(self, name: str) -> AbstractContextManager[Sequence[int]]:
        """Hold a lock during the block. Only one job at a time can hold it.

        Yield open files that a child process must inherit to hold the lock too. If a killed job
        left child processes, wait for them. Raise ReportError if another job holds the lock.
        """
