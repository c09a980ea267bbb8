"""The strategies that divide by counting. Pure; `queues` and `client_ids` are sorted, without
duplicates, and `client_id` is one of `client_ids`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from aerobee_client.message_queue import MessageQueue

Queues = Sequence[MessageQueue]
Clients = Sequence[str]
# (client_id, queues, client_ids) → the share of client_id
Strategy = Callable[[str, Queues, Clients], list[MessageQueue]]


def average(client_id: str, queues: Queues, client_ids: Clients) -> list[MessageQueue]:
    """AVG, the default: one contiguous run for each; the first members get one more when the
    division leaves a remainder."""
    index = client_ids.index(client_id)
    size, extra = divmod(len(queues), len(client_ids))
    start = index * size + min(index, extra)
    return list(queues[start : start + size + (index < extra)])


def average_by_circle(client_id: str, queues: Queues, client_ids: Clients) -> list[MessageQueue]:
    """AVG_BY_CIRCLE: the queues in turn, one for each member."""
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def config(mine: Queues) -> Strategy:
    """CONFIG: a fixed list; the user makes sure that the lists of all members fit together."""
    fixed = list(mine)

    def strategy(client_id: str, queues: Queues, client_ids: Clients) -> list[MessageQueue]:
        topics = {queue.topic for queue in queues}
        return [queue for queue in fixed if queue.topic in topics]

    return strategy


def machine_room(rooms: Collection[str]) -> Strategy:
    """MACHINE_ROOM: only queues of brokers named "room@name" with a room of `rooms`; contiguous
    runs of equal size, the remainder one by one."""

    def strategy(client_id: str, queues: Queues, client_ids: Clients) -> list[MessageQueue]:
        near = [queue for queue in queues if _room_of_broker(queue.broker_name) in rooms]
        index, members = client_ids.index(client_id), len(client_ids)
        size, extra = divmod(len(near), members)
        share = near[index * size : (index + 1) * size]
        if index < extra:
            share.append(near[index + members * size])
        return share

    return strategy


def machine_room_nearby(
    inner: Strategy,
    room_of_queue: Callable[[MessageQueue], str],
    room_of_client: Callable[[str], str],
) -> Strategy:
    """MACHINE_ROOM_NEARBY: the queues of a room are shared by the members in it with `inner`; those
    of a room without members by all members."""

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

    return strategy


def _room_of_broker(broker_name: str) -> str:
    """The room of a broker named "room@name"; "" when the name has none."""
    room, at, _ = broker_name.partition("@")
    return room if at else ""
