"""Trace a message from the request that sends it to the listener that consumes it.

Needs the extra: pip install 'aerobee-client[otel]'; and, to see spans, opentelemetry-sdk.
"""

from __future__ import annotations

import threading

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from aerobee_client import Message, Producer, PushConsumer, ReceivedMessage, otel

consumed = threading.Event()


def on_message(message: ReceivedMessage) -> None:
    print("consumed in trace", f"{trace.get_current_span().get_span_context().trace_id:x}")
    consumed.set()


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)

producer = Producer()
otel.instrument(producer)
with producer, trace.get_tracer("example").start_as_current_span("book a seat") as span:
    producer.send(Message("traced", b"seat 17A"))
    print("sent in trace", f"{span.get_span_context().trace_id:x}")

consumer = PushConsumer("tracing-example", on_message)
otel.instrument(consumer)
consumer.subscribe("traced")
with consumer:
    assert consumed.wait(timeout=60)
provider.shutdown()
