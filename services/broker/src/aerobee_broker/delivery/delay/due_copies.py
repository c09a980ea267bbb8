"""Due copies: the messages that replace waiting messages in their topics when they are due."""

from __future__ import annotations

import structlog

from aerobee_broker.delivery.delay.levels import take_destination
from aerobee_broker.errors import TransientReadError
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_wire.record import Record
from aerobee_wire.status import MqError


class DueCopies:
    def __init__(self, store: MessageStore, topics: TopicRegistry) -> None:
        self._store = store
        self._topics = topics

    def read(self, physical_offset: int, size: int) -> Record | None:
        """Return the waiting message; None, with a log line, if it is damaged.

        Raises TransientReadError.
        """
        try:
            return self._store.get(physical_offset, size)
        except TransientReadError:
            raise
        except MqError as error:
            structlog.get_logger().error("delayed_message_lost", reason=error.message)
            return None

    def copy_for_delivery(self, record: Record) -> NewMessage | None:
        """Return the message for its destination.

        None, with a log line, if it names no destination, or its topic was deleted.
        """
        properties = dict(record.properties)
        target = take_destination(properties)
        if target is None or self._is_of_deleted(record, target[0]):
            structlog.get_logger().warning(
                "delayed_message_dropped",
                topic=target[0] if target else "",
                physical_offset=record.physical_offset,
                reason="its topic was deleted" if target else "it names no topic",
            )
            return None
        return full_copy(record, *target, properties)

    def _is_of_deleted(self, record: Record, topic: str) -> bool:
        """Return whether the topic was deleted after the message was stored.

        A topic with the same name may have been created since then.
        """
        deleted_below = self._store.deleted_below(topic)
        return topic not in self._topics.table or record.physical_offset < deleted_below


def full_copy(record: Record, topic: str, queue_id: int, properties: dict[str, str]) -> NewMessage:
    """Return `NewMessage.copy_of` with `prepared_transaction_offset`."""
    message = NewMessage.copy_of(record, topic, queue_id, properties)
    message.prepared_transaction_offset = record.prepared_transaction_offset
    return message
