"""Traces and metrics by OpenTelemetry: `otel.instrument(client)`.

A send is a span `send TOPIC`, and its context travels in the user property `traceparent`, which
retries, dead letters and redrives keep. A call of a listener is a span `process TOPIC`: with one
message it continues the trace of its producer, with several it has a link for each. Where a trace
is not sampled, its messages cost no span.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextvars import Token
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aerobee_client.observing import otel_names as names
from aerobee_client.observing.interceptors import Failure, Interceptor

try:
    from opentelemetry import context, metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TraceFlags
except ImportError as error:
    raise ImportError(
        f"OpenTelemetry is not installed ({error}): pip install 'aerobee-client[otel]'"
    ) from None

if TYPE_CHECKING:
    from aerobee_client.message import Message, ReceivedMessage
    from aerobee_client.send_result import SendResult

log = logging.getLogger(__name__)

TRACEPARENT = "traceparent"
SCOPE = "aerobee-client"
_FLAGS = tuple(f"{flags:02x}" for flags in range(256))

Attributes = dict[str, str | int | Sequence[str]]


class Instrumented(Protocol):
    """A producer or consumer, plain or for asyncio."""

    def add_interceptor(self, interceptor: Interceptor) -> None: ...


def instrument(
    client: Instrumented,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Traces and measures a producer or consumer from now on; a consumer before its start.

    The providers are the global ones when None is given; they decide what is sampled and where it
    goes. Raises ILLEGAL_OPERATION for a consumer that has started.
    """
    tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
    meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
    client.add_interceptor(Telemetry(tracer, meter))


class _Processing(NamedTuple):
    span: Span | None
    token: Token[Context]
    began_s: float


class Telemetry(Interceptor):
    """What is under way is known by the object that before and after are told of: the message that
    is sent, the list that a listener gets."""

    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter) -> None:
        self._tracer = tracer
        self._sent = meter.create_counter(
            names.SENT_MESSAGES, "{message}", "Messages that a producer tried to send"
        )
        self._consumed = meter.create_counter(
            names.CONSUMED_MESSAGES, "{message}", "Messages that were given to a listener"
        )
        self._operation_duration = meter.create_histogram(
            names.OPERATION_DURATION, "s", "How long a send took"
        )
        self._process_duration = meter.create_histogram(
            names.PROCESS_DURATION, "s", "How long a listener took"
        )
        self._began_s: dict[int, float] = {}  # of every send
        self._sending: dict[int, Span] = {}  # of those that have a span
        self._processing: dict[int, _Processing] = {}

    def before_send(self, message: Message) -> Message | None:
        try:
            parent = trace.get_current_span().get_span_context()
            trace_id, span_id, _, flags, _, is_valid = parent  # its properties cost a call each
            if is_valid and not flags & TraceFlags.SAMPLED:
                text = _traceparent(trace_id, span_id, flags)
                traced = message.with_own_property(TRACEPARENT, text)
            else:
                traced = self._begin(message)
        except Exception:  # what is observed goes on when observing fails
            log.exception("the send of %r is not traced", message)
            return None
        self._began_s[id(traced)] = perf_counter()
        return traced

    def _begin(self, message: Message) -> Message:
        """Begins a span, if the sampler wants one: it is told of the topic alone."""
        span = self._tracer.start_span(
            f"send {message.topic}",
            kind=SpanKind.PRODUCER,
            attributes=_of_send(message.topic, None),
        )
        made = span.get_span_context()
        if made.is_valid and not made.trace_flags & TraceFlags.SAMPLED and not span.is_recording():
            text = _traceparent(made.trace_id, made.span_id, made.trace_flags)
            return message.with_own_property(TRACEPARENT, text)
        span.set_attributes(_of_sent(message))
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        traced = message.with_properties({name: text for name, text in carrier.items() if text})
        self._sending[id(traced)] = span
        return traced

    def after_send(
        self, message: Message, result: SendResult | None, error: BaseException | None
    ) -> None:
        began_s = self._began_s.pop(id(message), None)
        if began_s is None:
            return  # it could not be traced
        attributes = _of_send(message.topic, None if error is None else _error_type(error))
        self._sent.add(1, attributes)
        self._operation_duration.record(perf_counter() - began_s, attributes)
        if not self._sending or (span := self._sending.pop(id(message), None)) is None:
            return
        if result is not None and span.is_recording():
            span.set_attribute(names.MESSAGE_ID, result.message_id)
            span.set_attribute(names.QUEUE_ID, str(result.queue.queue_id))
        _end(span, None if error is None else _error_type(error), str(error or ""))

    def before_consume(self, consumer_group: str, messages: Sequence[ReceivedMessage]) -> None:
        began_s = perf_counter()
        contexts = [propagate.extract(_carrier(message.properties)) for message in messages]
        spans = [trace.get_current_span(extracted).get_span_context() for extracted in contexts]
        span = None
        parent = contexts[0] if len(messages) == 1 and spans[0].is_valid else None
        if parent is not None and not spans[0].trace_flags.sampled:
            current = parent  # what the listener does belongs to a trace that is not sampled
        else:
            span = self._tracer.start_span(
                f"process {messages[0].topic}",
                context=parent,
                kind=SpanKind.CONSUMER,
                attributes=_of_consumed(consumer_group, messages),
                links=[Link(each) for each in spans if each.is_valid],
            )
            current = trace.set_span_in_context(span, parent)
        self._processing[id(messages)] = _Processing(span, context.attach(current), began_s)

    def after_consume(
        self,
        consumer_group: str,
        messages: Sequence[ReceivedMessage],
        failures: Sequence[Failure | None],
    ) -> None:
        processing = self._processing.pop(id(messages))
        context.detach(processing.token)
        failure = next(filter(None, failures), None)
        error_type = None if failure is None else failure.reason
        attributes = _of_process(messages[0].topic, consumer_group, error_type)
        self._consumed.add(len(messages), attributes)
        self._process_duration.record(perf_counter() - processing.began_s, attributes)
        if processing.span is not None:
            _end(processing.span, error_type, failure.description if failure else "")

    def after_settle(
        self,
        consumer_group: str,
        operation: str,
        messages: Sequence[ReceivedMessage],
        error: BaseException | None,
    ) -> None:
        self._done(operation, names.SETTLE, consumer_group, messages, error)

    def after_receive(self, consumer_group: str, messages: Sequence[ReceivedMessage]) -> None:
        if messages:
            self._done(names.RECEIVE, names.RECEIVE, consumer_group, messages, None)
            topic = {names.TOPIC: messages[0].topic, names.CONSUMER_GROUP: consumer_group}
            self._consumed.add(
                len(messages),
                {names.SYSTEM: names.ROCKETMQ, names.OPERATION_NAME: names.RECEIVE, **topic},
            )

    def _done(
        self,
        operation: str,
        kind: str,
        consumer_group: str,
        messages: Sequence[ReceivedMessage],
        error: BaseException | None,
    ) -> None:
        """A span of something that has just been done with messages, with a link for each."""
        links = []
        for message in messages:
            extracted = propagate.extract(_carrier(message.properties))
            producer = trace.get_current_span(extracted).get_span_context()
            if producer.is_valid:
                links.append(Link(producer))
        if links and not any(link.context.trace_flags.sampled for link in links):
            return
        span = self._tracer.start_span(
            f"{operation} {messages[0].topic}",
            kind=SpanKind.CLIENT,
            attributes=_of_consumed(consumer_group, messages)
            | {names.OPERATION_NAME: operation, names.OPERATION_TYPE: kind},
            links=links,
        )
        _end(span, None if error is None else _error_type(error), str(error or ""))


