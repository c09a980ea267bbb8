"""Export metrics at intervals: to an OTLP receiver, or to the log.

The exporter has a thread of its own, so that neither encoding nor a slow receiver delays calls.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import cast

import grpc
import structlog

from aerobee_chassis.clock import Clock
from aerobee_chassis.config import Options, pairs_of
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.metrics.otlp import (
    CUMULATIVE,
    DELTA,
    EXPORT,
    Deltas,
    Snapshot,
    rejection,
    requests,
)
from aerobee_chassis.metrics.series import Distribution, Registry

NS_PER_MS = 1_000_000
STOP_S = 2.0  # how long a stop waits for the last export
# Sends all metrics of one interval: snapshots, begin and end in ns since the epoch. Raises OSError
# if the receiver did not get them.
Send = Callable[[list[Snapshot], int, int], None]


class ExportFailed(OSError):
    """The receiver did not accept the metrics."""


class PushExporter(Component):
    """Export the metrics of `registry` at intervals, and once more when the service stops.

    An export that fails is logged. The next one has the same totals and more, and changes since the
    last success.
    """

    def __init__(self, options: Options, registry: Registry, clock: Clock) -> None:
        self._options = options
        self._registry = registry
        self._clock = clock
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._deltas = Deltas() if options.metrics_in_delta else None
        self._begin_ns = clock.now_ms() * NS_PER_MS
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
        """Export the present values. Log a failure."""
        collected = self._registry.collect()
        if self._deltas is None:
            snapshots = [Snapshot(metric, items) for metric, items in collected]
        else:
            snapshots = self._deltas.of(collected)
        now_ns = self._clock.now_ms() * NS_PER_MS
        try:
            send(snapshots, self._begin_ns, now_ns)
        except OSError as error:
            if not self._failing:  # once, because each interval fails until the receiver is back
                structlog.get_logger().warning("metrics_not_exported", reason=str(error))
            self._failing = True
            return
        self._failing = False
        if self._deltas is not None:
            self._deltas.exported()
            self._begin_ns = now_ns

    def _log(self, snapshots: list[Snapshot], begin_ns: int, now_ns: int) -> None:
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


class OtlpSender:
    """Sends metrics to the receiver at metricsGrpcExporterTarget.

    Each export opens a connection of its own: exports are rare, and in this process gRPC does not
    notice by itself that an idle connection is gone.
    """

    def __init__(self, options: Options, process: Mapping[str, str]) -> None:
        self._target, self._secure = otlp_target(options.metrics_grpc_exporter_target)
        header = options.metrics_grpc_exporter_header.get_secret_value()
        self._metadata = tuple((name.lower(), value) for name, value in pairs_of(header).items())
        self._timeout_s = options.metric_grpc_exporter_time_out_in_mills / 1_000
        self._process = process
        # Workers of one proxy have the same labels: the resource distinguishes them.
        self._resource = {
            "service.name": f"aerobee-{process.get('node_type', 'service')}",
            "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        }

    def __call__(self, snapshots: list[Snapshot], begin_ns: int, now_ns: int) -> None:
        """Send all metrics. Raises ExportFailed."""
        with self._channel() as channel:
            # Without serializers, gRPC passes bytes.
            export = channel.unary_unary(EXPORT, None, None)
            for request in requests(
                snapshots,
                process=self._process,
                resource=self._resource,
                begin_ns=begin_ns,
                now_ns=now_ns,
            ):
                try:
                    answer = export(request, timeout=self._timeout_s, metadata=self._metadata)
                except grpc.RpcError as error:
                    # The stubs do not say that the error of a unary call is also its grpc.Call.
                    call = cast(grpc.Call, error)
                    problem = f"{self._target}: {call.code().name}: {call.details()}"
                    raise ExportFailed(problem) from None
                if problem := rejection(answer):
                    structlog.get_logger().warning("metrics_rejected", reason=problem)

    def _channel(self) -> grpc.Channel:
        if self._secure:
            return grpc.secure_channel(self._target, grpc.ssl_channel_credentials())
        return grpc.insecure_channel(self._target)


def otlp_target(target: str) -> tuple[str, bool]:
    """Return the "host:port" of an OTLP receiver, and whether it is called with TLS.

    As in RocketMQ, a target without "http://" is called with TLS.
    """
    scheme, found, rest = target.strip().partition("://")
    address = (rest if found else scheme).rstrip("/")
    return address, scheme.lower() != "http" or not found
