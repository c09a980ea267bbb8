"""Messages that are due: read where they waited, stored where they are meant for."""

from __future__ import annotations

import structlog

from aerobee_broker.delivery.delay.levels import destination
from aerobee_broker.errors import StoreShort
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_wire.record import Record
from aerobee_wire.status import MqError


def waiting_record(store: MessageStore, physical_offset: int, size: int) -> Record | None:
    """The message as it waits; None, with a log line, when it cannot be read. Raises StoreShort:
    then it can be later."""
    try:
        return store.get(physical_offset, size)
    except StoreShort:
        raise
    except MqError as error:
        structlog.get_logger().error("delayed_message_lost", reason=error.message)
        return None


def due_copy(record: Record, topics: TopicRegistry, store: MessageStore) -> NewMessage | None:
    """The message as it is to be delivered; None, with a log line, when it cannot be."""
    properties = dict(record.properties)
    target = destination(properties)
    if (
        target is None
        or target[0] not in topics.table
        or record.physical_offset < store.deleted_below(target[0])
    ):
        structlog.get_logger().warning(
            "delayed_message_dropped",
            topic=target[0] if target else "",
            physical_offset=record.physical_offset,
            reason="its topic was deleted" if target else "it names no topic",
        )
        return None
    return whole(record, *target, properties)


def whole(record: Record, topic: str, queue_id: int, properties: dict[str, str]) -> NewMessage:
    """The message, to be stored once more with all that it says."""
    message = NewMessage.copy_of(record, topic, queue_id, properties)
    message.prepared_transaction_offset = record.prepared_transaction_offset
    return message
