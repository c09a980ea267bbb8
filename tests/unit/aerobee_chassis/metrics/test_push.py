"""Exports of metrics at intervals: what fails, and what is counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from structlog.testing import capture_logs

from aerobee_chassis.clock import SystemClock
from aerobee_chassis.config import Options
from aerobee_chassis.metrics.process import EXPORTS
from aerobee_chassis.metrics.push import PushExporter
from aerobee_chassis.metrics.series import Registry, Series


def exporter_of(registry: Registry, **options: str) -> PushExporter:
    return PushExporter(Options.from_values(options), registry, SystemClock())


def test_an_unexpected_error_does_not_end_the_exports() -> None:
    """An error of the encoding or of a source is logged once, and each failure is counted."""
    registry = Registry()
    sent: list[Any] = []
    exporter = exporter_of(registry)
    broken = [True]

    def source() -> Iterable[Series]:
        if broken:
            raise KeyError("odd data")
        return ()

    registry.register(source)

    def send(snapshots: Any, *_: Any) -> None:
        if not sent:
            sent.append("refused")
            raise ValueError("metadata was invalid")
        sent.append(snapshots)

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
