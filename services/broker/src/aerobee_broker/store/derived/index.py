"""The index maps a key or unique id of a topic to the physical offsets of its records.

It is derived from the commit log, so it may be lost at any time. Files have RocketMQ's format: a
header, hash slots and entries. A slot contains the number of its newest entry, and each entry the
number of the previous entry in the same slot. Entries are added in batches.

The slots of the newest file are kept in memory: 4 bytes each, 20 MB by default, allocated on first
use. They are written at a checkpoint, and released if no message arrives for a while. Two keys may
have the same hash, so the caller must compare the keys.
"""

from __future__ import annotations

import calendar
import struct
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from aerobee_broker.disk import Disk, DiskFile
from aerobee_broker.errors import StoreReadError, is_unreadable
from aerobee_broker.store.derived.checkpoint import IndexState
from aerobee_broker.store.log.open_files import OpenFiles
from aerobee_wire.layout import Layout
from aerobee_wire.tags import java_hash

if TYPE_CHECKING:
    import numpy

    from aerobee_broker.store.derived.keys import Keys

HEADER = struct.Struct(
    ">q"  # store timestamp (ms) of the first record
    "q"  # store timestamp (ms) of the last record
    "q"  # physical offset of the first record
    "q"  # physical offset of the last record
    "i"  # hash slots in use
    "i"  # index count: the number that the next entry gets; the first is 1
)
assert HEADER.size == 40
ENTRY_LAYOUT = Layout(
    ("hash", "i"),  # of topic#key, without its sign
    ("physical_offset", "q"),
    ("seconds", "i"),  # between the first record of the file and this one
    ("previous", "i"),  # number of the previous entry in the same slot; 0 without one
)
ENTRY = ENTRY_LAYOUT.struct
assert ENTRY.size == 20
SLOT_SIZE = 4
NAME_DIGITS = 17  # store time of the first record, UTC: yyyyMMddHHmmssSSS
_PAGE_SLOTS = 1_024  # slots are written by pages of 4 KB
_CHUNK_ENTRIES = 1 << 18
_MAX_INT = 0x7FFF_FFFF


def key_hash(topic: str, key: str) -> int:
    """Return Java's hash of topic#key without its sign."""
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value > _MAX_INT else value


def name_of(timestamp_ms: int) -> int:
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    return int(time.strftime("%Y%m%d%H%M%S", time.gmtime(seconds))) * 1000 + milliseconds


def name_after(name: int) -> int:
    """Return the index file name whose time is one millisecond later than in `name`."""
    seconds, milliseconds = divmod(name, 1000)
    moment = calendar.timegm(time.strptime(f"{seconds:014d}", "%Y%m%d%H%M%S"))
    return name_of(moment * 1000 + milliseconds + 1)


@dataclass(slots=True, eq=False)
class IndexFile:
    """The path and the header fields of one index file."""

    path: Path
    begin_ms: int = 0
    end_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used_slots: int = 0
    count: int = 1

    @classmethod
    def of_header(cls, path: Path, header: bytes) -> Self:
        found = cls(path, *HEADER.unpack(header))
        found.count = max(1, found.count)
        return found

    @property
    def name(self) -> int:
        return int(self.path.name)

    def header(self) -> bytes:
        _, *fields = astuple(self)
        return HEADER.pack(*fields)


