"""How the queues of a topic are divided among the members of a group: pure functions.

A strategy is called by every member with the same sorted lists and its own client id, and returns
its share. Every strategy is deterministic, so the shares of all members are disjoint and cover all
queues without any communication. Source: RocketMQ's AllocateMessageQueueStrategy.
"""

from aerobee_client.rebalance.by_name import by_name
from aerobee_client.rebalance.consistent_hash import consistent_hash
from aerobee_client.rebalance.strategies import (
    NamedStrategy,
    Strategy,
    average,
    average_by_circle,
    config,
    machine_room,
    machine_room_nearby,
    name_of,
)

__all__ = [
    "NamedStrategy",
    "Strategy",
    "average",
    "average_by_circle",
    "by_name",
    "config",
    "consistent_hash",
    "machine_room",
    "machine_room_nearby",
    "name_of",
]
