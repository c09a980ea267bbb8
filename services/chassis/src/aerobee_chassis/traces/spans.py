"""Spans, and their encoding as requests of OTLP's TraceService."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from random import SystemRandom
from typing import NamedTuple

from aerobee_chassis.otlp.encoding import (
    VARINT,
    attribute,
    bytes_field,
    export_request,
    fixed_field,
    text_field,
    varint,
)
from aerobee_chassis.traces.context import TraceContext

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_random = SystemRandom()  # its numbers also differ after a fork


class SpanKind(IntEnum):
    """The numbers of OTLP."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class Span(NamedTuple):
    """A finished span. Times are in ns since the epoch. `error` is empty after a success."""

    context: TraceContext
    parent_id: bytes
    name: str
    kind: SpanKind
    begin_ns: int
    end_ns: int
    attributes: Mapping[str, str | int]
    error: str = ""


def child_of(parent: TraceContext) -> TraceContext:
    """Return the context of a new span in the trace of `parent`."""
    return TraceContext(parent.trace_id, _random.randrange(1, 1 << 64).to_bytes(8))


def request(spans: Iterable[Span], resource: Mapping[str, str]) -> bytes:
    """Encode an ExportTraceServiceRequest.

    Args:
        spans: The spans.
        resource: The attributes of the process that exports.
    """
    return export_request(resource, map(_encoded, spans))


def _encoded(span: Span) -> bytes:
    """Encode a Span.

    Its fields are trace_id = 1, span_id = 2, parent_span_id = 4, name = 5, kind = 6, start = 7,
    end = 8, attributes = 9, status = 15 {message = 2, code = 3}.
    """
    found = (
        bytes_field(1, span.context.trace_id)
        + bytes_field(2, span.context.span_id)
        + bytes_field(4, span.parent_id)
        + text_field(5, span.name)
        + varint(6 << 3 | VARINT)
        + varint(span.kind)
        + fixed_field(7, span.begin_ns)
        + fixed_field(8, max(span.begin_ns, span.end_ns))
    )
    for name, value in span.attributes.items():
        found += attribute(9, name, value)
    if span.error:
        failed = varint(3 << 3 | VARINT) + b"\x02"  # STATUS_CODE_ERROR
        found += bytes_field(15, text_field(2, span.error) + failed)
    return found
