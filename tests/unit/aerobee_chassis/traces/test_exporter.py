"""Spans: their encoding, their batches, which are dropped, and how long a stop takes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import structlog
from structlog.testing import capture_logs

from aerobee_chassis.traces import exporter as exporting
from aerobee_chassis.traces.exporter import BATCH, MAX_WAITING, SpanExporter
from aerobee_chassis.traces.message_traces import MessageTraces
from aerobee_chassis.traces.spans import Span, SpanKind, TraceContext
from support.observing.otlp import CLASSES, spans_of

PARENT = TraceContext(b"t" * 16, b"s" * 8)


def span(name: str = "n") -> Span:
    return Span(TraceContext(b"t" * 16, b"c" * 8), PARENT.span_id, name, SpanKind.SERVER, 1, 2, {})


class Sent:
    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.problems: list[str] = []
        self.down = False

    def __call__(self, request: bytes) -> Iterator[str]:
        if self.down:
            raise ConnectionError("no receiver")
        self.requests.append(request)
        yield from self.problems

    @property
    def spans(self) -> list[Any]:
        return [span for request in self.requests for span in spans_of(request)]


def counts(exporter: SpanExporter) -> dict[Any, Any]:
    [series] = exporter.collect()
    return {labels[0]: value for labels, value in series.items()}


def test_a_span_is_read_by_protobuf_as_it_was_recorded() -> None:
    sent = Sent()
    exporter = SpanExporter(sent, {"service.name": "aerobee-broker"})
    traces = MessageTraces(exporter)
    made = traces.record(
        PARENT, "store", "t", 5, end_ns=9, error="disk", attributes={"queue": "1", "attempt": 300}
    )
    traces.record(PARENT, "send", "t", 5, end_ns=4)
    exporter.export()
    first, second = sent.spans
    assert (first.trace_id, first.span_id, first.parent_span_id) == (*made, PARENT.span_id)
    assert (first.name, first.kind, first.status.code) == ("store t", 2, 2)
    assert first.status.message == "disk"
    assert (first.start_time_unix_nano, first.end_time_unix_nano) == (5, 9)
    values = {each.key: each.value for each in first.attributes}
    assert (values["queue"].string_value, values["attempt"].int_value) == ("1", 300)
    assert values["messaging.destination.name"].string_value == "t"
    assert first.span_id != second.span_id and second.status.code == 0
    assert second.end_time_unix_nano == 5  # a clock that was set back
    [resource] = CLASSES["ExportSpans"].FromString(sent.requests[0]).resource_spans
    assert resource.resource.attributes[0].value.string_value == "aerobee-broker"


def test_spans_beyond_the_limit_are_dropped_and_counted() -> None:
    sent = Sent()
    exporter = SpanExporter(sent, {})
    for _ in range(MAX_WAITING + 3):
        exporter.add(span())
    exporter.export()
    assert len(sent.requests) == MAX_WAITING / BATCH
    assert counts(exporter) == {"exported": MAX_WAITING, "dropped_full": 3, "dropped_failed": 0}
    exporter.add(span())  # there is room again
    exporter.export()
    assert counts(exporter)["exported"] == MAX_WAITING + 1


def test_a_failure_drops_the_batch_and_is_logged_once() -> None:
    sent = Sent()
    exporter = SpanExporter(sent, {})
    with capture_logs() as logs:
        sent.down = True
        for _ in range(2):
            exporter.add(span())
            exporter.export()
        sent.down, sent.problems = False, ["1 rejected: no"]
        exporter.add(span("later"))
        exporter.export()
    assert [each["event"] for each in logs] == ["spans_not_exported", "spans_rejected"]
    assert counts(exporter) == {"exported": 1, "dropped_full": 0, "dropped_failed": 2}
    assert [each.name for each in sent.spans] == ["later"]
    structlog.reset_defaults()


async def begin_and_end(exporter: SpanExporter) -> None:
    await exporter.start()
    exporter.add(span())
    await exporter.stop()


def test_an_unforeseen_failure_drops_the_batch_and_is_logged_with_its_cause() -> None:
    def send(_: bytes) -> Iterator[str]:
        raise ValueError("a header that gRPC rejects")

    exporter = SpanExporter(send, {})
    exporter.add(span())
    with capture_logs() as logs:
        exporter.export()
    assert counts(exporter)["dropped_failed"] == 1
    assert isinstance(logs[0]["exc_info"], ValueError)


def test_a_stop_exports_what_waits() -> None:
    sent = Sent()
    exporter = SpanExporter(sent, {})
    for _ in range(2):  # a service may start again
        asyncio.run(begin_and_end(exporter))
    assert len(sent.spans) == 2


def test_a_stop_does_not_wait_for_a_receiver_that_hangs(monkeypatch: Any) -> None:
    monkeypatch.setattr(exporting, "STOP_S", 0.01)
    hanging = threading.Event()

    def hang(request: bytes) -> list[str]:
        hanging.wait()
        return []

    exporter = SpanExporter(hang, {})
    asyncio.run(begin_and_end(exporter))
    assert counts(exporter)["exported"] == 0
    hanging.set()
