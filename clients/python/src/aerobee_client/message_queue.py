"""Define a message queue: one of the ordered parts of a topic, on one broker."""

from __future__ import annotations

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """A message queue. Queues sort by topic, broker name and queue id.

    Every member of a group sorts the queues in this order to rebalance.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}/{self.queue_id}"
