"""Define the options that push and pull consumers share.

They say where a group starts, how its members divide the queues, and how much is pulled ahead.
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
from aerobee_wire.status import invalid_parameter


@dataclass(frozen=True, slots=True)
class Sql:
    """A condition in SQL92 over the properties of a message, which the broker evaluates.

    A missing property is null. A message matches only if the condition is true. The broker must
    have enablePropertyFilter set, which is the default.

    Example:
        consumer.subscribe("orders", Sql("region = 'eu' AND size > 5"))
    """

    expression: str


class ConsumeFromWhere(Enum):
    """The place where a group starts in a queue for which it has not committed an offset.

    In its retry topic, a group always starts at the first message.
    """

    # Behind the newest message. As in RocketMQ, at the first message if retention has not deleted
    # any, so that a group misses no message of a topic as new as itself.
    LAST_OFFSET = client_pb2.CONSUME_FROM_LAST_OFFSET
    FIRST_OFFSET = client_pb2.CONSUME_FROM_FIRST_OFFSET
    # At the first message stored at or after consume_timestamp_ms.
    TIMESTAMP = client_pb2.CONSUME_FROM_TIMESTAMP


class ReadingSettings(TypedDict, total=False):
    """Keyword arguments of push and pull consumers; for defaults see ReadingOptions."""

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
    """Options with RocketMQ's names and defaults, except `pull_batch_size` (there 32 or 10)."""

    # Whether a queue without pulled messages is pulled even above the thresholds of its topic and
    # of all queues. Set where the caller chooses the queue to read next: the others may wait for
    # that one.
    pulls_empty_queues: ClassVar[bool] = False

    # The maximum number of messages of one pull. A pull costs the same for 32 as for 128.
    pull_batch_size: int = 128
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    # Milliseconds since the epoch. None: half an hour before the start.
    consume_timestamp_ms: int | None = None
    # A function of `rebalance`, the RocketMQ name of one, or a function with the same signature.
    # All members of a group must use the same strategy.
    strategy: rebalance.Strategy | str = rebalance.average
    # The location of this member, for strategies that divide by rooms; brokers are named
    # "room@name". It becomes part of the client id.
    machine_room: str = ""
    # Pulling a message queue pauses while more messages or bytes than this wait to be consumed.
    pull_threshold_for_queue: int = 1_000
    pull_threshold_size_for_queue: int = 100 * MIB
    # The same limits for all queues of a topic together, and for all queues together. None: no
    # limit.
    pull_threshold_for_topic: int | None = None
    pull_threshold_size_for_topic: int | None = None
    pull_threshold_for_all: int | None = None
    pull_threshold_size_for_all: int | None = None
    # Pulling a message queue also pauses while its largest pulled queue offset minus the smallest
    # exceeds this. The committed offset cannot pass one slow message, and messages consumed above
    # it are redelivered after a crash.
    consume_concurrently_max_span: int = 2_000
    # Are notified of messages and rebalances.
    interceptors: Sequence[Interceptor] = ()

    def __post_init__(self) -> None:
        """Check the options. Raises INVALID_PARAMETER, which names the bounds."""
        check_bounds(self, _BOUNDS)
        check_machine_room(self.machine_room)
        self.allocation()

    def allocation(self) -> rebalance.Strategy:
        """Return the strategy, also if it was given by name. Raises INVALID_PARAMETER."""
        given = self.strategy
        if isinstance(given, str):
            return rebalance.by_name(given, self.machine_room)
        if not callable(given):
            raise invalid_parameter(
                f"strategy is {given!r}: give one of aerobee_client.rebalance, the name of one, or "
                "a function of the same form",
                about="strategy",
            )
        return given


def check_machine_room(name: str) -> None:
    """Raise INVALID_PARAMETER if the name cannot be part of a client id."""
    if not (name.isascii() and name.isprintable()) or "@" in name:
        raise invalid_parameter(
            f"machine_room is {name!r}: give a name in ASCII without @", about="machine_room"
        )


# The bounds of RocketMQ's client. MAX_INT64 is the limit of the wire contract.
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
