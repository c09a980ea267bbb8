"""Consume queues: for each message queue the places of its records, 20 bytes a unit, in order.

Derived from the commit log: may be lost at any time. A unit is made when its record is appended,
becomes visible when that is durable, and reaches its file later, in groups. Knows no record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from aerobee_broker.disk import Disk
from aerobee_broker.errors import StoreReadError, is_unreadable
from aerobee_broker.store.log.commit_log import file_name, start_of
from aerobee_broker.store.log.open_files import OpenFiles
from aerobee_broker.store.messages import LOST_SIZE, UNIT
from aerobee_wire import record
from aerobee_wire.properties import get as get_property
from aerobee_wire.tags import java_hash, tags_code

UNIT_SIZE = UNIT.size
_DIGEST_MASK = (1 << 64) - 1
TAGS = b"TAGS\x01"
_CACHED_TAGS = 10_000  # then they are forgotten, all at once

TagsCode = Callable[[bytes, int], int]  # properties, store timestamp (ms) → tags code


class TopicEncoding:
    """What every record of a topic needs, made once: its bytes and how they are measured."""

    __slots__ = ("field", "key_hash", "magic", "name", "tags_code")

    def __init__(self, name: str, tags_code: TagsCode | None) -> None:
        encoded = name.encode()
        wide = len(encoded) > record.V1_TOPIC_BYTES
        self.name = name
        self.magic = record.MAGIC_V2 if wide else record.MAGIC_V1
        self.field = len(encoded).to_bytes(2 if wide else 1, "big") + encoded
        self.tags_code = tags_code
        # Java's hash of "topic#", to be carried on over a key.
        self.key_hash = java_hash(name + "#") & 0xFFFF_FFFF


class TagsCodes(dict[bytes | None, int]):
    """The value of TAGS → its code; remembers what it was asked."""

    def __missing__(self, tags: bytes | None) -> int:
        if len(self) >= _CACHED_TAGS:
            self.clear()
        code = self[tags] = tags_code((tags or b"").decode("utf-8", "replace"))
        return code


class ConsumeQueue:
    """The units of one message queue. Offsets count units.

    first ≤ min ≤ …, written ≤ visible ≤ next: units from `first` to below `written` are in files,
    those from `written` to below `next` are in `tail`.
    """

    __slots__ = (
        "first",
        "gone",
        "last_path",
        "min_offset",
        "next_offset",
        "queue_id",
        "settled_for",
        "tail",
        "topic",
        "visible",
        "weight",
        "written",
    )

    def __init__(self, topic: TopicEncoding, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.tail = bytearray()
        self.gone = False  # its topic was deleted
        self.last_path = -1, Path()  # of a file of it, by the offset that the file begins at
        self.settled_for = 0  # start of the log that `min_offset` is right for
        name = f"{queue_id}@{topic.name}".encode()
        self.weight = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") | 1
        self.start_at(0)

    def start_at(self, offset: int) -> None:
        """An empty queue whose next message gets `offset`."""
        self.first = self.min_offset = self.written = self.visible = self.next_offset = offset
        self.tail.clear()

    def rewind(self, next_offset: int) -> None:
        """Undoes appends that were never written to the log."""
        del self.tail[(next_offset - self.written) * UNIT_SIZE :]
        self.next_offset = next_offset

    def fill_lost(self, until: int, physical_offset: int) -> None:
        """Units for records that are lost, so that the ones behind them keep their offsets. They
        carry the place of the next record: places never fall along a queue.
        """
        self.tail += UNIT.pack(physical_offset, LOST_SIZE, 0) * (until - self.next_offset)
        self.next_offset = until


class ConsumeQueues:
    """All of them: a table, and files under `consumequeue/<topic>/<queue id>/`."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        file_size: int,
        open_files: OpenFiles,
        codes_of_topics: Mapping[str, TagsCode],
    ) -> None:
        self.folder = folder
        self.tags_codes = TagsCodes()
        self.unsynced: set[Path] = set()  # files with writes that may not be durable
        self.new_directories: set[Path] = set()
        self.expired: list[Path] = []  # files to remove
        # In a rebuild: queue → where it goes on, told by what had expired, until a record says so.
        self.fronts: dict[ConsumeQueue, int] = {}
        self._unreadable: set[Path] = set()  # when last read
        self._disk = disk
        self._file_size = file_size
        self._units_per_file = file_size // UNIT_SIZE
        self._open_files = open_files
        self._codes_of_topics = codes_of_topics
        self._topics: dict[str, dict[int, ConsumeQueue]] = {}
        self._encodings: dict[str, TopicEncoding] = {}
        self.table: dict[tuple[str, int], ConsumeQueue] = {}
        self.unwritten: dict[ConsumeQueue, None] = {}  # visible > written; oldest first

    # ---- table ----

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.table.get((topic, queue_id))

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, new and empty when there was none."""
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
        """Of queues that have, or had, a message."""
        queues = self._topics.get(topic, {})
        return sorted(queue_id for queue_id, queue in queues.items() if queue.next_offset)

    def digest(self) -> int:
        """Of what is visible in every queue: what the files must amount to at the next start. Of
        files that cannot be read, what they do not: it rebuilds them."""
        total = sum(queue.weight * queue.visible for queue in self.table.values()) & _DIGEST_MASK
        return total ^ bool(self._unreadable)

    def code_of(self, queue: ConsumeQueue, properties: bytes, stored_ms: int) -> int:
        """The tags code of a message."""
        if queue.topic.tags_code is not None:
            return queue.topic.tags_code(properties, stored_ms)
        return self.tags_codes[get_property(properties, TAGS) if properties else None]

    # ---- units ----

    def units(self, queue: ConsumeQueue, offset: int, count: int) -> bytes:
        """At most `count` units from `offset` on, none behind the visible ones. Raises
        StoreReadError, as all do that look at units.
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
        """(physical offset, size, tags code); size 0 when there is none."""
        data = self.units(queue, offset, 1)
        return UNIT.unpack(data) if len(data) == UNIT_SIZE else (0, 0, 0)

    def replace_unit(self, queue: ConsumeQueue, offset: int, unit: bytes) -> None:
        """Mends a unit that was found damaged in its file. Raises OSError."""
        start = offset - offset % self._units_per_file
        path = self._path(queue, start)
        self._open_files.get(path).pwrite(unit, (offset - start) * UNIT_SIZE)
        self.unsynced.add(path)

    def first_at_or_after(self, queue: ConsumeQueue, physical_offset: int) -> int:
        """The lowest offset whose record lies there or behind; `visible` when there is none. A unit
        that was lost, and reads as zeros, does not count; nor do those before such an offset.
        """
        low, high = queue.first, queue.visible
        while low < high:
            middle = known = (low + high) // 2
            place, size, _ = self.unit(queue, known)
            while size == 0 and known + 1 < high:
                known += 1
                place, size, _ = self.unit(queue, known)
            if size > 0 and place < physical_offset:
                low = known + 1
            else:
                high = middle
        return low

    # ---- files ----

    def directory(self, queue: ConsumeQueue) -> Path:
        return self.folder / queue.topic.name / str(queue.queue_id)

    def _path(self, queue: ConsumeQueue, unit_start: int) -> Path:
        if queue.last_path[0] != unit_start:  # making one costs as much as reading the file
            path = self.directory(queue) / file_name(unit_start * UNIT_SIZE)
            queue.last_path = unit_start, path
        return queue.last_path[1]

    def write(self, queue: ConsumeQueue) -> None:
        """Hands the visible units to the operating system. Raises OSError; then they stay."""
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
        """A new file of full size; `lost` units in front belong to records that are gone. What a
        write that failed, or a topic of the name, has left there goes.
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

    def settle(self, queue: ConsumeQueue, physical_offset: int) -> None:
        """The log starts there now: sets `min_offset`, gives up the files below it. One unit below
        it stays: it tells that the files begin where they should, and where an empty queue goes on.
        """
        if self.unit_place(queue, queue.min_offset) < physical_offset:
            queue.min_offset = self.first_at_or_after(queue, physical_offset)
            while queue.first + self._units_per_file <= min(queue.min_offset - 1, queue.written):
                start = queue.first - queue.first % self._units_per_file
                path = self._path(queue, start)
                self._open_files.forget(path)
                self.unsynced.discard(path)
                self._unreadable.discard(path)
                self.expired.append(path)
                queue.first = start + self._units_per_file
        queue.settled_for = physical_offset

    def settle_all(self, physical_offset: int) -> None:
        for queue in self.table.values():
            self.settle(queue, physical_offset)

    def unit_place(self, queue: ConsumeQueue, offset: int) -> int:
        """Physical offset of a unit; beyond every other when there is no unit."""
        return self.unit(queue, offset)[0] if offset < queue.visible else 1 << 62

    def ends_below(self, topic: str, physical_offset: int) -> bool:
        """Whether there are units of a topic, and all their records lie below. Told by the last
        ones: in front there may be some without a record.
        """
        queues = self._topics.get(topic, {}).values()
        filled = [queue for queue in queues if queue.visible > queue.first]
        return bool(filled) and all(
            self.unit_place(queue, queue.visible - 1) < physical_offset for queue in filled
        )

    def delete_topic(self, topic: str) -> None:
        """Queues and files. Raises OSError: then files are left, which nobody reads."""
        for queue_id, queue in self._topics.pop(topic, {}).items():
            queue.gone = True
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

    # ---- start ----

    def load(self, dispatched: int) -> None:
        """Takes over the units of records below `dispatched`; wipes the ones behind, which cannot
        be trusted after a crash. A queue whose files do not fit together is left out: the digest
        tells.
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
        queue.written = queue.visible = end  # so that every unit can be looked at
        low, high = queue.first, end
        while low < high:
            middle = (low + high) // 2
            place, size, _ = self.unit(queue, middle)
            if size > 0 and 0 <= place < dispatched:
                low = middle + 1
            else:
                high = middle
        queue.written = queue.visible = queue.next_offset = low
        queue.min_offset = queue.first

    def _extend(self, path: Path) -> None:
        """The last file of a queue: a crash in `wipe_behind` may have left it cut."""
        file = self._open_files.get(path)
        if file.size() < self._file_size and file.size() % UNIT_SIZE == 0:
            file.truncate(self._file_size)
            self.unsynced.add(path)

    def wipe_behind(self) -> None:
        """Zeros behind the last unit of each queue. Raises OSError."""
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

    def begin_below(self, log_start: int) -> bool:
        """Whether no queue has lost its first files, but for what has expired."""
        return all(
            queue.first == 0 or self.unit_place(queue, queue.first) < log_start
            for queue in self.table.values()
        )

    def load_fronts(self, log_start: int) -> None:
        """For a rebuild: takes over the units of records that have expired, of which nothing else
        tells. Without them a queue whose messages have all expired would count from 0 again.
        """
        self.load(log_start)
        for queue in self.table.values():
            if queue.visible == queue.first > 0:  # one would be there
                queue.start_at(0)
            elif queue.visible:  # no checkpoint says that they are durable
                directory = self.directory(queue)
                self.unsynced |= {directory / name for name in self._disk.list(directory)}
                self.new_directories |= {directory, directory.parent, self.folder}
        self.fronts = {queue: queue.next_offset for queue in self.table.values()}

    def is_at_front(self, queue: ConsumeQueue) -> bool:
        """Whether nothing but its old units says what the next offset is."""
        return self.fronts.get(queue, 0) == queue.next_offset

    def restart(self, queue: ConsumeQueue, offset: int) -> None:
        """`start_at`, and what it had is gone. Raises OSError."""
        self.fronts.pop(queue, None)
        directory = self.directory(queue)
        for name in self._disk.list(directory):
            self._open_files.forget(directory / name)
        self._disk.remove_tree(directory)
        self.unsynced = {path for path in self.unsynced if directory not in path.parents}
        self.new_directories.discard(directory)
        queue.start_at(offset)

    def reset(self) -> None:
        """Forgets every queue and removes every file: they will be rebuilt. Raises OSError."""
        self.forget()
        self._disk.remove_tree(self.folder)
        self._disk.make_directory(self.folder)
        self._disk.sync_directory(self.folder.parent)

    def forget(self) -> None:
        """Every queue; the files stay."""
        self._open_files.close()
        self.fronts.clear()
        self.table.clear()
        self._topics.clear()
        self._encodings.clear()
        self.unwritten.clear()
        self.unsynced.clear()
        self.new_directories.clear()
        self.expired.clear()
        self._unreadable.clear()
