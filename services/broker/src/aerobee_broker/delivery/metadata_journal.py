"""The metadata journal of a master: changes of topics, groups and consumer offsets, in the log.

Each change is a log record, so that each replica has all changes in their order.

Before a table's file is written (`PersistentTable`), the table is compared with the journal, and
the differences are logged. The file is written only after the record of these differences is
confirmed, and contains only confirmed changes. A caller that has waited for the file can therefore
acknowledge its change: a failover does not undo the change. Consumer offsets are written every
`flushConsumerOffsetInterval`. After a failover, groups consume again at most the messages of that
interval.

The position of two kinds of records in the log matters: the deletion of a topic, and the creation
of a parent of lite topics. Such a record is appended in the same iteration of the event loop as its
change. If the log loses such a record, it is logged again before any other record of the journal.
"""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.metadata_replay import first_from, records_from
from aerobee_broker.metadata import journal_records
from aerobee_broker.metadata.journal_records import ParentCreation, TableChange, TopicDeletion
from aerobee_broker.metadata.persistent_table import Logged
from aerobee_broker.metadata.table import Table
from aerobee_broker.metadata.table_journal import SavedTables, TableChanges
from aerobee_broker.store.message_store import MessageStore
from aerobee_chassis.clock import Clock
from aerobee_chassis.lifecycle import Component
from aerobee_wire import topics as names
from aerobee_wire.status import MqError

_QUEUE = names.METADATA_DELETION_QUEUE


def unlogged_deletions(store: MessageStore) -> list[str]:
    """Return the deleted topics whose deletion record is missing in the confirmed journal.

    A record may be missing because a master deletes a topic before it logs the deletion. A crash
    may happen in between, or the log may roll the record back because the disk is full.

    A deletion above the confirmed offset is included only if no record of the log follows it. A
    topic that has messages again is left out, because it was recreated: either the broker had no
    journal then, or the journal contains the deletion. Raises StoreReadError.
    """
    found = {
        topic: below
        for topic, below in store.deleted_topics.items()
        if below >= store.min_physical_offset
        and not any(store.max_offset(topic, queue_id) for queue_id in store.queues(topic))
    }
    if found:
        begin = first_from(store, _QUEUE, min(found.values()))
        for message in records_from(store, _QUEUE, begin):
            try:
                record = journal_records.decode(message.body)
            except (KeyError, TypeError, ValueError):  # logged when it is applied
                continue
            if not isinstance(record, TopicDeletion):
                continue
            below = found.get(record.topic)
            if below is not None and record.below >= below:
                del found[record.topic]
    at_end, confirmed = store.deleted_at_end(), store.confirmed_offset
    return [topic for topic, below in found.items() if below < confirmed or topic in at_end]


class MetadataJournal(Component):
    """The metadata journal that a master writes during one epoch.

    The tables must match the journal when `restore` is called.
    """

    def __init__(self, log: DurableLog, saved: SavedTables, clock: Clock) -> None:
        self._log = log
        self._saved = saved
        self._clock = clock
        self._changes: dict[Table, TableChanges] = {}
        # Records that are not logged yet, or that the log has lost: logged before any other record.
        self._unlogged: list[TopicDeletion | ParentCreation] = []

    def restore(self) -> None:
        """Start to record changes of the tables, and find topic deletions that are not logged.

        Raises StoreReadError.
        """
        for name, table in self._saved.tables.by_name().items():
            file = self._saved.files[name]
            is_known = file.position is not None or not file.is_there
            self._changes[table] = TableChanges(name, table, is_known=is_known)
        self._unlogged = [TopicDeletion(topic, 0) for topic in unlogged_deletions(self._log.store)]
        self._saved.journal.lead(self)

    async def start(self) -> None:
        self._log_at_its_place()
        self._log.schedule_flush()

    # ---- changes of tables ----

    def log(self, table: Table) -> Logged:
        """Append the changes of a table that are not in the journal yet.

        Raises the errors of the store.
        """
        self._log_at_its_place()
        changes = self._changes[table]
        change = changes.take()
        if change is not None:
            self._append(changes, change)

        def ended(error: BaseException | None) -> None:
            if error is not None and change is not None:
                changes.lose(change)

        # Shielded, because cancelling the future would also cancel the call of `ended`.
        confirmed = asyncio.shield(self._log.when_flushed(ended))
        confirmed.add_done_callback(_seen)
        return Logged(self._log.store.end_offset, confirmed)

    def _append(self, changes: TableChanges, change: TableChange) -> None:
        messages = journal_records.messages(change, self._clock.now_ms())
        try:
            self._log.store.append(messages, reserve=True)
        except BaseException:
            changes.lose(change)
            raise

    # ---- records whose position matters ----

    def create_parent(self, topic: str) -> None:
        """Log the creation of a topic of type LITE.

        Call this before the topic's row is added, and before its first message is stored. Raises
        the errors of the store.
        """
        creation = ParentCreation(topic)
        self._unlogged.append(creation)
        try:
            self._log_at_its_place()
        except MqError:
            if creation in self._unlogged:
                self._unlogged.remove(creation)
            raise
        self._log.schedule_flush()

    def delete_topic(self, topic: str) -> None:
        """Delete a topic in the store, and log the deletion.

        The caller must remove the topic's rows from the tables before its next await. The deletion
        is confirmed when the next `log` is confirmed. If this raises an error of the store, nothing
        has changed.
        """
        store = self._log.store
        store.check_open_to_appends(reserve=True)
        store.delete_topic(topic)
        self._unlogged.append(TopicDeletion(topic, 0))
        try:
            self._log_at_its_place()
        except MqError as error:
            structlog.get_logger().warning("deletion_not_logged", topic=topic, reason=error.message)

    def _log_at_its_place(self) -> None:
        """Append the deletions and creations that are not in the log.

        Raises the errors of the store.
        """
        while self._unlogged:
            record = self._unlogged[0]
            if isinstance(record, TopicDeletion):
                record = record._replace(below=self._log.store.deleted_below(record.topic))
            messages = journal_records.messages(record, self._clock.now_ms())
            self._log.store.append(messages, reserve=True)
            self._unlogged.pop(0)
            if isinstance(record, TopicDeletion):
                self._forget_rows(record.topic)
            self._log.when_flushed(partial(self._ended, record))

    def _ended(self, record: TopicDeletion | ParentCreation, error: BaseException | None) -> None:
        if error is not None:
            self._unlogged.append(record)
            self._touch()

    def _forget_rows(self, topic: str) -> None:
        tables = self._saved.tables
        self._changes[tables.topics].forget([topic])
        changes = self._changes[tables.offsets]
        changes.forget([key for key in changes.known_keys() if key[0] == topic])
        self._touch()

    def _touch(self) -> None:
        """Make the next save compare the topics and the consumer offsets with the journal."""
        self._saved.tables.topics.touch()
        self._saved.tables.offsets.touch()


def _seen(future: asyncio.Future[None]) -> None:
    """Retrieve the exception, which asyncio would otherwise log if no caller awaits the future."""
    if not future.cancelled():
        future.exception()
