"""Decide whether the messages of a topic are consumed in order.

Broker and proxy make the same decision from the group's setting and the topic's type.
"""

from __future__ import annotations

from enum import Enum

# Values of a topic's message.type. Each lite topic has its own order.
ORDERED_TYPES = frozenset({"FIFO", "LITE"})


class ConsumeOrder(Enum):
    """The order setting of a consumer group.

    If it applies, the messages of a message group are delivered one after the other, to any
    consumer. The values are those of the protobuf enum.
    """

    AUTO = 0  # on topics of the types FIFO and LITE
    ON = 1  # on every topic: RocketMQ's consumeMessageOrderly
    OFF = 2  # on no topic

    def holds_in(self, message_type: str) -> bool:
        """Return whether messages of a topic of this type are consumed in order."""
        if self is ConsumeOrder.AUTO:
            return message_type in ORDERED_TYPES
        return self is ConsumeOrder.ON

    @classmethod
    def of(cls, number: int, *, orderly: bool) -> ConsumeOrder:
        """Return the setting for a protobuf enum value and the field `consume_message_orderly`.

        Peers of version 0.1 send only the field. Raises ValueError for an unknown value, or if the
        value and the field contradict each other.
        """
        order = cls(number)
        if not orderly:
            return order
        if order is cls.OFF:
            raise ValueError("consume_message_orderly is true and the order is off")
        return cls.ON
