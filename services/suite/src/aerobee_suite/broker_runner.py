"""Run the broker of a suite.

Tests may kill and restart it while the other services keep running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from pathlib import Path

from aerobee_broker.app import BrokerApp
from aerobee_broker.broker import Broker
from aerobee_broker.config import BrokerOptions
from aerobee_broker.disk import RealDisk, RealFile, Usage
from aerobee_chassis.background import PeriodicTask
from aerobee_chassis.clock import Clock
from aerobee_chassis.rpc.services import Adapt
from aerobee_wire.status import illegal_operation

# ---- a disk that discards writes ----
#
# Provide a disk that discards all writes after its process was "killed".
#
# A broker that shares its process with other services cannot be killed alone. Instead, it is
# stopped on a disk that no longer writes. So its files stay as they were at that moment.


class MortalDisk:
    """A `Disk` that behaves like the real one until `die` is called."""

    def __init__(self) -> None:
        self._disk = RealDisk()
        self.dead = False

    def die(self) -> None:
        """Discard all writes, new names and removals from now on. Reads still work."""
        self.dead = True

    def open(self, path: Path, *, create: bool = False) -> MortalFile:
        if self.dead and create and not path.exists():
            return MortalFile(self._disk.open(Path("/dev/null")), self)
        return MortalFile(self._disk.open(path, create=create), self)

    def exists(self, path: Path) -> bool:
        return self._disk.exists(path)

    def list(self, directory: Path) -> list[str]:
        return self._disk.list(directory)

    def make_directory(self, path: Path) -> None:
        if not self.dead:
            self._disk.make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        if not self.dead:
            self._disk.rename(source, target)

    def remove(self, path: Path) -> None:
        if not self.dead:
            self._disk.remove(path)

    def remove_tree(self, path: Path) -> None:
        if not self.dead:
            self._disk.remove_tree(path)

    def sync_directory(self, path: Path) -> None:
        if not self.dead:
            self._disk.sync_directory(path)

    def lock(self, path: Path) -> RealFile | None:
        return self._disk.lock(path)

    def usage(self, path: Path) -> Usage:
        return self._disk.usage(path)


class MortalFile:
    """An open file of a MortalDisk. Implements `DiskFile`."""

    __slots__ = ("_disk", "_file", "path")

    def __init__(self, file: RealFile, disk: MortalDisk) -> None:
        self.path = file.path
        self._file = file
        self._disk = disk

    def pread(self, size: int, offset: int) -> bytes:
        return self._file.pread(size, offset)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        if not self._disk.dead:
            self._file.pwrite(data, offset)

    def sync(self) -> None:
        if not self._disk.dead:
            self._file.sync()

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        if not self._disk.dead:
            self._file.truncate(size)

    def allocate(self, offset: int, size: int) -> None:
        if not self._disk.dead:
            self._file.allocate(offset, size)

    def close(self) -> None:
        self._file.close()


# ---- the runner ----


@dataclass(slots=True, eq=False)
class BrokerRunner:
    """Start, stop, kill and restart the broker.

    If `options` leave the port free, the first start chooses a port, and later starts use it again.
    """

    options: BrokerOptions
    clock: Clock
    adapt: Adapt
    _app: BrokerApp | None = field(default=None, init=False)
    _disk: MortalDisk = field(default_factory=MortalDisk, init=False)
    _address: str = field(default="", init=False)
    # Of the first start. A restart comes from a call to the name server, which keeps real time.
    _context: Context | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        """Return the broker's "host:port", also while it is down, or "" before the first start."""
        return self._address

    @property
    def running(self) -> Broker | None:
        return self._app.broker if self._app is not None else None

    @property
    def upkeep(self) -> Sequence[PeriodicTask]:
        """Return the periodic tasks of the running broker."""
        return self._app.upkeep if self._app is not None else ()

    async def start(self, namesrv: str = "") -> None:
        """Start the broker. Raises StartError.

        The first start needs `namesrv`, the "host:port" of the name server.
        """
        if namesrv:
            self.options = self.options.model_copy(update={"namesrv_addr": namesrv})
        self._disk = MortalDisk()
        app = self._app = BrokerApp(
            self.options, clock=self.clock, disk=self._disk, adapt=self.adapt
        )
        self._context = self._context or copy_context()
        await asyncio.create_task(app.start(), context=self._context.copy())
        self._address = app.address
        self.options = self.options.model_copy(
            update={"listen_port": int(app.address.rpartition(":")[2])}
        )

    async def stop(self) -> None:
        """Stop the broker if it is running."""
        app, self._app = self._app, None
        if app is not None:
            await app.stop()

    async def kill(self) -> None:
        """Simulate kill -9 for the clients and the files of the broker.

        Connections break during calls, and nothing is written afterwards. Data that was written to
        the operating system is kept. Raises MqError with the code ILLEGAL_OPERATION if the broker
        does not run.
        """
        app = self._app
        if app is None:
            raise illegal_operation("the broker does not run: restart it before you kill it")
        # Do not await between these two calls: a write between them would be lost but acknowledged.
        self._disk.die()
        await app.sever()
        await self.stop()
