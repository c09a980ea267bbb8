"""Spans, and their encoding as requests of OTLP's TraceService."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from aerobee_chassis.otlp.encoding import (
    VARINT,
    attribute,
    bytes_field,
    export_request,
    text_field,
    varint,
)

# Version, trace id, span id, flags, and fields that a later version of the format adds.
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


class TraceContext(NamedTuple):
    """The span of a producer."""

    trace_id: bytes
    span_id: bytes


def sampled_context(text: bytes) -> TraceContext | None:
    """Return the context in a `traceparent`.

    Return None if its trace is not sampled, or if the text is invalid.
    """
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, further = found.groups()
    if version == b"ff" or (version == b"00" and further) or not int(flags, 16) & _SAMPLED:
        return None
    context = TraceContext(bytes.fromhex(trace_id.decode()), bytes.fromhex(span_id.decode()))
    return context if any(context.trace_id) and any(context.span_id) else None


EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


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
    # These also differ after a fork. Only one of 2^64 is the invalid id of zeros.
    return TraceContext(parent.trace_id, os.urandom(8))


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
    end = 8, attributes = 9, status = 15 {message = 2, code = 3}. What the spans of a topic have in
    common is encoded once: without that, a span takes ten times as long.
    """
    context, begin_ns = span.context, span.begin_ns
    parts = [
        _IDS.pack(b"\n\x10", context.trace_id, b"\x12\b", context.span_id, b'"\b', span.parent_id),
        _text(5, span.name),
        _TIMES.pack(b"0", span.kind, b"9", begin_ns, b"A", max(begin_ns, span.end_ns)),
    ]
    parts += [
        _text_attribute(name, value) if isinstance(value, str) else attribute(9, name, value)
        for name, value in span.attributes.items()
    ]
    if span.error:
        failed = varint(3 << 3 | VARINT) + b"\x02"  # STATUS_CODE_ERROR
        parts.append(bytes_field(15, text_field(2, span.error) + failed))
    return b"".join(parts)


# Fields of a fixed size, each behind its tag, and an id behind its length.
_IDS = struct.Struct("<2s16s2s8s2s8s")
_TIMES = struct.Struct("<cBcqcq")


@lru_cache(maxsize=4_096)
def _text(number: int, text: str) -> bytes:
    return text_field(number, text)


@lru_cache(maxsize=4_096)
def _text_attribute(name: str, value: str) -> bytes:
    return attribute(9, name, value)
