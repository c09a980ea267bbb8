"""Manage the files of a facts table on a local disk."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aerobee_spark.errors import ReportError
from aerobee_spark.table.storage import INTERVAL_S, LEFTOVER_S


class LocalFiles:
    """Accesses the files of a facts table in a local folder. Implements TableFiles without Java."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def where(self) -> str:
        return str(self.path)

    def make(self, folder: str) -> None:
        try:
            (self.path / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ReportError(
                f"cannot create the folder {self.path} ({error.strerror}): use another --table",
                str(self.path),
            ) from None

    def exists(self, name: str) -> bool:
        return (self.path / name).exists()

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def create(self, name: str, content: bytes) -> bool:
        """Create a complete file in one step. Return False if it exists already.

        Only the lock prevents that two writers create the same file.
        """
        if (self.path / name).exists():
            return False
        self.replace(name, content)
        return True

    def replace(self, name: str, content: bytes) -> None:
        path = self.path / name
        beside = path.with_name(f".{path.name}.new")
        beside.write_bytes(content)
        _sync(beside)
        beside.replace(path)
        _sync(path.parent)

    def names(self, folder: str = "") -> list[str]:
        return sorted(path.name for path in (self.path / folder).glob("[!.]*"))

    def below(self, folder: str) -> list[str]:
        paths = (path for path in (self.path / folder).rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.path)) for path in paths)

    def delete(self, name: str) -> None:
        path = self.path / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        yield self.path / name

    @contextmanager
    def writing(self, folder: str) -> Iterator[Path]:
        yield self.path / folder

    def sync(self, names: Iterable[str]) -> None:
        folders: set[Path] = set()
        for file in (self.path / name for name in names):
            _sync(file)
            folders |= {above for above in file.parents if above.is_relative_to(self.path)}
        for folder in sorted(folders, reverse=True):
            _sync(folder)

    @contextmanager
    def lock(self, name: str) -> Iterator[Sequence[int]]:
        number = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _wait_for(number, self.path)
            os.ftruncate(number, 0)
            os.pwrite(number, str(os.getpid()).encode(), 0)
            yield (number,)
        finally:
            os.close(number)


def _wait_for(number: int, path: Path) -> None:
    deadline = time.monotonic() + LEFTOVER_S
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(number, 32, 0).decode()
            if not holder.isdigit() or _lives(int(holder)) or time.monotonic() > deadline:
                raise ReportError(
                    f"another job writes to {path} (process {holder}): wait for it, or stop it",
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


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
