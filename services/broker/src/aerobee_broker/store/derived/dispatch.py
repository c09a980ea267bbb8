"""Dispatch adds appended messages to the consume queues and the index, and makes them visible.

A unit is an entry of a consume queue. The append makes the units, but they are not visible yet.
When the log is durable up to the end of a record, its unit becomes visible. Its keys are added to
the index, in batches. Two kinds of data wait in memory: up to `unwritten_units` units for the
consume queue files, and the keys of up to `_INDEX_BATCH` messages.
"""

from __future__ import annotations

import importlib
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from aerobee_broker.disk import Disk
from aerobee_broker.errors import NO_SPACE
from aerobee_broker.store.derived.consume_queue import (
    UNIT_SIZE,
    ConsumeQueue,
    ConsumeQueues,
    Fronts,
)
from aerobee_broker.store.derived.index import Index
from aerobee_broker.store.derived.time_steps import TimeSteps
from aerobee_broker.store.derived.topic_encoding import TagsCode, TopicEncoding
from aerobee_broker.store.log.open_files import OpenFiles
from aerobee_broker.store.messages import Arrival
from aerobee_broker.store.options import StoreOptions

if TYPE_CHECKING:
    from aerobee_broker.store.derived.keys import Keys

# A message whose keys must be indexed: topic, properties, physical offset, timestamp (ms).
Indexed = tuple[TopicEncoding, bytes, int, int]
NextOffsets = dict[ConsumeQueue, int]

_KEYS_MODULE = "aerobee_broker.store.derived.keys"  # imports numpy
# Number of messages whose keys are hashed together.
_INDEX_BATCH = 2_048
# Units, or keys, that may wait in memory if a recovery finds the disk full: 100 MB.
_MAX_WAITING = 4_000_000


class UnconfirmedAppend:
    """The changes of one append to the consume queues and the index.

    They are rolled back if the append is not written, and become visible when it is durable.
    """

    __slots__ = ("end", "indexed", "nexts", "starts", "timestamp_ms")

    def __init__(
        self,
        end: int,
        timestamp_ms: int,
        starts: NextOffsets,
        indexed: list[Indexed],
    ) -> None:
        self.end = end  # physical offset after its last record
        self.timestamp_ms = timestamp_ms
        self.starts = starts  # next offset of each queue before the append
        self.nexts = [(queue, queue.next_offset) for queue in starts]  # after it
        self.indexed = indexed


