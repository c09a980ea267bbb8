"""Divide queues by a hash ring (CONSISTENT_HASH): a membership change moves few queues."""

from __future__ import annotations

import hashlib
from bisect import bisect_left

from aerobee_client.message_queue import MessageQueue
from aerobee_client.rebalance.strategies import Clients, NamedStrategy, Queues, Strategy

VIRTUAL_NODES = 10


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """Return a strategy with `virtual_nodes` positions of each member on the ring.

    A queue belongs to the first member at or after its own position.
    """

    def strategy(client_id: str, queues: Queues, client_ids: Clients) -> list[MessageQueue]:
        ring = sorted(
            (_position(f"{member}-{node}"), member)
            for member in client_ids
            for node in range(virtual_nodes)
        )
        positions = [position for position, _ in ring]
        return [
            queue
            for queue in queues
            if ring[bisect_left(positions, _position(_key(queue))) % len(ring)][1] == client_id
        ]

    return NamedStrategy("CONSISTENT_HASH", strategy)


def _key(queue: MessageQueue) -> str:
    """Return the text that RocketMQ's clients hash too, so that they may join the same group."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def _position(key: str) -> int:
    """Return the first 4 bytes of the MD5, big-endian."""
    digest = hashlib.md5(key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")
