"""Applies the metadata journal to the tables of a replica, in the order of the log.

At startup, it applies the records that are newer than the files of the tables. While the replica
follows a master, it applies records when they are confirmed. The store halts after the deletion of
a topic and after the creation of a parent of lite topics (`store/follow.py`). These records are
therefore applied before later messages are added to the consume queues.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Protocol

import structlog

from aerobee_broker.metadata import journal_records
from aerobee_broker.metadata.journal_records import ParentCreation, TopicDeletion
from aerobee_broker.metadata.table_journal import SavedTables
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import Arrival
from aerobee_wire import topics as names
from aerobee_wire.queues.lite import LITE
from aerobee_wire.record import Record, iter_records

READ_MESSAGES = 1_024
READ_BYTES = 4 * 1024 * 1024
_QUEUES = (names.METADATA_CHANGE_QUEUE, names.METADATA_DELETION_QUEUE)


class ReplicaParents(Protocol):
    """Stores which topics are parents of lite topics.

    Each change is durable on return. If a change cannot be stored, the call raises StoreWriteError.
    """

    def add_parent(self, parent: str) -> None: ...

    def remove_parent(self, parent: str) -> None: ...


class MetadataReplay:
    """Applies the records of the metadata journal to the tables of a replica.

    Load the tables from their files, and then call `restore` before any other method.
    """

    def __init__(self, store: MessageStore, saved: SavedTables, parents: ReplicaParents) -> None:
        self._store = store
        self._saved = saved
        self._parents = parents
        self._created: set[str] = set()  # parents whose row may not exist yet
        self._positions: dict[str, int] = {}  # physical offsets: a table includes everything below
        self._next = dict.fromkeys(_QUEUES, 0)  # queue offsets

    def restore(self) -> int:
        """Apply the records that are newer than the tables' files; return their number.

        Blocks the event loop. Raises StoreReadError, StoreWriteError.
        """
        store = self._store
        for name, file in self._saved.files.items():
            at = file.position
            # A file without a position is newer than the journal: it was written without one.
            if at is None:
                at = store.confirmed_offset if file.is_there else 0
            self._positions[name] = at
        low = min(self._positions.values())
        for queue_id in _QUEUES:
            self._next[queue_id] = first_from(store, queue_id, low)
        count = self.apply()
        structlog.get_logger().info("metadata_restored", journal_records=count)
        return count

    def parents(self) -> set[str]:
        """Return the topics of type LITE, according to the applied part of the journal."""
        topics = self._saved.tables.topics.all()
        return self._created | {each.topic for each in topics if each.message_type == LITE}

    def take_over(self, position: int) -> None:
        """Continue after the tables were replaced by those of another replica.

        `position` is the physical offset below which the new tables include all journal records.
        """
        self._positions = dict.fromkeys(self._positions, position)
        for queue_id in _QUEUES:
            self._next[queue_id] = self._store.max_offset(names.METADATA_LOG_TOPIC, queue_id)
        self._saved.journal.applied_to(position)

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """Apply the journal records among messages that were just added to the consume queues.

        Raises the errors of `apply`. After an error, the caller must call this method again.
        """
        halted = self._store.follower.halted
        if halted or any(arrival.topic == names.METADATA_LOG_TOPIC for arrival in arrivals):
            self.apply()

    def apply(self) -> int:
        """Apply all visible records that are not applied yet; return their number.

        Raises StoreReadError, or StoreWriteError if a deletion or a parent cannot be stored.
        """
        store, count = self._store, 0
        for record in heapq.merge(*map(self._records, _QUEUES), key=_place):
            self._apply(record)
            self._next[record.queue_id] = record.queue_offset + 1
            count += 1
        self._saved.journal.applied_to(store.confirmed_offset)
        if store.follower.halted:
            store.follower.resume()
        return count

    def _apply(self, message: Record) -> None:
        stale = {name for name, at in self._positions.items() if message.physical_offset < at}
        try:
            record = journal_records.decode(message.body)
            if isinstance(record, TopicDeletion):
                self._delete(record)
            if isinstance(record, TopicDeletion) and "topics" not in stale:
                self._created.discard(record.topic)
                self._parents.remove_parent(record.topic)
            if isinstance(record, ParentCreation) and "topics" not in stale:
                self._created.add(record.topic)
                self._parents.add_parent(record.topic)
            journal_records.apply(record, self._saved.tables, stale)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            structlog.get_logger().error(
                "metadata_record_unreadable",
                queue_id=message.queue_id,
                queue_offset=message.queue_offset,
                reason=repr(error),
            )

    def _delete(self, deletion: TopicDeletion) -> None:
        """Delete the topic in the store, unless it is already deleted."""
        store, topic, below = self._store, deletion.topic, deletion.below
        if below > max(store.deleted_below(topic), store.min_physical_offset):
            store.delete_topic(topic, below)
            structlog.get_logger().info("topic_deleted", topic=topic, by="journal")

    def _records(self, queue_id: int) -> Iterator[Record]:
        return records_from(self._store, queue_id, self._next[queue_id])


def records_from(store: MessageStore, queue_id: int, offset: int) -> Iterator[Record]:
    """Yield the visible records of one queue of the journal, starting at a queue offset.

    Raises StoreReadError.
    """
    offset = max(offset, store.min_offset(names.METADATA_LOG_TOPIC, queue_id))
    while offset < store.max_offset(names.METADATA_LOG_TOPIC, queue_id):
        result = store.read(
            names.METADATA_LOG_TOPIC,
            queue_id,
            offset,
            max_messages=READ_MESSAGES,
            max_bytes=READ_BYTES,
            tags=None,
        )
        yield from iter_records(result.records, check_crc=False)
        if result.next_begin_offset <= offset:
            return
        offset = result.next_begin_offset


def first_from(store: MessageStore, queue_id: int, position: int) -> int:
    """Return the queue offset of the first visible record at or after a physical offset.

    Raises StoreReadError.
    """
    topic = names.METADATA_LOG_TOPIC
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)

    def place(queue_offset: int) -> int:
        units = store.units(topic, queue_id, queue_offset, 1)
        return units[0][0] if units else position

    return bisect_left(range(high), position, low, high, key=place)


def _place(record: Record) -> int:
    return record.physical_offset
