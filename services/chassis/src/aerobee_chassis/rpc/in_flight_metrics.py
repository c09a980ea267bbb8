"""Metrics of the bytes that a server holds for calls, read at each scrape.

A scrape runs on another thread. It reads only numbers, which is safe. prometheus_client is imported
at the first scrape, because metrics are off by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from aerobee_chassis.rpc.in_flight import InFlight

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class InFlightCollector:
    """A collector for `CollectorRegistry.register`, or for use inside another collector.

    `prefix`: the beginning of each metric's name.
    """

    def __init__(
        self, prefix: str, in_flight: InFlight, labels: Mapping[str, str] | None = None
    ) -> None:
        self._prefix = prefix
        self._in_flight = in_flight
        self._labels = labels or {}

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        bounds, prefix = self._in_flight, self._prefix
        names, values = list(self._labels), list(self._labels.values())
        held = GaugeMetricFamily(
            f"{prefix}in_flight_bytes",
            "Bytes of requests that are read, and of answers that no caller has taken.",
            labels=[*names, "kind"],
        )
        held.add_metric([*values, "requests"], bounds.requests)
        held.add_metric([*values, "answers"], bounds.answers)
        yield held
        peak = GaugeMetricFamily(
            f"{prefix}in_flight_bytes_peak",
            "The most that requests and answers were together since the start.",
            labels=names,
        )
        peak.add_metric(values, bounds.peak)
        yield peak
        for name, text, count in (
            ("refused", "because too many bytes were in flight", bounds.refused),
            ("cut", "whose caller did not read the answer", bounds.cut),
        ):
            calls = CounterMetricFamily(f"{prefix}calls_{name}", f"Calls {text}.", labels=names)
            calls.add_metric(values, count)
            yield calls