class Dispatch:
    """Adds messages to the consume queues and the index. `index` is None if it is disabled."""

    def __init__(self, queues: ConsumeQueues, index: Index | None, unwritten_units: int) -> None:
        self.queues = queues
        self.index = index
        self.confirmed = 0  # physical offset below which everything is visible
        self.timestamp_ms = 0  # store timestamp of the last visible record
        self.stored_ms = 0  # store timestamp of the last appended record
        self.time_steps = TimeSteps()
        self.error: Exception | None = None  # of a write of derived files, to be retried
        self._unwritten_units = unwritten_units
        self._unwritten = 0
        self._unconfirmed: deque[UnconfirmedAppend] = deque()
        self._indexed: list[Indexed] = []  # visible, not in the index yet
        self._keys: Keys | None = None  # keys of a put that failed

    @classmethod
    def of_store(
        cls,
        disk: Disk,
        path: Path,
        options: StoreOptions,
        open_files: OpenFiles,
        tags_code_of: Mapping[str, TagsCode],
    ) -> Self:
        """Create a dispatch for the store in the directory `path`. Recovery must fill it."""
        queues = ConsumeQueues(
            disk, path / "consumequeue", options.consume_queue_file_size, open_files, tags_code_of
        )
        index = None
        if options.index_enabled:
            slots, entries = options.index_slot_count, options.index_entry_count
            index = Index(disk, path / "index", slots, entries, open_files)
        return cls(queues, index, options.unwritten_units)

    def forget_topic(self, topic: str) -> None:
        """Drop the units and keys of a deleted topic that wait to be written."""
        for queue in self.queues.unwritten:
            if queue.topic.name == topic:
                self._unwritten -= queue.visible - queue.written
        self._indexed = [message for message in self._indexed if message[0].name != topic]

    def load_fronts(self, fronts: Fronts, log_start: int) -> None:
        """Load the next queue offsets of an empty copy of another store.

        `fronts` maps each queue to its next offset. The log of the copy begins at `log_start`.
        """
        self.queues.load_fronts(fronts, log_start)
        self._unwritten += len(self.queues.unwritten)
        self.confirmed = log_start
        self.time_steps, self.stored_ms = TimeSteps(), 0

    # ---- append, roll back, confirm ----

    @property
    def has_unconfirmed(self) -> bool:
        """Return whether an append of this process is not visible yet."""
        return bool(self._unconfirmed)

    def add(self, append: UnconfirmedAppend) -> None:
        if append.timestamp_ms < self.stored_ms:
            last = self._unconfirmed[-1].end if self._unconfirmed else self.confirmed
            self.time_steps.add(last, self.stored_ms)
        self._unconfirmed.append(append)
        self.stored_ms = append.timestamp_ms

    def roll_back(self, written: int) -> None:
        """Roll back the appends that end after the physical offset `written`."""
        while self._unconfirmed and self._unconfirmed[-1].end > written:
            for queue, start in self._unconfirmed.pop().starts.items():
                queue.rewind(start)
        last = self._unconfirmed[-1] if self._unconfirmed else None
        self.stored_ms = self.timestamp_ms if last is None else last.timestamp_ms
        self.time_steps.drop_from(self.confirmed if last is None else last.end)

    def confirm(self, flushed: int) -> list[Arrival]:
        """Make every message visible that ends at or below the physical offset `flushed`.

        Return an arrival for each queue that received messages.
        """
        visible: NextOffsets = {}
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0].end <= flushed:
            append = unconfirmed.popleft()
            visible.update(append.nexts)  # later appends have higher offsets
            self._indexed += append.indexed
            self.confirmed, self.timestamp_ms = append.end, append.timestamp_ms
        arrivals = [
            self._make_visible(queue, next_offset)
            for queue, next_offset in visible.items()
            if not queue.deleted
        ]
        try:
            self._write_excess()
        except OSError as error:
            self.error = error
        return arrivals

    def _make_visible(self, queue: ConsumeQueue, next_offset: int) -> Arrival:
        first = queue.visible
        queue.visible = next_offset
        self.queues.unwritten[queue] = None
        self._unwritten += next_offset - first
        at = (first - queue.written) * UNIT_SIZE
        units = queue.tail[at : at + (next_offset - first) * UNIT_SIZE]
        return Arrival(queue.topic.name, queue.queue_id, first, next_offset, units)

    # ---- to the files ----

    def _write_excess(self) -> None:
        """Write units and keys if too many wait in memory. Raises OSError."""
        if len(self._indexed) >= _INDEX_BATCH:
            self.put_index()
        while self._unwritten > self._unwritten_units and self.queues.unwritten:
            self.write_queue(next(iter(self.queues.unwritten)))

    def write_queue(self, queue: ConsumeQueue) -> None:
        """Write the waiting units of a queue to its files. Raises OSError."""
        written = queue.written
        try:
            self.queues.write(queue)
        finally:
            self._unwritten -= queue.written - written

    @property
    def wants_numpy(self) -> bool:
        """Return whether keys wait for the index, and `import_numpy` was not called yet."""
        is_waiting = self.index is not None and bool(self._indexed)
        return is_waiting and _KEYS_MODULE not in sys.modules

    def import_numpy(self) -> None:
        """Import numpy on the flusher thread, if keys wait for the index.

        On the event loop, the import would block for 80 ms.
        """
        if self.index is not None and self._indexed:
            importlib.import_module(_KEYS_MODULE)

    def put_index(self) -> None:
        """Put the keys of every visible message into the index. Raises OSError."""
        if self.index is None:
            return
        if self._indexed:
            from aerobee_broker.store.derived.keys import Keys  # numpy: not before the first key

            keys = Keys.of(self._indexed)
            self._indexed = []
            if self._keys is None:
                self._keys = keys
            else:
                self._keys.add(keys)
        if self._keys is not None:
            self.index.put(self._keys)
            self._keys = None
        self.index.end_offset = self.confirmed

    # ---- recovery ----

    def begin(self, timestamp_ms: int, time_steps: TimeSteps, *, is_before: bool) -> None:
        """Begin a scan of the log after the last record that a checkpoint covers.

        `timestamp_ms` is the store timestamp of that record. With `is_before`, the scan begins at
        an earlier record, so the timestamp does not precede the first one.
        """
        self.timestamp_ms, self.time_steps = timestamp_ms, time_steps
        self.stored_ms = 0 if is_before else timestamp_ms

    def recover(self, units: int, end: int, timestamp_ms: int) -> None:
        """Note that a scan of the log up to `end` added this number of units to the queues.

        Write some of them if too many wait in memory. Raises OSError.
        """
        self._unwritten += units
        self.confirmed = end
        self.stored_ms = self.timestamp_ms = timestamp_ms or self.timestamp_ms
        try:
            self._write_excess()
        except OSError as error:
            self._tolerate_full_disk(error, self._unwritten)

    def restart(self, queue: ConsumeQueue, offset: int) -> None:
        """Make a queue empty during a scan. Its next message gets this offset. Raises OSError."""
        self._unwritten -= queue.visible - queue.written
        self.queues.unwritten.pop(queue, None)
        self.queues.restart(queue, offset)

    def recover_keys(self, keys: Keys) -> None:
        """Put the keys that a scan of the log found into the index. Raises OSError."""
        assert self.index is not None
        if self._keys is not None:
            self._keys.add(keys)
            keys = self._keys
        self._keys = keys
        try:
            self.index.put(keys)
            self._keys = None
        except OSError as error:
            self._tolerate_full_disk(error, len(keys))

    def _tolerate_full_disk(self, error: OSError, waiting: int) -> None:
        """Record the error of a full disk, so that the store still opens for reads and retention.

        Raise the error again if it has another cause, or if too much would wait in memory.
        """
        if error.errno not in NO_SPACE or waiting > _MAX_WAITING:
            raise error
        self.error = error
