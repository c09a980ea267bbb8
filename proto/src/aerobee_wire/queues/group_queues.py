"""The queues that a message can be written to, as a route tells them; and those of message groups,
which wait for a broker that is away. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic

from aerobee.namesrv.v1.namesrv_pb2 import TopicRoute

from aerobee_wire.queues.choice import Q

# For how long a broker that has left the route keeps its message groups: longer than a restart.
AWAY_MS = 60_000

_MASTER_ID = 0
_WRITABLE = 2  # a bit of a topic's permission


def masters(route: TopicRoute) -> set[str]:
    """The names of the brokers that have a master."""
    return {data.broker_name for data in route.brokers if _MASTER_ID in data.addresses}


def being_elected(route: TopicRoute) -> set[str]:
    """The names of the brokers that have replicas and no master: one of them is to become it."""
    return {data.broker_name for data in route.brokers if data.addresses} - masters(route)


def writable_counts(route: TopicRoute) -> dict[str, int]:
    """Broker name → how many queues of the topic can be written to there, sorted by name; also
    where a master is being elected."""
    there = masters(route) | being_elected(route)
    found = sorted(route.queues, key=lambda data: data.broker_name)
    return {
        data.broker_name: data.write_queue_count
        for data in found
        if data.permission & _WRITABLE and data.broker_name in there
    }


def order_topic_counts(order_topic_config: str) -> dict[str, int]:
    """Broker name → queues, of an order topic config like "broker-a:4;broker-b:4"."""
    pairs = (part.partition(":") for part in order_topic_config.split(";") if part)
    return {name: int(count or 0) for name, _, count in pairs}


class GroupQueues(Generic[Q]):
    """The queues that the message groups of one topic are spread over: those of its order topic
    config, if it has one; else all writable ones, and those of brokers that have left the route.

    A broker that leaves the route restarts, nearly always. If its message groups went to another
    broker meanwhile and came back, they would be out of order. So they wait for it, for AWAY_MS;
    after that, another broker takes them. Where a master is being elected they wait for as long as
    there are replicas. A broker that is there and takes no messages (it drains) loses them at once.

    `make`: broker name and queue id → queue. Times are of any monotonic clock.
    """

    def __init__(self, make: Callable[[str, int], Q]) -> None:
        self._make = make
        self._counts: dict[str, int] = {}
        self._away_since_ms: dict[str, int] = {}
        self._queues: list[Q] = []

    def update(self, route: TopicRoute, now_ms: int) -> None:
        """The route that name servers tell now."""
        if route.order_topic_config:
            self._away_since_ms.clear()
            self._set(order_topic_counts(route.order_topic_config))
            return
        told = {data.broker_name for data in route.queues}
        there = told & (masters(route) | being_elected(route))
        away = {name: count for name, count in self._counts.items() if name not in there}
        self._away_since_ms = {name: self._away_since_ms.get(name, now_ms) for name in away}
        self._set({**away, **writable_counts(route)})

    def at(self, now_ms: int) -> Sequence[Q]:
        """Sorted. Empty: no queue is writable."""
        if self._away_since_ms:
            self._forget_lost(now_ms)
        return self._queues

    def _forget_lost(self, now_ms: int) -> None:
        """Brokers that have been away for too long."""
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
