"""Divide the queues of a topic among the members of a group: pure functions.

Every member calls a strategy with the same sorted lists and its own client id. The strategy returns
the share of that member. Every strategy is deterministic, so the shares of all members are disjoint
and cover all queues without any communication. Source: RocketMQ's AllocateMessageQueueStrategy.
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
