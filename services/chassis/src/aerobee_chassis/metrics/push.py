"""Export metrics at intervals: to an OTLP receiver, or to the log.

The exporter has a thread of its own, so that neither encoding nor a slow receiver delays calls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

import structlog

from aerobee_chassis.clock import Clock
from aerobee_chassis.config import Options, metadata_of
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.metrics.otlp import (
    CUMULATIVE,
    DELTA,
    EXPORT,
    Deltas,
    Snapshot,
    requests,
)
from aerobee_chassis.metrics.process import EXPORTS
from aerobee_chassis.metrics.series import Distribution, Registry
from aerobee_chassis.otlp.receiver import Receiver, resource_of

NS_PER_MS = 1_000_000
STOP_S = 2.0  # how long a stop waits for the last export
# Sends all metrics: snapshots, and the end of their interval in ns since the epoch. Yields parts of
# them when the receiver has got them. Raises OSError if it did not get the others.
Send = Callable[[list[Snapshot], int], Iterable[list[Snapshot]]]


class PushExporter(Component):
    """Export the metrics of `registry` at intervals, and once more when the service stops.

    An export that fails for any reason is logged and counted. The next one has the same totals and
    more, and changes since the last success. If an export has several requests, the requests that
    arrived have succeeded. A request counts twice only if it arrived and its response did not.
    """

    def __init__(self, options: Options, registry: Registry, clock: Clock) -> None:
        self._options = options
        self._registry = registry
        self._clock = clock
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._begin_ns = clock.now_ms() * NS_PER_MS
        self._deltas = Deltas(self._begin_ns) if options.metrics_in_delta else None
        self._failing = False

    async def start(self) -> None:
        """Start the exporter if metricsExporterType is OTLP_GRPC or LOG."""
        if self._options.metrics_exporter_type not in ("OTLP_GRPC", "LOG"):
            return
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STOP_S)

    def _run(self) -> None:
        options = self._options
        send: Send = self._log
        interval_ms = options.metric_logging_exporter_interval_in_mills
        if options.metrics_exporter_type == "OTLP_GRPC":
            send = OtlpSender(options, self._registry.labels)
            interval_ms = options.metric_grpc_exporter_interval_in_mills
        while not self._ended.wait(interval_ms / 1_000):
            self.export(send)
        self.export(send)

    def export(self, send: Send) -> None:
        """Export the present values. Log a failure, and count the export."""
        try:
            self._export(send)
        except Exception as error:  # the thread must outlive each of them
            if not self._failing:  # once, because each interval fails until the receiver is back
                unforeseen = None if isinstance(error, OSError) else error
                structlog.get_logger().warning(
                    "metrics_not_exported", reason=str(error), exc_info=unforeseen
                )
            self._failing = True
            self._registry.series(EXPORTS).add(1, "failed")
        else:
            self._failing = False
            self._registry.series(EXPORTS).add(1, "exported")

    def _export(self, send: Send) -> None:
        collected = self._registry.collect()
        now_ns = self._clock.now_ms() * NS_PER_MS
        if self._deltas is None:
            snapshots = [Snapshot(metric, items, self._begin_ns) for metric, items in collected]
        else:
            snapshots = self._deltas.of(collected, now_ns)
        for arrived in send(snapshots, now_ns):
            if self._deltas is not None:
                self._deltas.exported(arrived)

    def _log(self, snapshots: list[Snapshot], now_ns: int) -> Iterator[list[Snapshot]]:
        """Log one event for each metric that has series."""
        log, process = structlog.get_logger(), self._registry.labels
        for snapshot in snapshots:
            if not snapshot.items:
                continue
            metric = snapshot.metric
            log.info(
                "metric",
                metric=metric.name,
                type=metric.kind.value,
                unit=metric.unit,
                temporality=DELTA if snapshot.delta else CUMULATIVE,
                labels={name: value for name, value in process.items() if value},
                points=[
                    {
                        **dict(zip(metric.labels, labels, strict=True)),
                        "value": {
                            "bounds": value.bounds,
                            "counts": value.counts,
                            "sum": value.sum,
                        }
                        if isinstance(value, Distribution)
                        else value + 0,
                    }
                    for labels, value in snapshot.items
                ],
            )
            yield [snapshot]


class OtlpSender:
    """Sends metrics to the receiver at metricsGrpcExporterTarget."""

    def __init__(self, options: Options, process: Mapping[str, str]) -> None:
        header = options.metrics_grpc_exporter_header.get_secret_value()
        timeout_s = options.metric_grpc_exporter_time_out_in_mills / 1_000
        self._receiver = Receiver(
            options.metrics_grpc_exporter_target, metadata_of(header), timeout_s=timeout_s
        )
        self._process = process
        self._resource = resource_of(process.get("node_type", "service"))

    def __call__(self, snapshots: list[Snapshot], now_ns: int) -> Iterator[list[Snapshot]]:
        """Send all metrics, and yield the parts of each request that arrived.

        Raises ExportFailed.
        """
        sent: list[list[Snapshot]] = []

        def encoded() -> Iterator[bytes]:
            for request, parts in requests(
                snapshots, process=self._process, resource=self._resource, now_ns=now_ns
            ):
                sent.append(parts)
                yield request

        for problem in self._receiver.export(EXPORT, encoded()):
            if problem:
                structlog.get_logger().warning("metrics_rejected", reason=problem)
            yield sent.pop()
