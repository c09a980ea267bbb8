"""A message queue: one of the ordered parts of a topic, on one broker."""

from __future__ import annotations

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """Sorts by topic, broker name and queue id, as every member of a group does to rebalance."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}/{self.queue_id}"
