"""Whether a consumer group gets the messages of a topic in order: what broker and proxy decide
alike, from the group's setting and the topic's type."""

from __future__ import annotations

from enum import Enum

# Of topics: their message.type. Each lite topic is a line of its own.
ORDERED_TYPES = frozenset({"FIFO", "LITE"})


class ConsumeOrder(Enum):
    """In order: of each message group one message after the other, whoever asks. The values are
    those of the contract's enum."""

    AUTO = 0  # on topics of the types FIFO and LITE
    ON = 1  # on every topic: RocketMQ's consumeMessageOrderly
    OFF = 2  # on none

    def holds_in(self, message_type: str) -> bool:
        """Whether messages of a topic of this type are consumed in order."""
        if self is ConsumeOrder.AUTO:
            return message_type in ORDERED_TYPES
        return self is ConsumeOrder.ON

    @classmethod
    def of(cls, number: int, *, orderly: bool) -> ConsumeOrder:
        """From a number of the contract and `consume_message_orderly` beside it, which is all that
        peers of version 0.1 send. Raises ValueError for a number or a pair without a meaning."""
        order = cls(number)
        if not orderly:
            return order
        if order is cls.OFF:
            raise ValueError("consume_message_orderly is true and the order is off")
        return cls.ON
