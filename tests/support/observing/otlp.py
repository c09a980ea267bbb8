"""OTLP's messages for metrics and spans, made from their field numbers, and a receiver of them.

It states the numbers a second time, beside those of `aerobee_chassis`, for protobuf to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_F: Any = descriptor_pb2.FieldDescriptorProto
# Message → field → (number, type or message, repeated).
MESSAGES: dict[str, dict[str, tuple[int, Any, bool]]] = {
    "Export": {"resource_metrics": (1, "ResourceMetrics", True)},
    "ResourceMetrics": {
        "resource": (1, "Resource", False),
        "scope_metrics": (2, "ScopeMetrics", True),
    },
    "Resource": {"attributes": (1, "KeyValue", True)},
    "ScopeMetrics": {"scope": (1, "Scope", False), "metrics": (2, "Metric", True)},
    "Scope": {"name": (1, _F.TYPE_STRING, False)},
    "KeyValue": {"key": (1, _F.TYPE_STRING, False), "value": (2, "AnyValue", False)},
    "AnyValue": {
        "string_value": (1, _F.TYPE_STRING, False),
        "int_value": (3, _F.TYPE_INT64, False),
    },
    "Metric": {
        "name": (1, _F.TYPE_STRING, False),
        "description": (2, _F.TYPE_STRING, False),
        "unit": (3, _F.TYPE_STRING, False),
        "gauge": (5, "Gauge", False),
        "sum": (7, "Sum", False),
        "histogram": (9, "Histogram", False),
    },
    "Gauge": {"data_points": (1, "Number", True)},
    "Sum": {
        "data_points": (1, "Number", True),
        "aggregation_temporality": (2, _F.TYPE_INT32, False),
        "is_monotonic": (3, _F.TYPE_BOOL, False),
    },
    "Histogram": {
        "data_points": (1, "Buckets", True),
        "aggregation_temporality": (2, _F.TYPE_INT32, False),
    },
    "Number": {
        "start_time_unix_nano": (2, _F.TYPE_FIXED64, False),
        "time_unix_nano": (3, _F.TYPE_FIXED64, False),
        "as_double": (4, _F.TYPE_DOUBLE, False),
        "as_int": (6, _F.TYPE_SFIXED64, False),
        "attributes": (7, "KeyValue", True),
    },
    "Buckets": {
        "start_time_unix_nano": (2, _F.TYPE_FIXED64, False),
        "time_unix_nano": (3, _F.TYPE_FIXED64, False),
        "count": (4, _F.TYPE_FIXED64, False),
        "sum": (5, _F.TYPE_DOUBLE, False),
        "bucket_counts": (6, _F.TYPE_FIXED64, True),
        "explicit_bounds": (7, _F.TYPE_DOUBLE, True),
        "attributes": (9, "KeyValue", True),
    },
    "ExportSpans": {"resource_spans": (1, "ResourceSpans", True)},
    "ResourceSpans": {
        "resource": (1, "Resource", False),
        "scope_spans": (2, "ScopeSpans", True),
    },
    "ScopeSpans": {"scope": (1, "Scope", False), "spans": (2, "Span", True)},
    "Span": {
        "trace_id": (1, _F.TYPE_BYTES, False),
        "span_id": (2, _F.TYPE_BYTES, False),
        "parent_span_id": (4, _F.TYPE_BYTES, False),
        "name": (5, _F.TYPE_STRING, False),
        "kind": (6, _F.TYPE_INT32, False),
        "start_time_unix_nano": (7, _F.TYPE_FIXED64, False),
        "end_time_unix_nano": (8, _F.TYPE_FIXED64, False),
        "attributes": (9, "KeyValue", True),
        "status": (15, "Status", False),
    },
    "Status": {"message": (2, _F.TYPE_STRING, False), "code": (3, _F.TYPE_INT32, False)},
    "Partial": {
        "rejected_data_points": (1, _F.TYPE_INT64, False),
        "error_message": (2, _F.TYPE_STRING, False),
    },
    "Answer": {"partial_success": (1, "Partial", False)},
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="otlp_in_tests.proto", package="t")
    file.syntax = "proto3"
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = _F.TYPE_MESSAGE, f".t.{kind}"
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))
        for name in MESSAGES
    }


CLASSES = _classes()


def decode(request: bytes) -> Any:
    return CLASSES["Export"].FromString(request)


def metrics_of(request: bytes) -> dict[str, Any]:
    """The metrics of a request by their names."""
    return {
        metric.name: metric
        for resource in decode(request).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def spans_of(request: bytes) -> list[Any]:
    """The spans of a request, in order."""
    return [
        span
        for resource in CLASSES["ExportSpans"].FromString(request).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def attributes(message: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in message.attributes}


class Receiver:
    """A MetricsService and a TraceService. `requests` and `spans` have what arrived."""

    def __init__(self) -> None:
        self.requests: list[tuple[bytes, dict[str, Any]]] = []  # with the metadata of each call
        self.spans: list[Any] = []
        self.answer = b""

    def export(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        metadata = dict(context.invocation_metadata())
        self.requests.append((request, metadata))
        return self.answer

    def export_spans(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.spans += spans_of(request)
        return self.answer


@contextmanager
def otlp_receiver(
    port: int = 0, credentials: grpc.ServerCredentials | None = None
) -> Iterator[tuple[Receiver, int]]:
    receiver = Receiver()
    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(receiver.export)
    service = "opentelemetry.proto.collector.metrics.v1.MetricsService"
    spans = grpc.unary_unary_rpc_method_handler(receiver.export_spans)
    traces = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(service, {"Export": handler}),
            grpc.method_handlers_generic_handler(traces, {"Export": spans}),
        )
    )
    address = f"127.0.0.1:{port}"
    if credentials is None:
        bound = server.add_insecure_port(address)
    else:
        bound = server.add_secure_port(address, credentials)
    server.start()
    try:
        yield receiver, bound
    finally:
        server.stop(None).wait()
