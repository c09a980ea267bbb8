"""Find strategies by their names in RocketMQ."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from aerobee_client.rebalance.consistent_hash import consistent_hash
from aerobee_client.rebalance.strategies import (
    Strategy,
    average,
    average_by_circle,
    machine_room,
    machine_room_nearby,
)
from aerobee_wire.status import Code, MqError

NEARBY = "MACHINE_ROOM_NEARBY"
_SIMPLE: dict[str, Callable[[], Strategy]] = {
    "AVG": lambda: average,
    "AVG_BY_CIRCLE": lambda: average_by_circle,
    "CONSISTENT_HASH": consistent_hash,
}
NAMES = (*_SIMPLE, "CONFIG", "MACHINE_ROOM", *(f"{NEARBY}-{name}" for name in _SIMPLE), NEARBY)


def by_name(name: str, room: str = "") -> Strategy:
    """Return the strategy of that name. Raises INVALID_PARAMETER.

    `room`: the room of the member, for strategies that divide by rooms.
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
    near = get_close_matches(name, NAMES, 1, 0.4)
    known = f"did you mean {near[0]!r}?" if near else f"give one of {', '.join(NAMES)}"
    raise _refusal(name, f"it is none of RocketMQ's: {known}")


def _refusal(name: str, why: str) -> MqError:
    return MqError(Code.INVALID_PARAMETER, f"strategy {name!r}: {why}", about="strategy")
