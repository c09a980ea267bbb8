"""How the queues of a topic are divided among the members of a group: pure functions.

A strategy is called by every member with the same sorted lists and its own client id, and returns
its share. Every strategy is deterministic, so the shares of all members are disjoint and cover all
queues without any communication. Source: RocketMQ's AllocateMessageQueueStrategy.
"""

from aerobee_client.rebalance.consistent_hash import consistent_hash
from aerobee_client.rebalance.strategies import (
    Strategy,
    average,
    average_by_circle,
    config,
    machine_room,
    machine_room_nearby,
)

__all__ = [
    "Strategy",
    "average",
    "average_by_circle",
    "config",
    "consistent_hash",
    "machine_room",
    "machine_room_nearby",
]
