"""What may be set of producers: names, defaults, bounds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict

from aerobee_client.options.bounds import MAX_INT32, MAX_INT64, MIB, Bounds, check_bounds


class ProducerSettings(TypedDict, total=False):
    """The keyword arguments of a producer; meaning and defaults: ProducerOptions."""

    send_timeout: timedelta
    retries: int
    max_message_size: int
    default_queue_count: int
    latency_fault: bool
    accumulate: bool
    max_pending_messages: int
    max_pending_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """RocketMQ's defaults. Raises INVALID_PARAMETER that names the bounds."""

    # Bounds a whole send, retries included; a day at most.
    send_timeout: timedelta = timedelta(seconds=3)
    # Further attempts after a refusal that another broker may not share.
    retries: int = 2
    # Of a body, in bytes; the broker's maxMessageSize is the same by default.
    max_message_size: int = 4 * MIB
    # Queues on each broker of a topic that is created by the first send to it.
    default_queue_count: int = 4
    # Whether to avoid brokers for a while that failed or answered slowly.
    latency_fault: bool = False
    # Whether single sends that come while a request is in flight leave together in the next one.
    accumulate: bool = True
    # Single sends that were accepted and have no answer yet: beyond, a send waits.
    max_pending_messages: int = 65_536
    max_pending_bytes: int = 32 * MIB

    def __post_init__(self) -> None:
        check_bounds(self, _PRODUCER_BOUNDS)


_PRODUCER_BOUNDS: Bounds = {
    "send_timeout": (0.001, 86_400),  # seconds
    "retries": (0, MAX_INT32),
    "max_message_size": (1, MAX_INT32),
    "default_queue_count": (1, MAX_INT32),
    "max_pending_messages": (1, MAX_INT32),
    "max_pending_bytes": (1, MAX_INT64),
}
