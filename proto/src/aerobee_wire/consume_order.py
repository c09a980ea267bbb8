"""Rules for consuming the messages of a topic in order.

Broker and proxy decide alike, from the group's setting and the topic's type.
"""

from __future__ import annotations

from enum import Enum

# Values of a topic's message.type. Each lite topic has its own order.
ORDERED_TYPES = frozenset({"FIFO", "LITE"})


class ConsumeOrder(Enum):
    """The order setting of a consumer group.

    In order, the messages of a message group are delivered one after the other, to any consumer.
    The values are those of the contract's enum.
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
        """Return the setting for a number of the contract and `consume_message_orderly`.

        Peers of version 0.1 send only the latter. Raises ValueError for an unknown number, or if
        the two contradict each other.
        """
        order = cls(number)
        if not orderly:
            return order
        if order is cls.OFF:
            raise ValueError("consume_message_orderly is true and the order is off")
        return cls.ON
