"""Define the options of simple consumers: names, defaults, bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict

from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.options.bounds import Bounds, check_bounds, check_duration, check_value
from aerobee_client.options.reading import ConsumeFromWhere, check_machine_room
from aerobee_wire.status import Code, MqError


class SimpleConsumerSettings(TypedDict, total=False):
    """The keyword arguments of a simple consumer; for defaults see SimpleConsumerOptions."""

    fifo: bool
    consume_from_where: ConsumeFromWhere
    request_timeout: timedelta
    machine_room: str
    interceptors: Sequence[Interceptor]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleConsumerOptions:
    """The options of a simple consumer. Raises INVALID_PARAMETER, which names the bounds."""

    # Whether the messages of one receive are consumed in order. If the group consumes in order (a
    # topic of the type FIFO), a receive may then return several messages of a message group.
    # Otherwise it returns at most one of each.
    fifo: bool = False
    # Where the group starts in a queue in which it has no offset. TIMESTAMP is not supported.
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    # Limits an acknowledgement, a change or a dead letter. The client retries it while its broker
    # is unavailable.
    request_timeout: timedelta = timedelta(seconds=10)
    # The location of this member; brokers are named "room@name". It receives from brokers of its
    # room, and of rooms without members of the group. It becomes part of the client id. "": from
    # all brokers.
    machine_room: str = ""
    # Are notified of received and settled messages.
    interceptors: Sequence[Interceptor] = ()

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)
        check_machine_room(self.machine_room)
        if self.consume_from_where is ConsumeFromWhere.TIMESTAMP:
            raise MqError(
                Code.INVALID_PARAMETER,
                "consume_from_where is TIMESTAMP: a simple consumer starts at LAST_OFFSET or "
                "FIRST_OFFSET; reset the offsets of its group to a time instead",
            )


_BOUNDS: Bounds = {"request_timeout": (0.001, 86_400)}  # seconds

MAX_MESSAGES = 32  # per receive, as in RocketMQ
MAX_INVISIBLE_S = 43_200  # 12 h
MAX_WAIT_S = 86_400


def check_receive(max_messages: int, invisible_duration: timedelta, wait: timedelta) -> None:
    """Check the arguments of a receive. Raises INVALID_PARAMETER, which names the bounds."""
    check_value("max_messages", max_messages, 1, MAX_MESSAGES)
    check_duration("invisible_duration", invisible_duration, 0.001, MAX_INVISIBLE_S)
    check_duration("wait", wait, 0, MAX_WAIT_S)
