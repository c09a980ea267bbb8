"""Read and write the trace context of a message, in the user properties of its producer.

The properties are `traceparent` and `tracestate` as defined by the W3C, and those of other
propagators that the program uses. This module does not create spans.
"""

from __future__ import annotations

import re

from aerobee_client.message import Message, ReceivedMessage

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
except ImportError as error:
    raise ImportError(
        f"OpenTelemetry is not installed ({error}): pip install 'aerobee-client[otel]'"
    ) from None

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
BAGGAGE = "baggage"

# The key of the span in a context: `trace.get_current_span` takes 0.5 µs to find it.
SPAN_KEY = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, Context())))

_FLAGS = tuple(f"{flags:02x}" for flags in range(256))
# Version, trace id, span id, flags, and fields that a later version of the format adds.
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_LAST_OF_FLAGS = 54  # in a traceparent
_SAMPLED = frozenset("13579bdf")  # the last digit of flags with the bit "sampled"
_MAX_STATE_CHARACTERS = 512


def traceparent(trace_id: int, span_id: int, flags: int) -> str:
    """Return the value of `traceparent`, at a fraction of the cost of a propagator."""
    trace_text, span_text = trace_id.to_bytes(16).hex(), span_id.to_bytes(8).hex()
    return f"00-{trace_text}-{span_text}-{_FLAGS[flags]}"


def carrying(message: Message, current: Context, made: SpanContext, *, plain: bool) -> Message:
    """Return a copy of `message` that carries the span context `made` and the context `current`.

    If there is no context to carry, return the message itself. `plain` is true if `current`
    contains only a span.
    """
    if plain and not made.trace_state:
        if not made.is_valid:
            return message
        text = traceparent(made.trace_id, made.span_id, made.trace_flags)
        return message.with_properties({TRACEPARENT: text})
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(NonRecordingSpan(made), current))
    if made.is_valid:
        carrier[TRACEPARENT] = traceparent(made.trace_id, made.span_id, made.trace_flags)
    return message.with_properties({name: text for name, text in carrier.items() if text})


def may_be_sampled(message: ReceivedMessage) -> bool | None:
    """Return whether the producer's trace seems to be sampled, by one character of `traceparent`.

    Return None if the message has no trace.
    """
    text = message.find_property(TRACEPARENT)
    if text is None or len(text) <= _LAST_OF_FLAGS:
        return None
    return text[_LAST_OF_FLAGS] in _SAMPLED


def producer_of(message: ReceivedMessage) -> SpanContext | None:
    """Return the span context of the send.

    Return None if the send was not traced or the span context is invalid.
    """
    text = message.find_property(TRACEPARENT)
    found = None if text is None else _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, further = found.groups()
    if version == "ff" or (version == "00" and further):
        return None
    text = message.find_property(TRACESTATE)
    state = TraceState.from_header([text]) if text and len(text) <= _MAX_STATE_CHARACTERS else None
    made = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)), state)
    return made if made.is_valid else None


def context_of(message: ReceivedMessage, producer: SpanContext) -> Context:
    """Return a context with the span of the producer and the baggage of the message."""
    found = Context()
    if message.find_property(BAGGAGE) is not None:
        found = propagate.extract(message.properties, found)
    return trace.set_span_in_context(NonRecordingSpan(producer), found)
