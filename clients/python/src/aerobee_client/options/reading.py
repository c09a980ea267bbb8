"""What push and pull consumers have in common: where a group starts, how its members divide the
queues, how much is pulled ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypedDict

from aerobee.broker.v1 import client_pb2

from aerobee_client import rebalance
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.options.bounds import MAX_INT64, MIB, Bounds, check_bounds
from aerobee_wire.status import Code, MqError


class ConsumeFromWhere(Enum):
    """Where a group starts in a queue in which it has committed no offset. In its retry topic it
    always starts at the first message."""

    # Behind the newest message; as in RocketMQ at the first one as long as retention has deleted
    # none, so that a group misses nothing in a topic as new as itself.
    LAST_OFFSET = client_pb2.CONSUME_FROM_LAST_OFFSET
    FIRST_OFFSET = client_pb2.CONSUME_FROM_FIRST_OFFSET
    # At the first message that was stored at or after consume_timestamp_ms.
    TIMESTAMP = client_pb2.CONSUME_FROM_TIMESTAMP


class ReadingSettings(TypedDict, total=False):
    """Keyword arguments of push and pull consumers; meaning and defaults: ReadingOptions."""

    pull_batch_size: int
    consume_from_where: ConsumeFromWhere
    consume_timestamp_ms: int
    strategy: rebalance.Strategy | str
    machine_room: str
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue: int
    pull_threshold_for_topic: int | None
    pull_threshold_size_for_topic: int | None
    pull_threshold_for_all: int | None
    pull_threshold_size_for_all: int | None
    consume_concurrently_max_span: int
    interceptors: Sequence[Interceptor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """RocketMQ's names and defaults, but for `pull_batch_size` (32 there, or 10)."""

    # Whether a queue that holds nothing is pulled also over the thresholds of its topic and of all:
    # where the caller decides which queue he reads on, the others may wait for that one.
    pulls_empty_queues: ClassVar[bool] = False

    # Messages of one pull, at most. A pull costs the same for 32 as for 128.
    pull_batch_size: int = 128
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    # None: half an hour before the start.
    consume_timestamp_ms: int | None = None
    # One of `rebalance`, RocketMQ's name of one, or a function of the same form. All members of a
    # group use the same one.
    strategy: rebalance.Strategy | str = rebalance.average
    # Where this member is, for strategies that divide by rooms; brokers are named "room@name". It
    # becomes part of the client id.
    machine_room: str = ""
    # Pulling a message queue pauses while more messages or bytes than this wait to be consumed.
    pull_threshold_for_queue: int = 1_000
    pull_threshold_size_for_queue: int = 100 * MIB
    # The same of all queues of a topic together, and of all queues; None: as many as these have.
    pull_threshold_for_topic: int | None = None
    pull_threshold_size_for_topic: int | None = None
    pull_threshold_for_all: int | None = None
    pull_threshold_size_for_all: int | None = None
    # Of a queue, also while their largest queue offset minus the smallest is more than this: the
    # committed offset cannot pass one slow message, and what is consumed above it is delivered
    # again after a crash.
    consume_concurrently_max_span: int = 2_000
    # Are told of the messages and of rebalances.
    interceptors: Sequence[Interceptor] = ()

    def __post_init__(self) -> None:
        """Raises INVALID_PARAMETER that names the bounds."""
        check_bounds(self, _BOUNDS)
        check_machine_room(self.machine_room)
        self.allocation()

    def allocation(self) -> rebalance.Strategy:
        """The strategy, also when it was given by its name. Raises INVALID_PARAMETER."""
        given = self.strategy
        if isinstance(given, str):
            return rebalance.by_name(given, self.machine_room)
        if not callable(given):
            raise MqError(
                Code.INVALID_PARAMETER,
                f"strategy is {given!r}: give one of aerobee_client.rebalance, the name of one, or "
                "a function of the same form",
                about="strategy",
            )
        return given


def check_machine_room(name: str) -> None:
    """Raises INVALID_PARAMETER for what cannot be a part of a client id."""
    if not (name.isascii() and name.isprintable()) or "@" in name:
        raise MqError(
            Code.INVALID_PARAMETER,
            f"machine_room is {name!r}: give a name in ASCII without @",
            about="machine_room",
        )


# As in RocketMQ's client; the last is what the contract has room for.
_BOUNDS: Bounds = {
    "pull_batch_size": (1, 1_024),
    "pull_threshold_for_queue": (1, 65_535),
    "pull_threshold_size_for_queue": (1, 1_024 * MIB),
    "pull_threshold_for_topic": (1, 6_553_500),
    "pull_threshold_size_for_topic": (1, 102_400 * MIB),
    "pull_threshold_for_all": (1, 6_553_500),
    "pull_threshold_size_for_all": (1, 102_400 * MIB),
    "consume_concurrently_max_span": (1, 65_535),
    "consume_timestamp_ms": (0, MAX_INT64),
}
