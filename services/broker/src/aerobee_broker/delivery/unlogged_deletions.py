"""Deletions of topics that the store has carried out and the metadata journal does not tell.

A master deletes before the log has the deletion. A crash may come in between, and a full disk may
take the record back, so that others lie in its place when it is to be logged again.
"""

from __future__ import annotations

from aerobee_broker.delivery.metadata_replay import first_from, records_from
from aerobee_broker.metadata import journal_records
from aerobee_broker.metadata.journal_records import TopicDeletion
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire import topics as names

_QUEUE = names.METADATA_DELETION_QUEUE


def unlogged_deletions(store: MessageStore) -> list[str]:
    """The deleted topics whose deletion the journal lacks, as far as it is confirmed: behind that
    only those where the log ends. A topic that has messages again is none: it was created again
    when there was no journal, or the journal has its deletion. Raises StoreReadError."""
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
            except (KeyError, TypeError, ValueError):  # told when it is applied
                continue
            if not isinstance(record, TopicDeletion):
                continue
            below = found.get(record.topic)
            if below is not None and record.below >= below:
                del found[record.topic]
    at_end, confirmed = store.deleted_at_end(), store.confirmed_offset
    return [topic for topic, below in found.items() if below < confirmed or topic in at_end]
