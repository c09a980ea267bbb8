"""Decide which brokers a producer avoids for a while because of their latency. Off by default.

This module uses no clock and does no I/O. Source: RocketMQ's MQFaultStrategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.producer import NOT_AVAILABLE_MS

# A failed request counts as this latency, which isolates the broker for 10,000 ms.
ISOLATION_LATENCY_MS = 10_000

LatencyTable = Sequence[tuple[int, int]]


def not_available_ms(latency_ms: int, table: LatencyTable = NOT_AVAILABLE_MS) -> int:
    """Return the time in milliseconds for which to avoid a broker that took `latency_ms`."""
    return next((pause for bound, pause in table if latency_ms >= bound), 0)


@dataclass(slots=True)
class _Fault:
    available_from_ms: int
    reachable: bool


class LatencyFault:
    """Keeps the last latency of each broker.

    `now_ms` is the time of a monotonic clock in all methods. `table` has the form of
    NOT_AVAILABLE_MS, with the longest latency first.
    """

    def __init__(self, table: LatencyTable = NOT_AVAILABLE_MS) -> None:
        self._table = table
        self._faults: dict[str, _Fault] = {}

    def record(
        self, broker_name: str, latency_ms: int, now_ms: int, *, failed: bool = False
    ) -> None:
        """Record that a request to a broker took `latency_ms` or failed."""
        pause = not_available_ms(ISOLATION_LATENCY_MS if failed else latency_ms, self._table)
        self._faults[broker_name] = _Fault(now_ms + pause, reachable=not failed)

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        fault = self._faults.get(broker_name)
        return fault is None or now_ms >= fault.available_from_ms

    def is_reachable(self, broker_name: str) -> bool:
        fault = self._faults.get(broker_name)
        return fault is None or fault.reachable

    def unreachable(self) -> list[str]:
        """Return the brokers whose last request failed."""
        return [name for name, fault in self._faults.items() if not fault.reachable]

    def reached(self, broker_name: str) -> None:
        """Record that an unreachable broker answers again. It is no longer avoided."""
        self._faults.pop(broker_name, None)

    def choose(
        self, candidates: Sequence[MessageQueue], now_ms: int, avoid: str | None
    ) -> MessageQueue:
        """Return the best queue of `candidates`, a non-empty list in order of preference.

        This is the first queue whose broker is available and not `avoid`. If there is none, it is
        the first queue whose broker is reachable, otherwise the first queue.
        """
        others = (queue for queue in candidates if queue.broker_name != avoid)
        available = (queue for queue in others if self.is_available(queue.broker_name, now_ms))
        reachable = (queue for queue in candidates if self.is_reachable(queue.broker_name))
        return next(chain(available, reachable), candidates[0])
