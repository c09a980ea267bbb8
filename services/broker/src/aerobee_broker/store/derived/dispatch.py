"""Dispatch: what an appended record adds to the consume queues and the index, and when it shows.

Units are made at the append and wait; when the log is durable up to a record, its unit becomes
visible and its keys go to the index, in batches. Memory: the units of what is not written to the
consume queue files (bounded by `unwritten_units`), and the keys of at most `_INDEX_BATCH` messages.
"""

from __future__ import annotations

import importlib
from collections import deque
from typing import TYPE_CHECKING

from aerobee_broker.errors import NO_SPACE
from aerobee_broker.store.derived.consume_queue import (
    UNIT_SIZE,
    ConsumeQueue,
    ConsumeQueues,
    TopicEncoding,
)
from aerobee_broker.store.derived.index import Index
from aerobee_broker.store.messages import Arrival

if TYPE_CHECKING:
    from aerobee_broker.store.derived.keys import Keys

# Of a message whose keys are to be indexed: topic, properties, physical offset, timestamp (ms).
Indexed = tuple[TopicEncoding, bytes, int, int]

# A batch of this many messages is hashed in one go.
_INDEX_BATCH = 2_048
# Units, or keys, that wait while a recovery finds the disk full: 100 MB.
_MOST_KEPT = 4_000_000


class Batch:
    """What one append did: undone when it is not written, shown when it is durable."""

    __slots__ = ("end", "indexed", "nexts", "starts", "timestamp_ms")

    def __init__(
        self,
        end: int,
        timestamp_ms: int,
        starts: dict[ConsumeQueue, int],
        indexed: list[Indexed],
    ) -> None:
        self.end = end
        self.timestamp_ms = timestamp_ms
        self.starts = starts  # next offset of each queue before
        self.nexts = [(queue, queue.next_offset) for queue in starts]  # and after
        self.indexed = indexed


class Dispatch:
    def __init__(self, queues: ConsumeQueues, index: Index | None, unwritten_units: int) -> None:
        self.confirmed = 0  # physical offset below which everything is visible
        self.timestamp_ms = 0  # store timestamp of the last visible record
        self.error: Exception | None = None  # a write of derived files failed; tried again later
        self._queues = queues
        self._index = index
        self._unwritten_units = unwritten_units
        self._unwritten = 0
        self._batches: deque[Batch] = deque()
        self._indexed: list[Indexed] = []  # visible, not in the index yet
        self._keys: Keys | None = None  # being put; left over when that failed

    def forget_topic(self, topic: str) -> None:
        """Its waiting units are not to be written, nor its keys indexed."""
        for queue in self._queues.unwritten:
            if queue.topic.name == topic:
                self._unwritten -= queue.visible - queue.written
        self._indexed = [message for message in self._indexed if message[0].name != topic]

    def add(self, batch: Batch) -> None:
        self._batches.append(batch)

    def undo(self, written: int) -> None:
        """Appends behind `written` never happened."""
        while self._batches and self._batches[-1].end > written:
            for queue, start in self._batches.pop().starts.items():
                queue.rewind(start)

    def confirm(self, flushed: int) -> list[Arrival]:
        """Shows every message that ends at or below `flushed`, and says which queues got some."""
        visible: dict[ConsumeQueue, int] = {}
        batches = self._batches
        while batches and batches[0].end <= flushed:
            batch = batches.popleft()
            visible.update(batch.nexts)  # later batches reach further
            self._indexed += batch.indexed
            self.confirmed, self.timestamp_ms = batch.end, batch.timestamp_ms
        arrivals = [
            self._show(queue, following) for queue, following in visible.items() if not queue.gone
        ]
        self._keep_within_bounds()
        return arrivals

    def _show(self, queue: ConsumeQueue, following: int) -> Arrival:
        first = queue.visible
        queue.visible = following
        self._queues.unwritten[queue] = None
        self._unwritten += following - first
        at = (first - queue.written) * UNIT_SIZE
        units = queue.tail[at : at + (following - first) * UNIT_SIZE]
        return Arrival(queue.topic.name, queue.queue_id, first, following, units)

    def _keep_within_bounds(self) -> None:
        try:
            self._write_what_is_over()
        except OSError as error:
            self.error = error

    def _write_what_is_over(self) -> None:
        if len(self._indexed) >= _INDEX_BATCH:
            self.put_index()
        while self._unwritten > self._unwritten_units and self._queues.unwritten:
            self.write_queue(next(iter(self._queues.unwritten)))

    def write_queue(self, queue: ConsumeQueue) -> None:
        """Writes the units of a queue to its file. Raises OSError."""
        written = queue.written
        try:
            self._queues.write(queue)
        finally:
            self._unwritten -= queue.written - written

    def warm_up(self) -> None:
        """On the flusher's thread: imports what the first key needs, which takes 80 ms, so that
        the loop need not.
        """
        if self._index is not None and self._indexed:
            importlib.import_module("aerobee_broker.store.derived.keys")

    def put_index(self) -> None:
        """Brings every visible message into the index. Raises OSError."""
        if self._index is None:
            return
        if self._indexed:
            from aerobee_broker.store.derived.keys import (
                Keys,  # numpy: 80 ms, not before the first key
            )

            keys = Keys.of(self._indexed)
            self._indexed = []
            if self._keys is None:
                self._keys = keys
            else:
                self._keys.add(keys)
        if self._keys is not None:
            self._index.put(self._keys)
            self._keys = None
        self._index.end_offset = self.confirmed

    def recover(self, units: int, end: int, timestamp_ms: int) -> None:
        """Takes over what a scan of the log found, up to `end`. Raises OSError."""
        self._unwritten += units
        self.confirmed = end
        self.timestamp_ms = timestamp_ms or self.timestamp_ms
        try:
            self._write_what_is_over()
        except OSError as error:
            self._bear(error, self._unwritten)

    def recover_keys(self, keys: Keys) -> None:
        """Keys that a scan of the log found. Raises OSError."""
        assert self._index is not None
        if self._keys is not None:
            self._keys.add(keys)
            keys = self._keys
        self._keys = keys
        try:
            self._index.put(keys)
            self._keys = None
        except OSError as error:
            self._bear(error, len(keys))

    def _bear(self, error: OSError, kept: int) -> None:
        """Without room on the disk a store opens all the same: it is read, and retention makes
        room. Raises the error when too much would wait in memory."""
        if error.errno not in NO_SPACE or kept > _MOST_KEPT:
            raise error
        self.error = error
