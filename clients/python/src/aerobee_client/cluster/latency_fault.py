"""Which brokers a producer avoids for a while, by the latency of their answers. Off by default.

Pure: no clock, no I/O. Source: RocketMQ's MQFaultStrategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from aerobee_client.message_queue import MessageQueue

# (latency from which on, for how long the broker is avoided), both in ms; the first that applies.
NOT_AVAILABLE_MS: tuple[tuple[int, int], ...] = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
    (100, 0),
    (50, 0),
)

# A request that failed counts as this latency, hence 10,000 ms of isolation.
ISOLATION_LATENCY_MS = 10_000


def not_available_ms(latency_ms: int) -> int:
    """For how long a broker that took `latency_ms` is avoided."""
    return next((pause for bound, pause in NOT_AVAILABLE_MS if latency_ms >= bound), 0)


@dataclass(slots=True)
class _Fault:
    available_from_ms: int
    reachable: bool


class LatencyFault:
    """The last latency of each broker, by name. `now_ms` is of a monotonic clock."""

    def __init__(self) -> None:
        self._faults: dict[str, _Fault] = {}

    def record(
        self, broker_name: str, latency_ms: int, now_ms: int, *, failed: bool = False
    ) -> None:
        """A request took `latency_ms`, or failed."""
        pause = not_available_ms(ISOLATION_LATENCY_MS if failed else latency_ms)
        self._faults[broker_name] = _Fault(now_ms + pause, reachable=not failed)

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        fault = self._faults.get(broker_name)
        return fault is None or now_ms >= fault.available_from_ms

    def is_reachable(self, broker_name: str) -> bool:
        fault = self._faults.get(broker_name)
        return fault is None or fault.reachable

    def choose(
        self, candidates: Sequence[MessageQueue], now_ms: int, avoid: str | None
    ) -> MessageQueue:
        """The first of `candidates` (in order of preference, not empty) whose broker is available
        and not `avoid`; else one that is reachable; else the first."""
        others = (queue for queue in candidates if queue.broker_name != avoid)
        available = (queue for queue in others if self.is_available(queue.broker_name, now_ms))
        reachable = (queue for queue in candidates if self.is_reachable(queue.broker_name))
        return next(chain(available, reachable), candidates[0])
