"""Find deletions of topics that the store has applied and the metadata journal lacks.

A master deletes a topic before the deletion is in the log. A crash may happen in between. A full
disk may undo the record, and other messages may be in its place when it is logged again.
"""

from __future__ import annotations

from aerobee_broker.delivery.metadata_replay import first_from, records_from
from aerobee_broker.metadata import journal_records
from aerobee_broker.metadata.journal_records import TopicDeletion
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire import topics as names

_QUEUE = names.METADATA_DELETION_QUEUE


def unlogged_deletions(store: MessageStore) -> list[str]:
    """Return the deleted topics whose deletion is missing in the confirmed journal.

    After the confirmed part, only deletions at the end of the log are included. A topic that has
    messages again is left out: it was recreated when there was no journal, or the journal contains
    its deletion. Raises StoreReadError.
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
