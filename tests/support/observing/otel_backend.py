"""What OpenTelemetry exports: spans and metrics, kept in memory."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import SpanContext, Tracer

from aerobee_client import otel
from aerobee_client.observing import otel_attributes as names


class Backend:
    """`sampler`: None: everything is sampled."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._spans = InMemorySpanExporter()
        self._metrics = InMemoryMetricReader()
        self.tracer_provider = TracerProvider(sampler=sampler)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meter_provider = MeterProvider(metric_readers=[self._metrics])

    def instrument(self, client: Any) -> Any:
        otel.instrument(
            client, tracer_provider=self.tracer_provider, meter_provider=self.meter_provider
        )
        return client

    def tracer(self) -> Tracer:
        """Of the application."""
        return self.tracer_provider.get_tracer("the application")

    def shutdown(self) -> None:
        self.tracer_provider.shutdown()
        self.meter_provider.shutdown()

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """Those that have ended, in the order of their ends; all without a name."""
        return [span for span in self._spans.get_finished_spans() if name in ("", span.name)]

    def points(self, metric: str) -> list[Any]:
        data = self._metrics.get_metrics_data()
        assert data is not None
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        ]

    def counts(self, metric: str, operation: str) -> dict[str, int]:
        """By error type ("": none): messages of a counter, measurements of a histogram."""
        return {
            point.attributes.get(names.ERROR_TYPE, ""): getattr(point, "value", None) or point.count
            for point in self.points(metric)
            if point.attributes[names.OPERATION_NAME] == operation
        }


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def linked(span: ReadableSpan) -> list[int]:
    """The ids of the spans that it links."""
    return [link.context.span_id for link in span.links]


def duration_s(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return (span.end_time - span.start_time) / 1e9
