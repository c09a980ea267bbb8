"""Lets pop read a lite topic like a message queue, with an offset for each group.

Here, such a queue is called a *line*: the messages of a lite topic in one queue of its parent
topic. It has a topic name of its own (`aerobee_wire.queues.lite.lease_topic_of`) and the queue id
of the parent. Its offsets are the queue offsets of its messages in the parent. `LiteLines` follows
the queues of the parents, and reads lines with the methods of `MessageStore`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import structlog

from aerobee_broker.disk import Disk
from aerobee_broker.errors import StoreReadError, StoreWriteError
from aerobee_broker.store.format import LITE_TOPICS
from aerobee_broker.store.lite.expirations import ParentExpirations
from aerobee_broker.store.lite.lite_queue import Capture, LiteQueue, UnitSource, lite_code
from aerobee_broker.store.log.open_files import OpenFiles
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import UNIT, Arrival, ReadResult, ReadStatus
from aerobee_wire.properties import LITE_TOPIC
from aerobee_wire.properties import get as get_property
from aerobee_wire.queues.lite import lite_topic_of
from aerobee_wire.record import iter_records

_OPEN_FILES = 64
_CACHED_LINES = 16_384
_NAME = f"{LITE_TOPIC}\x01".encode()
# The last message of each lite topic is saved after this number of messages. If a queue has more
# lite topics, it is saved after one message per lite topic.
CAPTURE_UNITS = 100_000


class Line(NamedTuple):
    """The parent, name and code of a lite topic."""

    parent: str
    name: bytes
    code: int


@lru_cache(maxsize=_CACHED_LINES)
def line(topic: str) -> Line:
    """Return the lite topic that a topic name of leases stands for.

    Raises ValueError if `topic` is not such a name.
    """
    found = lite_topic_of(topic)
    if found is None:
        raise ValueError(f"{topic} is not a lite topic")
    name = found.name.encode()
    return Line(found.parent, name, lite_code(name))


def lite_unit_code(properties: bytes, stored_ms: int) -> int:
    """Return the tags code to store in a parent's consume queue: the code of the lite topic.

    `properties` are the encoded properties of the message. Returns 0 if they name no lite topic.
    """
    name = get_property(properties, _NAME)
    return lite_code(name) if name else 0


def parents_on_disk(disk: Disk, folder: Path) -> list[str] | None:
    """Return the parent topics that have a folder, or None if there is no folder of lite topics."""
    return sorted(disk.list(folder)) if disk.exists(folder) else None


class Parents:
    """Notifies listeners of topics of type LITE.

    If a topic is not known yet, `on_new` is called before the listeners.
    """

    def __init__(self, lines: LiteLines, on_new: Callable[[str], None]) -> None:
        self._lines = lines
        self._on_new = on_new
        self._listeners: list[Callable[[str], None]] = []

    def listen(self, on_parent: Callable[[str], None]) -> None:
        self._listeners.append(on_parent)

    def __call__(self, parent: str) -> None:
        """Notify the listeners of a parent topic.

        Raises StoreWriteError, and the errors of `on_new`.
        """
        if parent not in self._lines.parents:
            self._on_new(parent)
        for on_parent in self._listeners:
            on_parent(parent)


class Reached(NamedTuple):
    """A queue of a parent topic, and the codes of the lite topics of its new messages."""

    parent: str
    queue_id: int
    codes: Sequence[int]


class Named(NamedTuple):
    """The lite topic of a message, and the time at which the message was stored."""

    name: str
    stored_ms: int


class LiteLines:
    """The lite topics of all parent topics, as queues that pop can read.

    `folder` contains the files of the lite topics. `require` is called with the feature of the
    store's format before a parent is added, and raises MqError. Methods that read raise
    StoreReadError and the errors of a MessageStore read.
    """

    def __init__(
        self,
        store: MessageStore,
        disk: Disk,
        folder: Path,
        require: Callable[[Collection[str]], None],
    ) -> None:
        self._require = require
        self._store = store
        self._disk = disk
        self._folder = folder
        self._open_files = OpenFiles(disk, _OPEN_FILES)
        self._parents: dict[str, dict[int, LiteQueue]] = {}
        self.expirations = ParentExpirations()
        self.flush = store.flush

    # ---- parents ----

    def open(self, parents: Sequence[str]) -> None:
        """Open the parent topics at startup, and remove the folders of all other topics.

        Does not read queues, because `expirations` must first be restored from the journal. Raises
        OSError.
        """
        for name in set(self._parents) - set(parents):
            self._store.clear_tags_code(name)
        self._parents = {}
        if self._disk.exists(self._folder):
            for name in set(self._disk.list(self._folder)) - set(parents):
                self._store.clear_tags_code(name)
                self._disk.remove_tree(self._folder / name)
        for parent in parents:
            self._add(parent)

    def open_queues(self) -> None:
        """Open the queues of all parent topics. Call this after `open`.

        Raises OSError, StoreReadError.
        """
        for parent in self._parents:
            for queue_id in self._store.queues(parent):
                self._queue(parent, queue_id)

    def add_parent(self, parent: str) -> None:
        """Add a parent topic durably. It may have messages already.

        Raises StoreWriteError, DiskFull.
        """
        if parent not in self._parents:
            self._require({LITE_TOPICS})
            try:
                self._add(parent)
            except OSError as error:
                raise StoreWriteError(f"no folder for the topic {parent}: {error}") from error
            for queue_id in self._store.queues(parent):
                self._queue(parent, queue_id)

    def _add(self, parent: str) -> None:
        """Create the folder of a parent topic, and register how its tags codes are computed.

        The folder marks the topic as a parent, because a replica may not have the topic's metadata
        yet. Raises OSError.
        """
        for folder in (self._folder, self._folder / parent):
            if not self._disk.exists(folder):
                self._disk.make_directory(folder)
                self._disk.sync_directory(folder.parent)
        self._store.set_tags_code(parent, lite_unit_code)
        self._parents[parent] = {}

    def remove_parent(self, parent: str) -> None:
        """Remove a deleted parent topic durably. Raises StoreWriteError."""
        if self._parents.pop(parent, None) is None:
            return
        self._store.clear_tags_code(parent)
        self._open_files.close()
        try:
            self._disk.remove_tree(self._folder / parent)
            self._disk.sync_directory(self._folder)
        except OSError as error:
            raise StoreWriteError(f"the folder of {parent} is left: {error}") from error

    @property
    def parents(self) -> Sequence[str]:
        return list(self._parents)

    def _queue(self, parent: str, queue_id: int, most: int | None = None) -> LiteQueue | None:
        """Return the lite topics of a queue, after opening the queue if necessary.

        `most` is the number of messages to process when the queue is opened. Returns None if the
        topic is not a parent, or the queue has no messages.
        """
        queues = self._parents.get(parent)
        if queues is None:
            return None
        queue = queues.get(queue_id)
        if queue is None and self._store.max_offset(parent, queue_id):
            store = self._store
            source = UnitSource(
                partial(store.min_offset, parent, queue_id),
                partial(store.max_offset, parent, queue_id),
                partial(store.units, parent, queue_id),
            )
            folder = self._folder / parent / str(queue_id)
            expirations = self.expirations.of(parent, queue_id)
            queue = LiteQueue(self._disk, folder, self._open_files, source, expirations)
            queue.open(most)
            queues[queue_id] = queue
        return queue

    def arrived(self, arrival: Arrival) -> Reached:
        """Process newly visible messages of a parent topic, and return their lite topics."""
        parent, queue_id = arrival.topic, arrival.queue_id
        known = queue_id in self._parents.get(parent, {})
        queue = self._queue(parent, queue_id)
        units = list(UNIT.iter_unpack(arrival.units))
        if queue is None:
            return Reached(parent, queue_id, ())
        if not known:  # opening the queue has processed the messages already
            codes = dict.fromkeys(code for _, _, code in units if code)
            return Reached(parent, queue_id, list(codes))
        return Reached(parent, queue_id, list(queue.extend(arrival.first_offset, units)))

    def catch_up(self, most: int) -> bool:
        """Process up to `most` messages of each queue that were not processed yet.

        Returns True if a queue has more of them. Raises OSError, StoreReadError.
        """
        more = False
        for parent in self._parents:
            for queue_id in self._store.queues(parent):
                queue = self._queue(parent, queue_id, most)
                more = (queue is not None and queue.catch_up(most)) or more
        return more

    # ---- lite topics ----

    def queue_ids(self, parent: str, code: int) -> list[int]:
        """Return the ids of the queues that have messages of a lite topic.

        There is at most one such queue, unless the number of queues of the parent was changed.
        """
        queues = self._parents.get(parent, {})
        return [queue_id for queue_id, queue in queues.items() if queue.last(code) is not None]

    def last_offset(self, parent: str, queue_id: int, code: int) -> int:
        """Return the queue offset of a lite topic's last message, or -1 if it has no messages."""
        queue = self._parents.get(parent, {}).get(queue_id)
        last = queue.last(code) if queue is not None else None
        return last.queue_offset if last is not None else -1

    def name_of(self, parent: str, queue_id: int, code: int) -> str | None:
        """Return the name of a lite topic, or None if its last message cannot be read."""
        last = self.last_offset(parent, queue_id, code)
        found = self.named(parent, queue_id, last) if last >= 0 else None
        return found.name if found is not None and lite_code(found.name.encode()) == code else None

    def named(self, parent: str, queue_id: int, queue_offset: int) -> Named | None:
        """Return the lite topic and the store time of a message.

        Returns None if the message is not stored, cannot be read, or has no lite topic.
        """
        read = self._store.read(parent, queue_id, queue_offset, max_messages=1, max_bytes=1)
        for record in iter_records(read.records, check_crc=False):
            name = get_property(record.raw_properties, _NAME)
            if name:
                return Named(name.decode("utf-8", "replace"), record.store_timestamp_ms)
        return None

    def lite_queues(self, parent: str) -> Iterator[tuple[int, LiteQueue]]:
        yield from self._parents.get(parent, {}).items()

    # ---- the interface of MessageStore ----

    def queues(self, topic: str) -> list[int]:
        return self._store.queues(line(topic).parent)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return 0, so that a group starts with the first message that is still stored."""
        return 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the end of the parent's queue, which is above all messages of the lite topic."""
        return self._store.max_offset(line(topic).parent, queue_id)

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 262_144,
        tags: frozenset[int] | None = None,
    ) -> ReadResult:
        """Read messages of a lite topic like MessageStore.read, but ignore `tags`."""
        parent, name, code = line(topic)
        high = self._store.max_offset(parent, queue_id)
        if queue_offset > high:
            return ReadResult(ReadStatus.OFFSET_TOO_LARGE, high, 0, high)
        queue = self._queue(parent, queue_id)
        offsets = queue.offsets(code, queue_offset, max_messages) if queue is not None else []
        if not offsets:
            return ReadResult(ReadStatus.NO_NEW, queue_offset, 0, high)
        parts: list[bytes] = []
        count = size = 0
        is_all = len(offsets) < max_messages
        for first, length in _runs(offsets):
            read = self._store.read(
                parent, queue_id, first, max_messages=length, max_bytes=max(1, max_bytes - size)
            )
            queue_offset = read.next_begin_offset
            for at, data in _named(read.records, name):
                if count and size + len(data) > max_bytes:
                    queue_offset = at  # a read returns one message even if it is too large
                    break
                parts.append(data)
                count, size = count + 1, size + len(data)
            if queue_offset < first + length or size >= max_bytes:
                is_all = False
                break
        status = ReadStatus.FOUND if count else ReadStatus.NO_MATCHED
        return ReadResult(status, queue_offset, 0, high, b"".join(parts), count, is_all=is_all)

    # ---- maintenance ----

    def maintain(self) -> None:
        """Write complete blocks of the files of lite topics, and delete expired blocks.

        If this fails for a queue, logs a warning. The next call retries.
        """
        for parent, queues in self._parents.items():
            for queue_id, queue in queues.items():
                try:
                    queue.write()
                    queue.trim()
                except (OSError, StoreReadError) as error:
                    structlog.get_logger().warning(
                        "lite_topics_not_written", topic=parent, queue=queue_id, reason=str(error)
                    )

    def captures(self, *, all_of_it: bool) -> list[tuple[LiteQueue, Capture]]:
        """Return snapshots of the queues' lite topics that the caller must write now.

        Without a snapshot, the next start would process all messages of the queue again. Includes
        queues that received many messages since the last snapshot. With `all_of_it`, includes all
        queues with new messages. Raises OSError, StoreReadError.
        """
        found = []
        for queues in self._parents.values():
            for queue in queues.values():
                due = queue.uncaptured >= max(CAPTURE_UNITS, len(queue))
                if queue.uncaptured and (due or all_of_it):
                    capture = queue.capture()
                    if capture is not None:
                        found.append((queue, capture))
        return found


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first offset, length) of each run of consecutive offsets."""
    first, length = offsets[0], 1
    for offset in offsets[1:]:
        if offset == first + length:
            length += 1
        else:
            yield first, length
            first, length = offset, 1
    yield first, length


def _named(records: bytes, name: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (queue offset, bytes) of each record that belongs to a lite topic.

    Compares the names, because another lite topic may have the same code.
    """
    at = 0
    for record in iter_records(records, check_crc=False):
        size = record.store_size
        if get_property(record.raw_properties, _NAME) == name:
            yield record.queue_offset, records[at : at + size]
        at += size
