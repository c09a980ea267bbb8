"""Divide the queues of a topic among the members of a group, by functions without side effects.

Every member calls a strategy with the same sorted lists and its own client id. The strategy returns
the share of that member. Every strategy is deterministic, so the shares of all members are disjoint
and cover all queues without any communication. Source: RocketMQ's AllocateMessageQueueStrategy.

`queues` and `client_ids` are sorted, without duplicates, and `client_id` is one of `client_ids`.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from aerobee_client.message_queue import MessageQueue
from aerobee_wire.status import MqError, invalid_parameter

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

Queues = Sequence[MessageQueue]
Clients = Sequence[str]
# A function that returns the share of a client id, from client_id, queues and client_ids.
Strategy = Callable[[str, Queues, Clients], list[MessageQueue]]


VIRTUAL_NODES = 10


@dataclass(frozen=True, slots=True)
class NamedStrategy:
    """A strategy with its RocketMQ name.

    Heartbeats report the name, so that `aerobee group show` finds members with different
    strategies.
    """

    name: str
    share: Strategy

    def __call__(self, client_id: str, queues: Queues, client_ids: Clients) -> list[MessageQueue]:
        return self.share(client_id, queues, client_ids)


def name_of(strategy: Strategy) -> str:
    """Return RocketMQ's name of a strategy, or the name of a function of the application."""
    if isinstance(strategy, NamedStrategy):
        return strategy.name
    return getattr(strategy, "__qualname__", type(strategy).__qualname__)


def _average(client_id: str, queues: Queues, client_ids: Clients) -> list[MessageQueue]:
    """Return a member's share by the default strategy AVG: one contiguous range of the queues.

    If the division has a remainder, the first members get one more queue each.
    """
    index = client_ids.index(client_id)
    size, extra = divmod(len(queues), len(client_ids))
    start = index * size + min(index, extra)
    return list(queues[start : start + size + (index < extra)])


def _average_by_circle(client_id: str, queues: Queues, client_ids: Clients) -> list[MessageQueue]:
    """Return a member's share by AVG_BY_CIRCLE: members get the queues one by one, in rotation."""
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


average = NamedStrategy("AVG", _average)
average_by_circle = NamedStrategy("AVG_BY_CIRCLE", _average_by_circle)


def config(mine: Queues) -> Strategy:
    """Return the strategy CONFIG, which always returns the queues in `mine`.

    The user ensures that the lists of all members fit together.
    """
    fixed = list(mine)

    def strategy(client_id: str, queues: Queues, client_ids: Clients) -> list[MessageQueue]:
        topics = {queue.topic for queue in queues}
        return [queue for queue in fixed if queue.topic in topics]

    return NamedStrategy("CONFIG", strategy)


def machine_room(rooms: Collection[str]) -> Strategy:
    """Return the strategy MACHINE_ROOM, which divides the queues of brokers in `rooms`.

    The names of brokers must be "room@name". Members get contiguous ranges of equal size, and the
    first members get one queue each of the remainder.
    """

    def strategy(client_id: str, queues: Queues, client_ids: Clients) -> list[MessageQueue]:
        near = [queue for queue in queues if room_of_broker(queue) in rooms]
        index, members = client_ids.index(client_id), len(client_ids)
        size, extra = divmod(len(near), members)
        share = near[index * size : (index + 1) * size]
        if index < extra:
            share.append(near[index + members * size])
        return share

    return NamedStrategy("MACHINE_ROOM", strategy)


def room_of_broker(queue: MessageQueue) -> str:
    """Return the machine room of a queue whose broker is named "room@name", or ""."""
    return room_of_broker_name(queue.broker_name)


def room_of_broker_name(name: str) -> str:
    room, at, _ = name.partition("@")
    return room if at else ""


def room_of_client_id(client_id: str) -> str:
    """Return the machine room in a client id, or "" if the option `machine_room` was not set."""
    parts = client_id.split("@", 2)
    return parts[2] if len(parts) == 3 else ""


def machine_room_nearby(
    inner: Strategy = average,
    room_of_queue: Callable[[MessageQueue], str] = room_of_broker,
    room_of_client: Callable[[str], str] = room_of_client_id,
) -> Strategy:
    """Return the strategy MACHINE_ROOM_NEARBY, which divides the queues of each machine room.

    The members in a room divide its queues by the strategy `inner`. If a room has no members, all
    members divide its queues.
    """

    def strategy(client_id: str, queues: Queues, client_ids: Clients) -> list[MessageQueue]:
        rooms = {room_of_client(member) for member in client_ids}
        mine = room_of_client(client_id)
        neighbours = [member for member in client_ids if room_of_client(member) == mine]
        share = inner(
            client_id, [queue for queue in queues if room_of_queue(queue) == mine], neighbours
        )
        for room in sorted({room_of_queue(queue) for queue in queues} - rooms):
            orphans = [queue for queue in queues if room_of_queue(queue) == room]
            share = share + inner(client_id, orphans, client_ids)
        return share

    return NamedStrategy(f"MACHINE_ROOM_NEARBY-{name_of(inner)}", strategy)


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """Return the strategy CONSISTENT_HASH, which divides queues by a hash ring.

    A membership change moves few queues. Each member has `virtual_nodes` positions on the ring. A
    queue belongs to the first member at or after the queue's own position.
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
    """Return the text of a queue that is hashed.

    RocketMQ's clients hash the same text, so that they may join the same group.
    """
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def _position(key: str) -> int:
    """Return the position of a key on the hash ring: the first 4 bytes of its MD5, big-endian."""
    digest = hashlib.md5(key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


NEARBY = "MACHINE_ROOM_NEARBY"
_SIMPLE: dict[str, Callable[[], Strategy]] = {
    "AVG": lambda: average,
    "AVG_BY_CIRCLE": lambda: average_by_circle,
    "CONSISTENT_HASH": consistent_hash,
}
NAMES = (*_SIMPLE, "CONFIG", "MACHINE_ROOM", *(f"{NEARBY}-{name}" for name in _SIMPLE), NEARBY)


def by_name(name: str, room: str = "") -> Strategy:
    """Return the strategy with the name `name` in RocketMQ.

    `room` is the machine room of the member, for strategies that divide queues by room. Raises
    MqError with the code INVALID_PARAMETER for an unknown name or a missing room.
    """
    if name in _SIMPLE:
        return _SIMPLE[name]()
    if name == "CONFIG":
        raise _refusal(name, "it needs the member's queues: give rebalance.config([…])")
    if name == "MACHINE_ROOM" or name.partition("-")[0] == NEARBY:
        if not room:
            raise _refusal(name, "give machine_room too, the room of this member")
        if name == "MACHINE_ROOM":
            return machine_room({room})
        inner = name.partition("-")[2] or "AVG"
        if inner in _SIMPLE:
            return machine_room_nearby(_SIMPLE[inner]())
    from difflib import get_close_matches

    near = get_close_matches(name, NAMES, 1, 0.4)
    known = f"did you mean {near[0]!r}?" if near else f"give one of {', '.join(NAMES)}"
    raise _refusal(name, f"unknown strategy: {known}")


def _refusal(name: str, why: str) -> MqError:
    return invalid_parameter(f"strategy {name!r}: {why}", about="strategy")
