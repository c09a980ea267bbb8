"""A real disk whose commit log fails on demand."""

from __future__ import annotations

from pathlib import Path

from aerobee_broker.disk import RealDisk, RealFile


class BrokenDisk(RealDisk):
    """`sync_error` and `write_error`: the errno that files of the commit log fail with; 0: none."""

    def __init__(self) -> None:
        self.sync_error = 0
        self.write_error = 0

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        disk = self

        class File(RealFile):
            __slots__ = ()

            def sync(self) -> None:
                if disk.sync_error and "commitlog" in str(self.path):
                    raise OSError(disk.sync_error, "injected")
                super().sync()

            def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
                if disk.write_error and "commitlog" in str(self.path):
                    raise OSError(disk.write_error, "injected")
                super().pwrite(data, offset)

        file = super().open(path, create=create)
        return File(file.path, file._fd)
