"""Handle ChangeLogLevel and GetProxyRuntimeStats, which concern this process only."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

from aerobee_foreign.apache.rocketmq.v2 import admin_pb2 as pb

from aerobee_chassis.clock import Clock
from aerobee_proxy.counts import ProxyCounts
from aerobee_proxy.v2.admin.calls import Operator
from aerobee_proxy.v2.sessions import Sessions
from aerobee_proxy.v2.status import status
from aerobee_wire.version import VERSION

LEVELS = {0: "debug", 1: "debug", 2: "info", 3: "warning", 4: "error"}
RATE_SECONDS = 10


class TrafficRates:
    """Messages per second of this proxy, over the last 10 s. Call `sample` once a second."""

    def __init__(self, counts: ProxyCounts, clock: Clock) -> None:
        self._counts = counts
        self._clock = clock
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=RATE_SECONDS + 1)

    def sample(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._samples.append((now_ms, self._counts.sent, self._counts.received))

    def now(self) -> tuple[float, float]:
        """Return the messages in and out per second; NaN before there are two samples."""
        if len(self._samples) < 2:
            return float("nan"), float("nan")
        first, last = self._samples[0], self._samples[-1]
        seconds = max(1, last[0] - first[0]) / 1_000
        return (last[1] - first[1]) / seconds, (last[2] - first[2]) / seconds


class ProcessRpcs:
    def __init__(
        self,
        sessions: Sessions,
        rates: TrafficRates,
        *,
        name: Callable[[], str],
        set_level: Callable[[str], Awaitable[None]],
    ) -> None:
        self._sessions = sessions
        self._rates = rates
        self._name = name
        self._set_level = set_level

    async def change_log_level(
        self, request: pb.ChangeLogLevelRequest, operator: Operator
    ) -> pb.ChangeLogLevelResponse:
        """Change the log level of this process. TRACE is debug. Its answer has no status.

        The change is one of the option logLevel at run time, and lasts as long as such a change.
        """
        level = LEVELS.get(request.level, "info")
        await self._set_level(level)
        operator.did("log_level_changed", log_level=level)
        return pb.ChangeLogLevelResponse(remark=f"the log level is {level}")

    async def get_proxy_runtime_stats(
        self, request: pb.GetProxyRuntimeStatsRequest, operator: Operator
    ) -> pb.GetProxyRuntimeStatsResponse:
        """Return the rates of the last 10 s, and the clients and their telemetry streams now.

        A rate is NaN in the first two seconds of the process.
        """
        messages_in, messages_out = self._rates.now()
        return pb.GetProxyRuntimeStatsResponse(
            status=status(),
            proxy_name=self._name(),
            version=VERSION,
            in_tps=messages_in,
            out_tps=messages_out,
            connections=sum(len(each.streams) for each in self._sessions),
            producers=sum(bool(each.published()) for each in self._sessions),
            consumers=sum(bool(each.consumer_group) for each in self._sessions),
        )
