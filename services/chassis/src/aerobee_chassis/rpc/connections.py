"""Enforce the limits of the connections of a port (`port_limits`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import structlog

from aerobee_chassis.clock import SystemClock
from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.call import Failure
from aerobee_wire.status import Code, MqError, grpc_status_of, trailers_of

MAX_PING_STRIKES = 20  # pings that come too early; then the connection ends with a GOAWAY
MIN_PING_INTERVAL_MS = 1_000
LOG_MS = 60_000  # between two lines about refused connections
MAX_LOGGED_HOSTS = 100  # in one line


class AcceptedConnections:
    """Count the connections of a port when they are accepted, and refuse those above the limits."""

    def __init__(self, limits: PortLimits, now_ms: Callable[[], int] | None = None) -> None:
        self._limits = limits
        self._now_ms = now_ms or SystemClock().monotonic_ms
        self._open: Counter[str] = Counter()  # by host
        self._total = 0
        self._refused: Counter[str] = Counter()  # by host, since the last line of the log
        self._logged_ms: int | None = None

    def admit(self, host: str, *, is_limited: bool = True) -> bool:
        """Count a new connection of a host. Return False if it must be closed.

        Unless it `is_limited`, only the total has a limit.
        """
        if self._total >= self._limits.connections:
            self._limits.counts.too_many += 1
            return False
        if is_limited and self._open[host] >= self._limits.connections_per_address:
            self._refuse(host)
            return False
        self._open[host] += 1
        self._limits.counts.open += 1
        self._total += 1
        return True

    def release(self, host: str) -> None:
        """Note the end of a connection that was admitted."""
        self._total -= 1
        self._open[host] -= 1
        if not self._open[host]:
            del self._open[host]
        self._limits.counts.open -= 1

    def _refuse(self, host: str) -> None:
        if not self._open[host]:  # the limit is 0
            del self._open[host]
        self._limits.counts.refused += 1
        if host in self._refused or len(self._refused) < MAX_LOGGED_HOSTS:
            self._refused[host] += 1
        now_ms = self._now_ms()
        if self._logged_ms is None or now_ms - self._logged_ms >= LOG_MS:
            self._logged_ms = now_ms
            refused, self._refused = self._refused, Counter()
            structlog.get_logger().warning(
                "connections_refused",
                addresses=refused,
                maxConnectionsPerAddress=self._limits.connections_per_address,
            )


def late(limits: PortLimits) -> Failure:
    """Count a call whose request did not arrive whole in time, and return its failure."""
    limits.counts.late += 1
    error = MqError(
        Code.REQUEST_TIMEOUT,
        f"the request did not arrive whole within {limits.arrival_s:g} s "
        "(requestArrivalTimeoutMillis): retry it, over a faster connection or in smaller parts",
        about="requestArrivalTimeoutMillis",
    )
    return Failure(grpc_status_of(error.code), error.message, trailers_of(error))
