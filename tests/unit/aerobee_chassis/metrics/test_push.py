"""Exports of metrics at intervals: what fails, and what is counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from structlog.testing import capture_logs

from aerobee_chassis.config import Options
from aerobee_chassis.metrics.otlp import POINTS, Snapshot, requests
from aerobee_chassis.metrics.process import EXPORTS
from aerobee_chassis.metrics.push import NS_PER_MS, PushExporter
from aerobee_chassis.metrics.series import Kind, Labels, Metric, Registry, Series
from support.clock.manual_clock import ManualClock


def exporter_of(registry: Registry, clock: ManualClock, **options: str) -> PushExporter:
    return PushExporter(Options.from_values(options), registry, clock)


def test_an_unexpected_error_does_not_end_the_exports() -> None:
    """An error of the encoding or of a source is logged once, and each failure is counted."""
    registry = Registry()
    sent: list[Any] = []
    exporter = exporter_of(registry, ManualClock())
    broken = [True]

    def source() -> Iterable[Series]:
        if broken:
            raise KeyError("odd data")
        return ()

    registry.register(source)

    def send(snapshots: Any, _: int) -> Iterator[Any]:
        if not sent:
            sent.append("refused")
            raise ValueError("metadata was invalid")
        sent.append(snapshots)
        yield snapshots

    with capture_logs() as logs:
        exporter.export(send)
        exporter.export(send)
        broken.clear()
        exporter.export(send)
        exporter.export(send)
    assert [each["event"] for each in logs] == ["metrics_not_exported"]
    assert isinstance(logs[0]["exc_info"], KeyError)
    assert registry.series(EXPORTS).values == {("failed",): 3, ("exported",): 1}
    assert len(sent) == 2


def test_a_change_of_an_export_that_arrived_in_part_counts_once() -> None:
    registry = Registry()
    sent = registry.series(Metric("sent_total", Kind.COUNTER, "Sent.", ("topic",)))
    for number in range(POINTS + 1):
        sent.add(1, str(number))
    clock = ManualClock()
    exporter = exporter_of(registry, clock, metricsInDelta="true")
    received: Counter[Labels] = Counter()
    begins: dict[Labels, list[int]] = defaultdict(list)
    refused = [2]  # the number of the request

    def send(snapshots: list[Snapshot], now_ns: int) -> Iterator[list[Snapshot]]:
        every = requests(snapshots, process={}, resource={}, now_ns=now_ns)
        for number, (_, parts) in enumerate(every, 1):
            if number in refused:
                raise OSError("deadline exceeded")
            for part in parts:
                if part.metric is sent.metric:
                    received.update({labels: int(str(value)) for labels, value in part.items})
                    for labels, _ in part.items:
                        begins[labels].append(part.begin_ns)
            yield parts

    start_ns = clock.now_ms() * NS_PER_MS
    for total in (POINTS, POINTS + 4, POINTS + 4):
        clock.advance(1_000)
        exporter.export(send)
        assert received.total() == total
        if refused:
            refused.clear()
            sent.add(3, "0")
    assert received == sent.values
    second_ns = 1_000 * NS_PER_MS
    assert begins["0",] == [start_ns, start_ns + second_ns, start_ns + 2 * second_ns]
    assert begins[str(POINTS),] == [start_ns, start_ns + 2 * second_ns]
