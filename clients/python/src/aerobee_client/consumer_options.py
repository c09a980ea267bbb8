"""How a push consumer works: what may be set, the defaults, and their bounds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from typing import TypedDict

from aerobee.broker.v1 import client_pb2

from aerobee_client import rebalance
from aerobee_wire.status import Code, MqError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Pulling a queue pauses while more than this is waiting."""

    messages: int = 1_000
    size_bytes: int = 100 * 1024 * 1024
    # Largest minus smallest waiting queue offset: one slow message must not let the others run
    # ahead without end, for the committed offset cannot pass it.
    span: int = 2_000


class ConsumeFromWhere(Enum):
    """Where a group begins in a queue in which it has no offset yet. In its retry topic it always
    begins at the first message."""

    # Behind the newest message; but at the first one while the queue has lost none to retention,
    # as in RocketMQ: so nothing is missed in a topic that is as young as the group.
    LAST_OFFSET = client_pb2.CONSUME_FROM_LAST_OFFSET
    FIRST_OFFSET = client_pb2.CONSUME_FROM_FIRST_OFFSET
    # At the first message that was stored at or after consume_timestamp_ms.
    TIMESTAMP = client_pb2.CONSUME_FROM_TIMESTAMP


class ConsumerSettings(TypedDict, total=False):
    """The keyword arguments of a push consumer; meaning and defaults: ConsumerOptions."""

    concurrency: int
    consume_message_batch_max_size: int
    pull_batch_size: int
    consume_from_where: ConsumeFromWhere
    consume_timestamp_ms: int
    max_reconsume_times: int
    consume_timeout: timedelta
    strategy: rebalance.Strategy
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue: int
    consume_concurrently_max_span: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """RocketMQ's names and defaults, but for `pull_batch_size` (32 there)."""

    # Listeners at a time.
    concurrency: int = 20
    # Most messages that a batch listener gets at a time.
    consume_message_batch_max_size: int = 1
    # Most messages of one pull. A pull costs the same for 32 as for 128.
    pull_batch_size: int = 128
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    # None: half an hour before the start.
    consume_timestamp_ms: int | None = None
    # Instead of the group's own. Delivery attempts = this + 1.
    max_reconsume_times: int | None = None
    # A message whose listener takes longer is given back.
    consume_timeout: timedelta = timedelta(minutes=15)
    strategy: rebalance.Strategy = rebalance.average
    # Pulling a queue pauses while more than this waits for its listener: messages, bytes, and the
    # distance between the first and the last offset.
    pull_threshold_for_queue: int = 1_000
    pull_threshold_size_for_queue: int = 100 * MIB
    consume_concurrently_max_span: int = 2_000

    def __post_init__(self) -> None:
        """Raises MqError INVALID_PARAMETER that names the bounds."""
        for names, lowest in ((_BOUNDS, 1), (_FROM_NOTHING, 0)):
            for name, limit in names.items():
                value = getattr(self, name)
                if value is not None and not lowest <= value <= limit:
                    raise MqError(
                        Code.INVALID_PARAMETER, f"{name} is {value}: give {lowest} to {limit}"
                    )
        if self.consume_timeout <= timedelta(0):
            raise MqError(
                Code.INVALID_PARAMETER,
                f"consume_timeout is {self.consume_timeout}: give more than nothing",
            )

    def flow_limits(self) -> FlowLimits:
        return FlowLimits(
            self.pull_threshold_for_queue,
            self.pull_threshold_size_for_queue,
            self.consume_concurrently_max_span,
        )


# From 1 to this, as in RocketMQ's client.
_BOUNDS = {
    "concurrency": 1_000,
    "consume_message_batch_max_size": 1_024,
    "pull_batch_size": 1_024,
    "pull_threshold_for_queue": 65_535,
    "pull_threshold_size_for_queue": 1_024 * MIB,
    "consume_concurrently_max_span": 65_535,
}
# From 0 to this: what the contract has room for.
_FROM_NOTHING = {"max_reconsume_times": (1 << 31) - 1, "consume_timestamp_ms": (1 << 63) - 1}
assert _BOUNDS.keys() | _FROM_NOTHING.keys() <= {field.name for field in fields(ConsumerOptions)}
