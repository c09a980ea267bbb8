"""A disk in memory whose power can be cut. For whatever takes an `aerobee_broker.disk.Disk`.

The fault model
===============

A disk has two contents: the *current* one, which every read sees (the page cache), and the
*durable* one, which is all that is left when the power goes.

* **Writes.** What is written stays in the page cache until the file is synced. When the power is
  cut, each 512-byte sector that was written since keeps one of its versions, each as likely: the
  durable one, or the one after any of the writes that touched it. So writes are dropped, torn at
  sectors, and reordered, within a file and between files. A sector itself is written wholly or not
  at all.
* **Sizes.** So does the size of a file: the durable one or any it had since. What a file gains
  without data reads as zeros.
* **Names.** Creating, renaming and removing change a directory, in order; when the power is cut, a
  directory keeps any number of its changes since it was synced, but no later one without the
  earlier ones (a journal). Syncing a file does not make its name durable. A rename is one change.
  Directories themselves are there from the moment they are made; the removal of a tree is durable
  when a directory above it is synced.
* **A sync that fails** (EIO): the sectors that were dirty are clean from then on, with their
  durable content unchanged; the size is kept. Reads still see the current content; a later sync of
  the file succeeds and saves nothing of them.
* **A slow sync.** `before_sync` is called first and may hold its thread up: until it returns, the
  power may go, and nothing that the sync was for is durable.
* **No space** (ENOSPC): a write that needs more than there is writes what fits, and fails. Space is
  counted by sectors that were ever written or allocated.
* **A crash of the process** (kill): current contents stay, and may still be lost by a power cut.
* **Crash points.** Every call that changes something counts. `crash_at=n` cuts the power in call n:
  of a write a random number of bytes gets in (all or none when it lies in one sector), any other
  call takes place or does not; that call and all later ones raise PowerCut.
* **Decay.** `flip` turns one bit, in both contents.

Not modelled: a disk that lies about a sync, sectors that cannot be read (`fail_reads` makes a whole
file unreadable), damage to the names.

Everything random comes from one seed.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

from aerobee_broker.disk import Usage
from support.disk.page_cache import SECTOR, DirectoryContent, FileContent


class PowerCut(BaseException):
    """The machine is off. Not an Exception: nobody may handle it."""


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


class SimulatedFile:
    def __init__(self, disk: SimulatedDisk, path: Path, content: FileContent) -> None:
        self.path = path
        self._disk = disk
        self._content: FileContent | None = content

    @property
    def content(self) -> FileContent:
        if self._content is None:
            raise ValueError(f"{self.path} is closed")
        return self._content

    def pread(self, size: int, offset: int) -> bytes:
        self._disk.check_power()
        if self._disk.fail_reads(self.path):
            raise _error(errno.EIO, self.path)
        return bytes(self.content.current[offset : offset + size])

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        content = self.content
        data = bytes(data)
        with_power = self._disk.step()
        if not with_power:
            data = data[: self._torn(len(data), offset)]
        elif self._disk.fail_writes(self.path):
            raise _error(errno.EIO, self.path)
        fits = self._disk.take(content, offset, len(data))
        self._write(data[:fits], offset)
        if fits < len(data):
            raise _error(errno.ENOSPC, self.path)
        self._disk.check_power()

    def _torn(self, size: int, offset: int) -> int:
        if offset // SECTOR == (offset + size - 1) // SECTOR:
            return self._disk.rng.choice([0, size])
        return self._disk.rng.randint(0, size)

    def _write(self, data: bytes, offset: int) -> None:
        content = self.content
        end = offset + len(data)
        if end > len(content.current):
            content.resize(end)
        content.current[offset:end] = data
        content.touch(offset, end)

    def sync(self) -> None:
        content = self.content
        self._disk.before_sync(self.path)
        with_power = self._disk.step()
        if with_power and self._disk.fail_syncs(self.path):
            content.drop()
            raise _error(errno.EIO, self.path)
        if with_power or self._disk.rng.random() < 0.5:
            content.sync()
        self._disk.check_power()

    def size(self) -> int:
        self._disk.check_power()
        return len(self.content.current)

    def truncate(self, size: int) -> None:
        if self._disk.step() or self._disk.rng.random() < 0.5:
            self.content.resize(size)
        self._disk.check_power()

    def allocate(self, offset: int, size: int) -> None:
        content = self.content
        if self._disk.step() or self._disk.rng.random() < 0.5:
            if self._disk.take(content, offset, size) < size:
                raise _error(errno.ENOSPC, self.path)
            if offset + size > len(content.current):
                content.resize(offset + size)
        self._disk.check_power()

    def close(self) -> None:
        self._content = None
        self._disk.open_files -= 1


class SimulatedLock:
    def __init__(self, disk: SimulatedDisk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def close(self) -> None:
        self._disk.locks.discard(self._path)


def never(path: Path) -> bool:
    return False


def at_once(path: Path) -> None:
    pass


def unseen() -> None:
    pass


class SimulatedDisk:
    """See the head of the module. Implements `Disk`."""

    def __init__(self, seed: int = 0, *, crash_at: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.crash_at = crash_at
        self.steps = 0  # calls that changed something
        self.dead = False
        self.capacity: int | None = None  # bytes; None: no bound
        self.reported = Usage(used=10, free=90)
        self.locks: set[Path] = set()
        self.open_files = 0
        self.most_open_files = 0
        self.fail_reads: Callable[[Path], bool] = never
        self.fail_writes: Callable[[Path], bool] = never
        self.fail_syncs: Callable[[Path], bool] = never
        self.before_sync: Callable[[Path], None] = at_once
        self.on_cut: Callable[[], None] = unseen  # the power goes at `crash_at`
        self._directories: dict[Path, DirectoryContent] = {}

    # ---- power ----

    def check_power(self) -> None:
        if self.dead:
            raise PowerCut

    def step(self) -> bool:
        """Counts a change. False: the power goes in the middle of it."""
        self.check_power()
        self.steps += 1
        self.dead = self.crash_at is not None and self.steps >= self.crash_at
        if self.dead:
            self.on_cut()
        return not self.dead

    def after_power_cut(self, seed: int) -> SimulatedDisk:
        """The disk that is found when the power is back."""
        rng = random.Random(seed)
        result = SimulatedDisk(seed)
        result.capacity, result.reported = self.capacity, self.reported
        survivors: dict[int, FileContent] = {}
        for path in sorted(self._directories):
            directory = result._directories[path] = DirectoryContent()
            for name, content in sorted(self._directories[path].survivors(rng).items()):
                if id(content) not in survivors:
                    survivors[id(content)] = content.survivor(rng)
                directory.durable[name] = survivors[id(content)]
            directory.current = dict(directory.durable)
        return result

    def after_kill(self) -> SimulatedDisk:
        """The disk as the next process finds it; this one can do nothing more to it."""
        result = SimulatedDisk(self.rng.randrange(1 << 30))
        result._directories = self._directories
        result.capacity, result.reported = self.capacity, self.reported
        self.dead = True
        return result

    # ---- space ----

    def take(self, content: FileContent, offset: int, size: int) -> int:
        """Takes space for these bytes; returns how many of them there is room for."""
        sectors = range(offset // SECTOR, -(-(offset + size) // SECTOR))
        if self.capacity is None:
            content.taken.update(sectors)
            return size
        wanted = set(sectors) - content.taken
        room = self.capacity // SECTOR - self._used_sectors()
        granted = sorted(wanted)[: max(0, room)]
        content.taken.update(granted)
        if len(granted) == len(wanted):
            return size
        first_missing = sorted(wanted)[len(granted)]
        return max(0, first_missing * SECTOR - offset)

    def used_bytes(self) -> int:
        """Return the space that all files take: a `capacity` of so many bytes leaves no room."""
        return self._used_sectors() * SECTOR

    def space_of(self, path: Path) -> int:
        """Return the space that a file takes, in bytes."""
        return len(self._directory(path.parent).current[path.name].taken) * SECTOR

    def _used_sectors(self) -> int:
        contents = {id(c): c for d in self._directories.values() for c in d.current.values()}
        return sum(len(content.taken) for content in contents.values())

    # ---- Disk ----

    def open(self, path: Path, *, create: bool = False) -> SimulatedFile:
        self.check_power()
        directory = self._directory(path.parent)
        content = directory.current.get(path.name)
        if content is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            content = FileContent()
            if self.step() or self.rng.random() < 0.5:
                directory.change((path.name, content))
            self.check_power()
        self.open_files += 1
        self.most_open_files = max(self.most_open_files, self.open_files)
        return SimulatedFile(self, path, content)

    def _directory(self, path: Path) -> DirectoryContent:
        try:
            return self._directories[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None

    def exists(self, path: Path) -> bool:
        self.check_power()
        parent = self._directories.get(path.parent)
        return path in self._directories or (parent is not None and path.name in parent.current)

    def list(self, directory: Path) -> list[str]:
        self.check_power()
        prefix = f"{directory}/"  # texts: to make the parent of each path takes four times as long
        texts = [str(path) for path in self._directories]
        within = [text.removeprefix(prefix) for text in texts if text.startswith(prefix)]
        below = {name for name in within if "/" not in name}
        found = self._directories.get(directory)
        return sorted(below | set(found.current if found else ()))

    def make_directory(self, path: Path) -> None:
        # Directories survive a power cut: only the names in them may not.
        self.check_power()
        if path not in self._directories:
            for part in (*reversed(path.parents), path):
                self._directories.setdefault(part, DirectoryContent())

    def rename(self, source: Path, target: Path) -> None:
        assert source.parent == target.parent, "one change of one directory"
        directory = self._directory(source.parent)
        content = directory.current.get(source.name)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
        if self.step() or self.rng.random() < 0.5:
            directory.change((target.name, content), (source.name, None))
        self.check_power()

    def remove(self, path: Path) -> None:
        directory = self._directory(path.parent)
        if path.name not in directory.current:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if self.step() or self.rng.random() < 0.5:
            directory.change((path.name, None))
        self.check_power()

    def remove_tree(self, path: Path) -> None:
        for directory in sorted(self._directories):
            if directory == path or path in directory.parents:
                for name in list(self._directories[directory].current):
                    self.remove(directory / name)
                self._directories[directory].removed = len(self._directories[directory].changes)

    def sync_directory(self, path: Path) -> None:
        directory = self._directory(path)
        with_power = self.step()
        if with_power and self.fail_syncs(path):
            raise _error(errno.EIO, path)
        if with_power or self.rng.random() < 0.5:
            directory.sync()
            for below, content in self._directories.items():
                if content.removed and path in below.parents:
                    content.sync(content.removed)
        self.check_power()

    def lock(self, path: Path) -> SimulatedLock | None:
        if path in self.locks:
            return None
        self.open(path, create=True).close()
        self.locks.add(path)
        return SimulatedLock(self, path)

    def usage(self, path: Path) -> Usage:
        return self.reported

    # ---- for tests ----

    def files(self) -> dict[Path, bytes]:
        """Current contents."""
        return {
            path / name: bytes(content.current)
            for path, directory in self._directories.items()
            for name, content in directory.current.items()
        }

    def durable(self, path: Path) -> bytes:
        """What no power cut takes from a file: its durable content under its durable name."""
        directory = self._directories.get(path.parent)
        content = directory.durable.get(path.name) if directory else None
        return bytes(content.durable) if content else b""

    def put(self, path: Path, data: bytes) -> None:
        """Replaces a file, durably, as an operator would."""
        content = self._directory(path.parent).current[path.name]
        content.current, content.durable = bytearray(data), bytearray(data)
        content.drop()

    def flip(self, path: Path, bit: int) -> None:
        """Decay of one bit."""
        content = self._directory(path.parent).current[path.name]
        for data in (content.current, content.durable):
            if bit // 8 < len(data):
                data[bit // 8] ^= 1 << bit % 8

    def copy(self) -> SimulatedDisk:
        """A disk of its own with the current contents, all durable."""
        result = SimulatedDisk(self.rng.randrange(1 << 30))
        result.capacity, result.reported = self.capacity, self.reported
        for path, directory in self._directories.items():
            mine = result._directories[path] = DirectoryContent()
            for name, content in directory.current.items():
                mine.current[name] = other = FileContent()
                other.current = bytearray(content.current)
                other.durable = bytearray(content.current)
                other.taken = set(content.taken)
            mine.durable = dict(mine.current)
        return result
