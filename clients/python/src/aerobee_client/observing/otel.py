"""Traces and metrics by OpenTelemetry: `otel.instrument(client)`.

A send is a span `send TOPIC`, and its context travels in the user property `traceparent`, which
retries, dead letters and redrives keep. A call of a listener is a span `process TOPIC`: with one
message it continues the trace of its producer, with several it has a link for each. Where a trace
is not sampled, its messages cost no span.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextvars import Token
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


class _Sending(NamedTuple):
    span: Span | None
    began_s: float


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
        self._sending: dict[int, _Sending] = {}
        self._processing: dict[int, _Processing] = {}

    def before_send(self, message: Message) -> Message | None:
        try:
            return self._begin(message)
        except Exception:  # what is observed goes on when observing fails
            log.exception("the send of %r is not traced", message)
            return None

    def _begin(self, message: Message) -> Message:
        began_s = time.perf_counter()
        parent = trace.get_current_span().get_span_context()
        span = None
        carrier: dict[str, str] = {}
        if parent.is_valid and not parent.trace_flags & TraceFlags.SAMPLED:
            carrier[TRACEPARENT] = _traceparent(parent)
        else:
            attributes = _of_sent(message)
            name = f"send {message.topic}"
            span = self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes)
            propagate.inject(carrier, trace.set_span_in_context(span))
            carrier = {name: text for name, text in carrier.items() if text}
        message = message.with_properties(carrier)  # a new one: nobody else sends it
        self._sending[id(message)] = _Sending(span, began_s)
        return message

    def after_send(
        self, message: Message, result: SendResult | None, error: BaseException | None
    ) -> None:
        sending = self._sending.pop(id(message), None)
        if sending is None:
            return  # it could not be traced
        attributes: Attributes = {
            names.SYSTEM: names.ROCKETMQ,
            names.OPERATION_NAME: names.SEND,
            names.OPERATION_TYPE: names.SEND,
            names.TOPIC: message.topic,
        }
        if error is not None:
            attributes[names.ERROR_TYPE] = _error_type(error)
        self._sent.add(1, attributes)
        self._operation_duration.record(time.perf_counter() - sending.began_s, attributes)
        span = sending.span
        if span is None:
            return
        if result is not None and span.is_recording():
            span.set_attribute(names.MESSAGE_ID, result.message_id)
            span.set_attribute(names.QUEUE_ID, str(result.queue.queue_id))
        _end(span, None if error is None else _error_type(error), str(error or ""))

    def before_consume(self, consumer_group: str, messages: Sequence[ReceivedMessage]) -> None:
        began_s = time.perf_counter()
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
        attributes: Attributes = {
            names.SYSTEM: names.ROCKETMQ,
            names.OPERATION_NAME: names.PROCESS,
            names.OPERATION_TYPE: names.PROCESS,
            names.TOPIC: messages[0].topic,
            names.CONSUMER_GROUP: consumer_group,
        }
        failure = next(filter(None, failures), None)
        if failure is not None:
            attributes[names.ERROR_TYPE] = failure.reason
        self._consumed.add(len(messages), attributes)
        self._process_duration.record(time.perf_counter() - processing.began_s, attributes)
        if processing.span is not None:
            reason = None if failure is None else failure.reason
            _end(processing.span, reason, failure.description if failure else "")

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


def _traceparent(span: trace.SpanContext) -> str:
    """As the W3C says: what a propagator would write, at a tenth of its cost."""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def _of_sent(message: Message) -> Attributes:
    found: Attributes = {
        names.SYSTEM: names.ROCKETMQ,
        names.OPERATION_NAME: names.SEND,
        names.OPERATION_TYPE: names.SEND,
        names.TOPIC: message.topic,
        names.BODY_SIZE: len(message.body),
    }
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
