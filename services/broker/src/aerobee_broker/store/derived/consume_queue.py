"""Consume queues store the positions of the records of each message queue.

An entry is called a unit and has 20 bytes. Consume queues are derived from the commit log, so they
may be lost at any time. The append of a record makes its unit, and the unit becomes visible when
the record is durable. Units are written to their files later, in groups. This module does not
depend on the format of records.

If the first messages of a queue have expired, its *rebuild start* is the queue offset at which its
old files end. A rebuild continues the queue there, unless a record of the log has another offset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from aerobee_broker.disk import Disk
from aerobee_broker.errors import StoreReadError, is_unreadable
from aerobee_broker.store.derived.topic_encoding import TAGS, TagsCode, TagsCodes, TopicEncoding
from aerobee_broker.store.log.commit_log import file_name, start_of
from aerobee_broker.store.log.open_files import OpenFiles
from aerobee_broker.store.messages import LOST_SIZE, UNIT
from aerobee_wire.properties import get as get_property

UNIT_SIZE = UNIT.size
_DIGEST_MASK = (1 << 64) - 1
_BEYOND = 1 << 62  # a physical offset beyond every record

# (topic, queue id) → the next offset of a queue whose log has no records.
Fronts = Mapping[tuple[str, int], int]


class ConsumeQueue:
    """The units of one message queue. All offsets are queue offsets.

    The offsets are ordered: `first` ≤ `kept_from` ≤ `min_offset`, and `written` ≤ `visible` ≤
    `next_offset`. The log has the records from `kept_from` on. Those below `min_offset` have
    expired, if their topic has a retention time of its own, and are not read.
    Files have the units from `first` to below `written`, and `tail` has the units from `written` to
    below `next_offset`.
    """

    __slots__ = (
        "deleted",
        "first",
        "kept_from",
        "last_path",
        "min_offset",
        "next_offset",
        "queue_id",
        "tail",
        "topic",
        "trimmed_to",
        "visible",
        "weight",
        "written",
    )

    def __init__(self, topic: TopicEncoding, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.tail = bytearray()
        self.deleted = False  # whether its topic was deleted
        self.last_path = -1, Path()  # first offset and path of the file used last
        self.trimmed_to = 0  # the start of the log when `kept_from` was last raised
        name = f"{queue_id}@{topic.name}".encode()
        self.weight = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") | 1
        self.start_at(0)

    def start_at(self, offset: int) -> None:
        """Make the queue empty. Its next message gets this offset."""
        self.first = self.kept_from = self.min_offset = offset
        self.written = self.visible = self.next_offset = offset
        self.tail.clear()

    def rewind(self, next_offset: int) -> None:
        """Remove the units at or after `next_offset`, whose records were not written to the log."""
        del self.tail[(next_offset - self.written) * UNIT_SIZE :]
        self.next_offset = next_offset

    def fill_lost(self, until: int, physical_offset: int) -> None:
        """Add units for lost records up to below the queue offset `until`.

        With them, later records keep their queue offsets. Each unit has the physical offset of the
        next record, so that physical offsets never decrease along a queue.
        """
        self.tail += UNIT.pack(physical_offset, LOST_SIZE, 0) * (until - self.next_offset)
        self.next_offset = until


class ConsumeQueues:
    """All consume queues, and their files under `consumequeue/<topic>/<queue id>/`."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        file_size: int,
        open_files: OpenFiles,
        tags_code_of: Mapping[str, TagsCode],
    ) -> None:
        self.folder = folder
        self.tags_codes = TagsCodes()
        self.unsynced: set[Path] = set()  # files with writes that may not be durable
        self.new_directories: set[Path] = set()
        self.expired: list[Path] = []  # files to remove
        self.rebuild_starts: dict[ConsumeQueue, int] = {}
        self._unreadable: set[Path] = set()  # files whose last read failed
        self._disk = disk
        self._file_size = file_size
        self._units_per_file = file_size // UNIT_SIZE
        self._open_files = open_files
        self._codes_of_topics = tags_code_of
        self._topics: dict[str, dict[int, ConsumeQueue]] = {}
        self._encodings: dict[str, TopicEncoding] = {}
        self.table: dict[tuple[str, int], ConsumeQueue] = {}
        self.unwritten: dict[ConsumeQueue, None] = {}  # queues with visible > written, oldest first

    # ---- table ----

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.table.get((topic, queue_id))

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue. If it does not exist, create an empty one."""
        queue = self.table.get((topic, queue_id))
        if queue is None:
            encoding = self._encodings.get(topic)
            if encoding is None:
                encoding = TopicEncoding(topic, self._codes_of_topics.get(topic))
                self._encodings[topic] = encoding
            queue = self.table[topic, queue_id] = ConsumeQueue(encoding, queue_id)
            self._topics.setdefault(topic, {})[queue_id] = queue
        return queue

    def topics(self) -> list[str]:
        return [topic for topic in self._topics if self.queue_ids(topic)]

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of the topic's queues that have or had a message."""
        queues = self._topics.get(topic, {})
        return sorted(queue_id for queue_id, queue in queues.items() if queue.next_offset)

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        return list(self._topics.get(topic, {}).values())

    def digest(self) -> int:
        """Return a digest of the number of visible units in all queues.

        At the next start, the files must have the same digest. While a file cannot be read, the
        digest is intentionally wrong, so that the next start rebuilds the queues.
        """
        total = sum(queue.weight * queue.visible for queue in self.table.values()) & _DIGEST_MASK
        return total ^ bool(self._unreadable)

    def tags_code(self, queue: ConsumeQueue, properties: bytes, stored_ms: int) -> int:
        if queue.topic.tags_code is not None:
            return queue.topic.tags_code(properties, stored_ms)
        return self.tags_codes[get_property(properties, TAGS) if properties else None]

    # ---- units ----

    def units(self, queue: ConsumeQueue, offset: int, count: int) -> bytes:
        """Return the bytes of at most `count` visible units from this queue offset on.

        Raises StoreReadError, like every method that reads units.
        """
        end = min(offset + count, queue.visible)
        if offset >= queue.written:
            at = queue.written
            return bytes(queue.tail[(offset - at) * UNIT_SIZE : (end - at) * UNIT_SIZE])
        parts = list(self._stored(queue, offset, min(end, queue.written)))
        if end > queue.written:
            parts.append(bytes(queue.tail[: (end - queue.written) * UNIT_SIZE]))
        return b"".join(parts)

    def _stored(self, queue: ConsumeQueue, offset: int, end: int) -> Iterator[bytes]:
        while offset < end:
            start = offset - offset % self._units_per_file
            count = min(end, start + self._units_per_file) - offset
            path = self._path(queue, start)
            try:
                data = self._open_files.get(path).pread(
                    count * UNIT_SIZE, (offset - start) * UNIT_SIZE
                )
            except OSError as error:
                if is_unreadable(error):
                    self._unreadable.add(path)
                raise StoreReadError(error) from error
            if self._unreadable:
                self._unreadable.discard(path)
            yield data
            offset += count

    def unit(self, queue: ConsumeQueue, offset: int) -> tuple[int, int, int]:
        """Return (physical offset, size, tags code). The size is 0 if the unit does not exist."""
        data = self.units(queue, offset, 1)
        return UNIT.unpack(data) if len(data) == UNIT_SIZE else (0, 0, 0)

    def replace_unit(self, queue: ConsumeQueue, offset: int, unit: bytes) -> None:
        """Overwrite a damaged unit in its file. Raises OSError."""
        start = offset - offset % self._units_per_file
        path = self._path(queue, start)
        self._open_files.get(path).pwrite(unit, (offset - start) * UNIT_SIZE)
        self.unsynced.add(path)

    def last_place(self, queue: ConsumeQueue) -> int:
        """Return the physical offset of the last record of a queue that had one."""
        tail = queue.tail[-UNIT_SIZE:]
        return int((UNIT.unpack(tail) if tail else self.unit(queue, queue.next_offset - 1))[0])

    def first_at_or_after(self, queue: ConsumeQueue, physical_offset: int) -> int:
        """Return the lowest queue offset whose record is at or after this physical offset.

        Return `visible` if no such record exists. Skip units of size 0, which a lost page of the
        file leaves.
        """
        low, high = queue.first, queue.visible
        while low < high:
            middle = known = (low + high) // 2
            found, size, _ = self.unit(queue, known)
            while size == 0 and known + 1 < high:
                known += 1
                found, size, _ = self.unit(queue, known)
            if size > 0 and found < physical_offset:
                low = known + 1
            else:
                high = middle
        return low

    # ---- files ----

    def directory(self, queue: ConsumeQueue) -> Path:
        return self.folder / queue.topic.name / str(queue.queue_id)

    def _path(self, queue: ConsumeQueue, unit_start: int) -> Path:
        if queue.last_path[0] != unit_start:  # making a path costs as much as reading the file
            path = self.directory(queue) / file_name(unit_start * UNIT_SIZE)
            queue.last_path = unit_start, path
        return queue.last_path[1]

    def write(self, queue: ConsumeQueue) -> None:
        """Write the visible units to the operating system.

        Raises OSError. After an error, the units that are not written stay in memory.
        """
        while queue.written < queue.visible:
            offset = queue.written
            start = offset - offset % self._units_per_file
            count = min(queue.visible, start + self._units_per_file) - offset
            path = self._path(queue, start)
            if offset in (start, queue.first):
                self._make_file(path, offset - start)
            self._open_files.get(path).pwrite(
                queue.tail[: count * UNIT_SIZE], (offset - start) * UNIT_SIZE
            )
            self.unsynced.add(path)
            queue.written += count
            del queue.tail[: count * UNIT_SIZE]
        self.unwritten.pop(queue, None)

    def _make_file(self, path: Path, lost: int) -> None:
        """Make a new file of full size that begins with `lost` units of expired records.

        Replace a file that a failed write or a deleted topic of the same name left.
        """
        if not self._disk.exists(path.parent):
            self._disk.make_directory(path.parent)
            self.new_directories |= {path.parent, path.parent.parent, self.folder}
        file = self._open_files.get(path, create=True)
        file.truncate(0)
        file.truncate(self._file_size)
        self.new_directories.add(path.parent)
        if lost:
            file.pwrite(UNIT.pack(0, LOST_SIZE, 0) * lost, 0)

    def trim_to(self, queue: ConsumeQueue, physical_offset: int) -> None:
        """Raise `kept_from` to the first record at or after this physical offset.

        List the files below `kept_from` in `expired`. Keep the file with the unit before
        `kept_from`. This unit shows a later start that no file is missing, and at which offset an
        empty queue continues.
        """
        if self.physical_offset_of(queue, queue.kept_from) < physical_offset:
            queue.kept_from = self.first_at_or_after(queue, physical_offset)
            queue.min_offset = max(queue.min_offset, queue.kept_from)
            while queue.first + self._units_per_file <= min(queue.kept_from - 1, queue.written):
                start = queue.first - queue.first % self._units_per_file
                path = self._path(queue, start)
                self._open_files.forget(path)
                self.unsynced.discard(path)
                self._unreadable.discard(path)
                self.expired.append(path)
                queue.first = start + self._units_per_file
        queue.trimmed_to = physical_offset

    def trim_all_to(self, physical_offset: int) -> None:
        for queue in self.table.values():
            self.trim_to(queue, physical_offset)

    def physical_offset_of(self, queue: ConsumeQueue, offset: int) -> int:
        """Return the physical offset of the record at this queue offset.

        Return a physical offset after every log if no visible unit is there.
        """
        return self.unit(queue, offset)[0] if offset < queue.visible else _BEYOND

    def ends_below(self, topic: str, physical_offset: int) -> bool:
        """Return whether the topic has units and all their records are below a physical offset.

        Compare the last unit of each queue, because the first units may not have a record.
        """
        queues = self._topics.get(topic, {}).values()
        filled = [queue for queue in queues if queue.visible > queue.first]
        return bool(filled) and all(
            self.physical_offset_of(queue, queue.visible - 1) < physical_offset for queue in filled
        )

    def delete_topic(self, topic: str) -> None:
        """Delete the queues and files of a topic.

        Raises OSError. After an error, remaining files are ignored.
        """
        for queue_id, queue in self._topics.pop(topic, {}).items():
            queue.deleted = True
            self.unwritten.pop(queue, None)
            del self.table[topic, queue_id]
        self._encodings.pop(topic, None)
        directory = self.folder / topic
        for path in [p for p in self.unsynced if directory in p.parents]:
            self.unsynced.discard(path)
        self.expired = [path for path in self.expired if directory not in path.parents]
        self._unreadable = {path for path in self._unreadable if directory not in path.parents}
        self.new_directories = {p for p in self.new_directories if directory not in (p, *p.parents)}
        for part in self._disk.list(directory):
            for name in self._disk.list(directory / part):
                self._open_files.forget(directory / part / name)
        self._disk.remove_tree(directory)
        if self._disk.exists(self.folder):
            self._disk.sync_directory(self.folder)

    # ---- queues without records, for a copy of the store ----

    def fronts(self, begin: int) -> dict[tuple[str, int], int]:
        """Return the next offset of each queue without a record at or after a physical offset.

        The result maps (topic, queue id) to this queue offset.
        """

        fronts = {name: queue.next_offset for name, queue in self.table.items()}
        return {
            name: at
            for name, at in fronts.items()
            if at and self.last_place(self.table[name]) < begin
        }

    def load_fronts(self, fronts: Fronts, log_start: int) -> None:
        """Load the result of `fronts` of another store into this one, which has no messages.

        The logs of both stores begin at `log_start`. Each queue gets one unit without a record,
        like the unit that `trim_to` keeps. As in a rebuild, a later record of the queue overrides
        the offset.
        """
        for (topic, queue_id), offset in fronts.items():
            queue = self.make(topic, queue_id)
            queue.start_at(offset - 1)
            queue.fill_lost(offset, 0)
            queue.visible = queue.next_offset
            self.unwritten[queue] = None
            self.rebuild_starts[queue] = offset
        self.trim_all_to(log_start)

    # ---- start ----

    def load(self, dispatched: int) -> None:
        """Load the units whose records are below the physical offset `dispatched`.

        After a crash, later units are unreliable. Omit queues with missing files, so that the
        digest differs.
        """
        for topic in self._disk.list(self.folder):
            for name in self._disk.list(self.folder / topic):
                if name.isdigit():
                    self._load(self.make(topic, int(name)), dispatched)

    def _load(self, queue: ConsumeQueue, dispatched: int) -> None:
        directory = self.directory(queue)
        starts = [s for name in self._disk.list(directory) if (s := start_of(name)) is not None]
        expected = range(starts[0], starts[-1] + 1, self._file_size) if starts else ()
        if not starts or starts != list(expected) or starts[0] % self._file_size:
            return
        self._extend(directory / file_name(starts[-1]))
        if any(
            self._open_files.get(directory / file_name(s)).size() != self._file_size for s in starts
        ):
            return
        queue.first = starts[0] // UNIT_SIZE
        end = (starts[-1] + self._file_size) // UNIT_SIZE
        queue.written = queue.visible = end  # so that every unit can be read
        low, high = queue.first, end
        while low < high:
            middle = (low + high) // 2
            physical_offset, size, _ = self.unit(queue, middle)
            if size > 0 and 0 <= physical_offset < dispatched:
                low = middle + 1
            else:
                high = middle
        queue.written = queue.visible = queue.next_offset = low
        queue.kept_from = queue.min_offset = queue.first

    def _extend(self, path: Path) -> None:
        """Extend the last file of a queue to full size if a crash in `wipe_after_end` cut it."""
        file = self._open_files.get(path)
        if file.size() < self._file_size and file.size() % UNIT_SIZE == 0:
            file.truncate(self._file_size)
            self.unsynced.add(path)

    def wipe_after_end(self) -> None:
        """Write zeros after the last unit of each queue. Raises OSError."""
        for queue in self.table.values():
            start = queue.written - queue.written % self._units_per_file
            directory = self.directory(queue)
            for name in self._disk.list(directory):
                found = start_of(name)
                if found is None or found < start * UNIT_SIZE:
                    continue
                path = directory / name
                if found == start * UNIT_SIZE and queue.written > start:
                    file = self._open_files.get(path)
                    file.truncate((queue.written - start) * UNIT_SIZE)
                    file.truncate(self._file_size)
                    self.unsynced.add(path)
                else:
                    self._open_files.forget(path)
                    self._disk.remove(path)
                    self.new_directories.add(directory)

    def starts_below(self, log_start: int) -> bool:
        """Return whether every queue still has the units of all records from `log_start` on.

        Files that are missing at its front then contained units of expired records only.
        """
        return all(
            queue.first == 0 or self.physical_offset_of(queue, queue.first) < log_start
            for queue in self.table.values()
        )

    def load_rebuild_starts(self, log_start: int) -> None:
        """Load the units of records below `log_start`, before a rebuild.

        Without these units, a queue whose messages have all expired would continue at offset 0.
        """
        self.load(log_start)
        for queue in self.table.values():
            if queue.visible == queue.first > 0:  # the unit that `trim_to` keeps is missing
                queue.start_at(0)
            elif queue.visible:  # the checkpoint is missing, so its files may not be durable
                directory = self.directory(queue)
                self.unsynced |= {directory / name for name in self._disk.list(directory)}
                self.new_directories |= {directory, directory.parent, self.folder}
        self.rebuild_starts = {queue: queue.next_offset for queue in self.table.values()}

    def is_at_rebuild_start(self, queue: ConsumeQueue) -> bool:
        """Return whether a rebuild has not found a record of this queue yet."""
        return self.rebuild_starts.get(queue, 0) == queue.next_offset

    def restart(self, queue: ConsumeQueue, offset: int) -> None:
        """Make the queue empty, with this next offset, and remove its files. Raises OSError."""
        self.rebuild_starts.pop(queue, None)
        directory = self.directory(queue)
        for name in self._disk.list(directory):
            self._open_files.forget(directory / name)
        self._disk.remove_tree(directory)
        self.unsynced = {path for path in self.unsynced if directory not in path.parents}
        self.new_directories.discard(directory)
        queue.start_at(offset)

    def reset(self) -> None:
        """Remove all queues and their files before a rebuild. Raises OSError."""
        self.clear()
        self._disk.remove_tree(self.folder)
        self._disk.make_directory(self.folder)
        self._disk.sync_directory(self.folder.parent)

    def clear(self) -> None:
        """Remove all queues from memory. The files stay."""
        self._open_files.close()
        self.rebuild_starts.clear()
        self.table.clear()
        self._topics.clear()
        self._encodings.clear()
        self.unwritten.clear()
        self.unsynced.clear()
        self.new_directories.clear()
        self.expired.clear()
        self._unreadable.clear()
