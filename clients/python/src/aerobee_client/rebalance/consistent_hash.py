"""CONSISTENT_HASH: a ring of hashes, so that a member who comes or goes moves few queues."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence

from aerobee_client.message_queue import MessageQueue
from aerobee_client.rebalance.strategies import Strategy

VIRTUAL_NODES = 10


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """Each member stands at `virtual_nodes` places of the ring; a queue belongs to the first member
    at or after its own place."""

    def strategy(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        ring = sorted(
            (_place(f"{member}-{node}"), member)
            for member in client_ids
            for node in range(virtual_nodes)
        )
        places = [place for place, _ in ring]
        return [
            queue
            for queue in queues
            if ring[bisect_left(places, _place(_key(queue))) % len(ring)][1] == client_id
        ]

    return strategy


def _key(queue: MessageQueue) -> str:
    """The text that RocketMQ's clients hash, so that both kinds can share a group."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def _place(key: str) -> int:
    """The first 4 bytes of the MD5, big-endian."""
    digest = hashlib.md5(key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")
