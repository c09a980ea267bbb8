"""The options of a running broker: those of its start, and the changes in `config/runtime.json`.

The file belongs to this process: in a broker with replicas, each replica has its own.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.config import BrokerOptions
from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_chassis import runtime_config
from aerobee_chassis.runtime_options import FILE_NAME


class RuntimeConfig(runtime_config.RuntimeConfig[BrokerOptions]):
    """`store` is the directory of the store. `writer` is the thread that writes the file."""

    def __init__(self, options: BrokerOptions, disk: Disk, store: Path, writer: Worker) -> None:
        super().__init__(options, _File(disk, store / "config" / FILE_NAME, writer))


class _File:
    def __init__(self, disk: Disk, path: Path, writer: Worker) -> None:
        self.path = path
        self._disk = disk
        self._writer = writer

    def read(self) -> bytes:
        return read_file(self._disk, self.path)

    async def replace(self, data: bytes) -> None:
        await self._writer(partial(self._replace, data))

    def _replace(self, data: bytes) -> None:
        self._disk.make_directory(self.path.parent)
        replace_file(self._disk, self.path, data)
