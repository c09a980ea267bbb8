"""Define the strategies that divide by counting. Pure.

`queues` and `client_ids` are sorted, without duplicates, and `client_id` is one of `client_ids`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from aerobee_client.message_queue import MessageQueue

Queues = Sequence[MessageQueue]
Clients = Sequence[str]
# (client_id, queues, client_ids) → the share of client_id.
Strategy = Callable[[str, Queues, Clients], list[MessageQueue]]


@dataclass(frozen=True, slots=True)
class NamedStrategy:
    """A strategy with its name in RocketMQ, by which the members of a group are compared."""

    name: str
    share: Strategy

    def __call__(self, client_id: str, queues: Queues, client_ids: Clients) -> list[MessageQueue]:
        return self.share(client_id, queues, client_ids)


def name_of(strategy: Strategy) -> str:
    """Return RocketMQ's name of a strategy; for a function of the application, its own name."""
    if isinstance(strategy, NamedStrategy):
        return strategy.name
    return getattr(strategy, "__qualname__", type(strategy).__qualname__)


def _average(client_id: str, queues: Queues, client_ids: Clients) -> list[MessageQueue]:
    """Return the share for AVG, the default: one contiguous range for each member.

    If the division has a remainder, the first members get one more.
    """
    index = client_ids.index(client_id)
    size, extra = divmod(len(queues), len(client_ids))
    start = index * size + min(index, extra)
    return list(queues[start : start + size + (index < extra)])


def _average_by_circle(client_id: str, queues: Queues, client_ids: Clients) -> list[MessageQueue]:
    """Return the share for AVG_BY_CIRCLE: the queues in turn, one for each member."""
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


average = NamedStrategy("AVG", _average)
average_by_circle = NamedStrategy("AVG_BY_CIRCLE", _average_by_circle)


def config(mine: Queues) -> Strategy:
    """Return a strategy with a fixed list (CONFIG).

    The user ensures that the lists of all members fit together.
    """
    fixed = list(mine)

    def strategy(client_id: str, queues: Queues, client_ids: Clients) -> list[MessageQueue]:
        topics = {queue.topic for queue in queues}
        return [queue for queue in fixed if queue.topic in topics]

    return NamedStrategy("CONFIG", strategy)


def machine_room(rooms: Collection[str]) -> Strategy:
    """Return a strategy for brokers named "room@name" with a room of `rooms` (MACHINE_ROOM).

    Members get contiguous ranges of equal size, and the remainder one by one.
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
    """Return the room of a queue whose broker is named "room@name"; "" without a room."""
    return room_of_broker_name(queue.broker_name)


def room_of_broker_name(name: str) -> str:
    room, at, _ = name.partition("@")
    return room if at else ""


def room_of_client_id(client_id: str) -> str:
    """Return the room of a consumer with the option `machine_room`; "" for another one."""
    parts = client_id.split("@", 2)
    return parts[2] if len(parts) == 3 else ""


def machine_room_nearby(
    inner: Strategy = average,
    room_of_queue: Callable[[MessageQueue], str] = room_of_broker,
    room_of_client: Callable[[str], str] = room_of_client_id,
) -> Strategy:
    """Return a strategy that divides the queues of each room (MACHINE_ROOM_NEARBY).

    The members in a room share its queues with `inner`. All members share the queues of a room
    without members.
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