class Slots:
    """The hash slots of one index file, kept in memory.

    `dirty` marks the pages of slots that are not yet written to the file.
    """

    __slots__ = ("dirty", "values")

    def __init__(self, count: int) -> None:
        import numpy as np

        # A page of zeros takes no memory before the first write to it.
        self.values: numpy.ndarray[Any, Any] = np.zeros(count, dtype=np.int32)
        self.dirty: numpy.ndarray[Any, Any] = np.zeros(-(-count // _PAGE_SLOTS), dtype=bool)

    def read(self, file: DiskFile) -> None:
        import numpy as np

        nothing = bytes(_PAGE_SLOTS * SLOT_SIZE)
        for start in range(0, len(self.values), _PAGE_SLOTS):
            data = file.pread(
                min(_PAGE_SLOTS, len(self.values) - start) * SLOT_SIZE,
                HEADER.size + start * SLOT_SIZE,
            )
            if data != nothing:
                self.values[start : start + len(data) // SLOT_SIZE] = np.frombuffer(data, ">i4")

    def write(self, file: DiskFile) -> None:
        """Write the dirty pages to the file, with one write for neighbouring pages."""
        import numpy as np

        edges = np.flatnonzero(np.diff(np.concatenate(([False], self.dirty, [False]))))
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            part = self.values[start * _PAGE_SLOTS : end * _PAGE_SLOTS].astype(">i4").tobytes()
            file.pwrite(part, HEADER.size + start * _PAGE_SLOTS * SLOT_SIZE)
            self.dirty[start:end] = False


class Index:
    def __init__(
        self, disk: Disk, folder: Path, slot_count: int, entry_count: int, open_files: OpenFiles
    ) -> None:
        self.folder = folder
        self.files: list[IndexFile] = []
        self.end_offset = 0  # physical offset: the keys of records below it are in the index
        self.unsynced: set[Path] = set()
        self.names_unsynced = False
        self.expired: list[Path] = []
        self._disk = disk
        self._open_files = open_files
        self._slot_count = slot_count
        self._entry_count = entry_count
        self._entries_at = HEADER.size + slot_count * SLOT_SIZE
        self._file_size = self._entries_at + entry_count * ENTRY.size
        self._unreadable: set[Path] = set()  # files whose last read failed
        self._is_unordered = False  # keys were added after keys of later records
        self._slots: Slots | None = None  # of the newest file; read when first needed

    # ---- put ----

    def put(self, keys: Keys) -> None:
        """Add keys, which are in the order of the log, and remove them from `keys`.

        Raises OSError. After an error, `keys` has the remaining keys, and the caller may retry.
        """
        while len(keys):
            file = self._file_for(int(keys.physical_offsets[0]), int(keys.stored_ms[0]))
            count = min(len(keys), self._entry_count - file.count)
            self._put(file, keys, count)
            keys.drop(count)

    def _file_for(self, physical_offset: int, stored_ms: int) -> IndexFile:
        """Return the newest file. If it is full, create one that begins with this record."""
        if self.files and self.files[-1].count < self._entry_count:
            return self.files[-1]
        if self.files:
            self.write()
        name = name_of(stored_ms)
        if self.files and name <= self.files[-1].name:
            name = name_after(self.files[-1].name)
        self._disk.make_directory(self.folder)
        file = IndexFile(self.folder / f"{name:0{NAME_DIGITS}d}")
        self._open_files.get(file.path, create=True).truncate(self._file_size)
        self.names_unsynced = True
        file.begin_ms, file.begin_offset = stored_ms, physical_offset
        self._slots = None
        self.files.append(file)
        return file

    def _put(self, file: IndexFile, keys: Keys, count: int) -> None:
        import numpy as np  # the import takes 80 ms and 11 MB: not before the first key

        slots = self._slots_of(file)
        slots_of_keys = keys.hashes[:count] % self._slot_count
        numbers = np.arange(file.count, file.count + count, dtype=np.int32)
        # Keys of one slot follow one another within a batch: bring them together, in order.
        order = np.argsort(slots_of_keys, kind="stable")
        sorted_slots, sorted_numbers = slots_of_keys[order], numbers[order]
        first = np.empty(count, dtype=bool)
        first[0] = True
        np.not_equal(sorted_slots[1:], sorted_slots[:-1], out=first[1:])
        before = np.empty(count, dtype=np.int32)
        before[1:] = sorted_numbers[:-1]
        before[first] = slots.values[sorted_slots[first]]
        entries = np.empty(count, dtype=_entry_type())
        entries["hash"], entries["physical_offset"] = (
            keys.hashes[:count],
            keys.physical_offsets[:count],
        )
        seconds = (keys.stored_ms[:count] - file.begin_ms) // 1000
        entries["seconds"] = np.clip(seconds, 0, _MAX_INT)
        entries["previous"][order] = before
        self._open_files.get(file.path).pwrite(
            entries.tobytes(), self._entries_at + file.count * ENTRY.size
        )
        # No step after this one fails: a failed put can be repeated.
        self.unsynced.add(file.path)
        last = np.append(first[1:], True)
        file.used_slots += int(np.count_nonzero(before[first] == 0))
        slots.values[sorted_slots[last]] = sorted_numbers[last]
        slots.dirty[sorted_slots // _PAGE_SLOTS] = True
        file.count += count
        file.end_ms = int(keys.stored_ms[count - 1])
        file.end_offset = int(keys.physical_offsets[count - 1])

    def write(self) -> None:
        """Write slots and header of the newest file to the operating system. Raises OSError."""
        if not self.files:
            return
        file = self.files[-1]
        handle = self._open_files.get(file.path)
        if self._slots is not None:
            self._slots.write(handle)
        handle.pwrite(file.header(), 0)
        self.unsynced.add(file.path)

    def release_slots(self) -> None:
        """Free the memory of the slots if they are all in the file.

        The next `put` reads them again, which takes 10 ms.
        """
        if self._slots is not None and not self._slots.dirty.any():
            self._slots = None

    def rebuild_at_next_start(self) -> None:
        """Let the next start rebuild the index, because its keys are out of order.

        A search by time may miss such keys.
        """
        self._is_unordered = True

    def state(self) -> IndexState:
        """Return the state of the index for a checkpoint, after `write`.

        While a file cannot be read, or keys are out of order, the state is intentionally wrong, so
        that the next start rebuilds the index.
        """
        if self._unreadable or self._is_unordered:
            return IndexState(file_count=1)
        if not self.files:
            return IndexState(end_offset=self.end_offset)
        last = self.files[-1]
        return IndexState(len(self.files), last.name, last.count, self.end_offset)

    @property
    def end_ms(self) -> int:
        return self.files[-1].end_ms if self.files else 0

    def _slots_of(self, file: IndexFile) -> Slots:
        if self._slots is None:
            try:
                slots = Slots(self._slot_count)
                if file.count > 1:
                    slots.read(self._open_files.get(file.path))
            except OSError as error:
                if not is_unreadable(error):
                    raise
                slots = self._slots_from_entries(file)
            self._slots = slots
        return self._slots

    # ---- find ----

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the physical offsets of records whose key has the same hash, newest first.

        Raises StoreReadError.
        """
        wanted = key_hash(topic, key)
        for file in reversed(self.files):
            if file.count > 1 and file.begin_ms <= end_ms and file.end_ms >= begin_ms:
                try:
                    yield from self._find(file, wanted, begin_ms, end_ms)
                except OSError as error:
                    if is_unreadable(error):
                        self._unreadable.add(file.path)
                    raise StoreReadError(error) from error
                self._unreadable.discard(file.path)

    def _find(self, file: IndexFile, wanted: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        number = self._slot(file, wanted % self._slot_count)
        # An entry has whole seconds, so the caller must compare the timestamp of the record.
        low = (begin_ms - file.begin_ms) // 1000 if begin_ms > file.begin_ms else 0
        high = (end_ms - file.begin_ms) // 1000
        while 0 < number < file.count:
            data = self._open_files.get(file.path).pread(
                ENTRY.size, self._entries_at + number * ENTRY.size
            )
            found, physical_offset, seconds, before = ENTRY.unpack(data)
            if seconds < low or before >= number:
                return  # the remaining entries are older, or the chain is damaged
            if found == wanted and seconds <= high:
                yield physical_offset
            number = before

    def _slot(self, file: IndexFile, slot: int) -> int:
        if file is self.files[-1] and self._slots is not None:
            return int(self._slots.values[slot])
        data = self._open_files.get(file.path).pread(SLOT_SIZE, HEADER.size + slot * SLOT_SIZE)
        return int.from_bytes(data, "big")

    # ---- start, retention ----

    def load(self, state: IndexState, end_ms: int, *, clean: bool) -> bool:
        """Load the entries that the checkpoint covers.

        `clean` is True if the store was closed in order. Otherwise, remove later entries. Return
        False if the files do not match the checkpoint, so that the index must be rebuilt. Raises
        OSError.
        """
        names = [n for n in self._disk.list(self.folder) if len(n) == NAME_DIGITS and n.isdigit()]
        covered = [name for name in names if int(name) <= state.last_name]
        covered = covered[max(0, len(covered) - state.file_count) :]
        for name in set(names) - set(covered):  # newer than the checkpoint, or expired
            self._disk.remove(self.folder / name)
        names = covered
        if len(names) < state.file_count or (names and int(names[-1]) != state.last_name):
            return False
        for name in names:
            handle = self._open_files.get(self.folder / name)
            if handle.size() != self._file_size:
                return False
            self.files.append(IndexFile.of_header(self.folder / name, handle.pread(HEADER.size, 0)))
        self.end_offset = state.end_offset
        if not self.files:
            return True
        if any(file.count != self._entry_count for file in self.files[:-1]):
            return False
        if clean:
            return bool(self.files[-1].count == state.index_count)
        self._restore(self.files[-1], state, end_ms)
        return True

    def _restore(self, file: IndexFile, state: IndexState, end_ms: int) -> None:
        """Remove the entries of the newest file that the checkpoint does not cover.

        Then rebuild header and slots from the remaining entries. Entries are only appended, so the
        covered ones are intact. Header and slots are overwritten in place, so they are unreliable.
        """
        handle = self._open_files.get(file.path)
        handle.truncate(self._entries_at + state.index_count * ENTRY.size)
        handle.truncate(self._file_size)
        file.count, file.end_ms = state.index_count, end_ms
        self._slots = self._slots_from_entries(file)
        self.write()

    def _slots_from_entries(self, file: IndexFile) -> Slots:
        import numpy as np

        slots = Slots(self._slot_count)
        slots.dirty[:] = True
        file.used_slots = 0
        handle = self._open_files.get(file.path)
        for start in range(1, file.count, _CHUNK_ENTRIES):
            count = min(_CHUNK_ENTRIES, file.count - start)
            data = handle.pread(count * ENTRY.size, self._entries_at + start * ENTRY.size)
            entries = np.frombuffer(data, dtype=_entry_type())
            # The last assignment to a slot wins, so the slot has its newest entry.
            slots.values[entries["hash"] % self._slot_count] = np.arange(start, start + count)
            file.used_slots += int(np.count_nonzero(entries["previous"] == 0))
            file.end_offset = int(entries["physical_offset"][-1])
        return slots

    def drop_below(self, physical_offset: int) -> None:
        """Drop the index files whose records are all below this physical offset.

        List them in `expired`. They may be removed after the next checkpoint, which no longer
        includes them.
        """
        while len(self.files) > 1 and self.files[0].end_offset < physical_offset:
            path = self.files.pop(0).path
            self._open_files.forget(path)
            self.unsynced.discard(path)
            self._unreadable.discard(path)
            self.expired.append(path)

    def reset(self, end_offset: int) -> None:
        """Remove all files before a rebuild from the physical offset `end_offset` on.

        Raises OSError.
        """
        self._open_files.close()
        self._disk.remove_tree(self.folder)
        self._disk.make_directory(self.folder)
        self._disk.sync_directory(self.folder.parent)
        self.files.clear()
        self.unsynced.clear()
        self._unreadable.clear()
        self._slots = None
        self.end_offset = end_offset
        self.names_unsynced = True


def _entry_type() -> Any:
    import numpy as np

    return np.dtype(ENTRY_LAYOUT.array_fields())
