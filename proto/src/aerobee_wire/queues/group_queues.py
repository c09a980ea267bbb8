"""Find the writable queues in a route, and the queues of message groups.

This module does no I/O.

Message groups wait for a broker that is temporarily missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic

from aerobee.namesrv.v1.namesrv_pb2 import TopicRoute

from aerobee_wire.queues.choice import Q
from aerobee_wire.route import MASTER_ID, WRITE

# A broker that has left the route keeps its message groups for this time: longer than a restart.
AWAY_MS = 60_000


def masters(route: TopicRoute) -> set[str]:
    """Return the broker names that have a master."""
    return {data.broker_name for data in route.brokers if MASTER_ID in data.addresses}


def being_elected(route: TopicRoute) -> set[str]:
    """Return the broker names whose replicas are electing a master."""
    return {data.broker_name for data in route.brokers if data.addresses} - masters(route)


def writable_counts(route: TopicRoute) -> dict[str, int]:
    """Return a map from broker name to its number of writable queues, sorted by name.

    Brokers that are electing a master are included.
    """
    there = masters(route) | being_elected(route)
    found = sorted(route.queues, key=lambda data: data.broker_name)
    return {
        data.broker_name: data.write_queue_count
        for data in found
        if data.permission & WRITE and data.broker_name in there
    }


def order_topic_counts(order_topic_config: str) -> dict[str, int]:
    """Return a map from broker name to queue count, from a text like "broker-a:4;broker-b:4"."""
    pairs = (part.partition(":") for part in order_topic_config.split(";") if part)
    return {name: int(count or 0) for name, _, count in pairs}


class GroupQueues(Generic[Q]):
    """The queues over which the message groups of one topic are distributed.

    If the topic has an order topic config, these are its queues. Otherwise, they are all writable
    queues, and the queues of brokers that have left the route.

    A broker that leaves the route is usually restarting. If its message groups moved to another
    broker and back, their messages would be out of order. So the message groups wait for the
    broker, up to AWAY_MS. After that, another broker takes them. During an election, they wait
    while there are replicas. A broker that is in the route but does not accept messages (it drains)
    loses its message groups at once.

    `make` returns the queue for a broker name and queue id. Times are of any monotonic clock.
    """

    def __init__(self, make: Callable[[str, int], Q]) -> None:
        self._make = make
        self._counts: dict[str, int] = {}
        self._away_since_ms: dict[str, int] = {}
        self._queues: list[Q] = []

    def update(self, route: TopicRoute, now_ms: int) -> None:
        """Apply the present route from the name servers."""
        if route.order_topic_config:
            self._away_since_ms.clear()
            self._set(order_topic_counts(route.order_topic_config))
            return
        listed = {data.broker_name for data in route.queues}
        there = listed & (masters(route) | being_elected(route))
        away = {name: count for name, count in self._counts.items() if name not in there}
        self._away_since_ms = {name: self._away_since_ms.get(name, now_ms) for name in away}
        self._set({**away, **writable_counts(route)})

    def at(self, now_ms: int) -> Sequence[Q]:
        """Return the queues, sorted, or an empty sequence if no queue is writable."""
        if self._away_since_ms:
            self._forget_lost(now_ms)
        return self._queues

    def _forget_lost(self, now_ms: int) -> None:
        """Remove the brokers that have been missing for AWAY_MS."""
        lost = [name for name, ms in self._away_since_ms.items() if now_ms - ms >= AWAY_MS]
        for name in lost:
            del self._away_since_ms[name]
        if lost:
            self._set({name: n for name, n in self._counts.items() if name not in lost})

    def _set(self, counts: Mapping[str, int]) -> None:
        self._counts = dict(counts)
        self._queues = [
            self._make(name, queue_id)
            for name, count in sorted(counts.items())
            for queue_id in range(count)
        ]