def _traceparent(trace_id: int, span_id: int, flags: int) -> str:
    """As the W3C says: what a propagator would write, at a fraction of its cost."""
    trace_text, span_text = trace_id.to_bytes(16, "big").hex(), span_id.to_bytes(8, "big").hex()
    return f"00-{trace_text}-{span_text}-{_FLAGS[flags]}"


@lru_cache(maxsize=1024)
def _of_send(topic: str, error_type: str | None) -> Attributes:
    """What all sends to a topic have in common, and those that failed so. Nobody changes it."""
    found: Attributes = {
        names.SYSTEM: names.ROCKETMQ,
        names.OPERATION_NAME: names.SEND,
        names.OPERATION_TYPE: names.SEND,
        names.TOPIC: topic,
    }
    if error_type is not None:
        found[names.ERROR_TYPE] = error_type
    return found


@lru_cache(maxsize=1024)
def _of_process(topic: str, consumer_group: str, error_type: str | None) -> Attributes:
    """As `_of_send`, of calls of a listener."""
    found: Attributes = {
        names.SYSTEM: names.ROCKETMQ,
        names.OPERATION_NAME: names.PROCESS,
        names.OPERATION_TYPE: names.PROCESS,
        names.TOPIC: topic,
        names.CONSUMER_GROUP: consumer_group,
    }
    if error_type is not None:
        found[names.ERROR_TYPE] = error_type
    return found


def _of_sent(message: Message) -> Attributes:
    """What else a span says of a message."""
    found: Attributes = {names.BODY_SIZE: len(message.body)}
    if message.tag:
        found[names.TAG] = message.tag
    if message.keys:
        found[names.KEYS] = message.keys
    if message.delay_level:
        found[names.DELAY_LEVEL] = message.delay_level
    if message.deliver_at is not None:
        found[names.DELIVERY_TIMESTAMP] = int(message.deliver_at.timestamp() * 1_000)
    return found


def _of_consumed(consumer_group: str, messages: Sequence[ReceivedMessage]) -> Attributes:
    first = messages[0]
    found: Attributes = {
        names.SYSTEM: names.ROCKETMQ,
        names.OPERATION_NAME: names.PROCESS,
        names.OPERATION_TYPE: names.PROCESS,
        names.TOPIC: first.topic,
        names.CONSUMER_GROUP: consumer_group,
        names.QUEUE_ID: str(first.queue_id),
    }
    if len(messages) > 1:
        found[names.BATCH_MESSAGE_COUNT] = len(messages)
        return found
    found[names.MESSAGE_ID] = first.message_id
    found[names.BODY_SIZE] = len(first.stored_body)
    if first.tag:
        found[names.TAG] = first.tag
    if first.keys:
        found[names.KEYS] = first.keys
    return found


def _carrier(properties: Mapping[str, str]) -> Mapping[str, str]:
    """What a propagator reads: without `traceparent`, nothing."""
    return properties if TRACEPARENT in properties else {}


def _error_type(error: BaseException) -> str:
    """The code of an MqError, else the class."""
    code = getattr(error, "code", None)
    return getattr(code, "name", None) or type(error).__name__


def _end(span: Span, reason: str | None, description: str) -> None:
    if reason is not None:
        span.set_attribute(names.ERROR_TYPE, reason)
        span.set_status(Status(StatusCode.ERROR, description))
    span.end()
