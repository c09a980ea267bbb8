"""Trace and measure clients with OpenTelemetry: `otel.instrument(client)`.

A send is a span `send TOPIC`. The user property `traceparent` carries its context, and retries,
dead letters and redrives keep that property. A listener call is a span `process TOPIC`. With one
message the span continues the trace of the producer; with several it has one link per message. A
poll or receive is a span `receive TOPIC` with links. Messages of an unsampled trace do not create
spans.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextvars import Token
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aerobee_client.message import AddedProperty
from aerobee_client.observing import otel_attributes as names
from aerobee_client.observing.interceptors import Failure, Interceptor
from aerobee_client.observing.otel_attributes import (
    Attributes,
    error_type,
    of_messages,
    of_operation,
    of_send,
    of_sent,
)
from aerobee_client.observing.trace_context import (
    SPAN_KEY,
    TRACEPARENT,
    carrying,
    context_of,
    may_be_sampled,
    producer_of,
    traceparent,
)

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from aerobee_client.message import Message, ReceivedMessage
    from aerobee_client.send_result import SendResult

log = logging.getLogger(__name__)

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
except ImportError as error:
    raise ImportError(
        f"OpenTelemetry is not installed ({error}): pip install 'aerobee-client[otel]'"
    ) from None

# Seconds, as the conventions require; the default of OpenTelemetry is for milliseconds.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
SCOPE = "aerobee-client"
SAMPLED = trace.TraceFlags.SAMPLED
SPANS_KNOWN = 1_024
# The description of samplers of the SDK.
SDK_SAMPLERS = "opentelemetry.sdk.trace.sampling"
ALWAYS_OFF = "AlwaysOffSampler"


class Instrumented(Protocol):
    """A producer or consumer, plain or for asyncio."""

    def add_interceptor(self, interceptor: Interceptor) -> None: ...


def instrument(
    client: Instrumented,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Trace and measure a producer or consumer from now on. Call it before a consumer starts.

    The providers determine which spans and metrics are exported, and where to.

    Args:
        client: The producer or consumer.
        tracer_provider: The provider of tracers. Default: the global provider, even if it is set
            later.
        meter_provider: The provider of meters. Default: the global provider, even if it is set
            later.

    Raises:
        MqError: ILLEGAL_OPERATION for a consumer that has started.

    Example:
        producer = Producer()
        otel.instrument(producer)
    """
    meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
    client.add_interceptor(Telemetry(Tracing(tracer_provider), Measurements(meter)))


class Tracing:
    """Holds the tracer of `provider`, or of the current global provider if it is None."""

    def __init__(self, provider: trace.TracerProvider | None) -> None:
        self._is_global = provider is None
        self._use(provider or trace.get_tracer_provider())

    def _use(self, provider: trace.TracerProvider) -> None:
        self._provider = provider
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=provider)
        # True if the sampler drops every span whose parent is not sampled.
        self.follows_unsampled = _follows_unsampled(self._tracer)

    def tracer(self) -> trace.Tracer:
        if self._is_global and (now := trace.get_tracer_provider()) is not self._provider:
            self._use(now)
        return self._tracer


def _follows_unsampled(tracer: trace.Tracer) -> bool:
    """Return whether the sampler of a tracer drops each span whose parent is not sampled.

    Only the samplers of the SDK describe this. For any other sampler, return False.
    """
    sampler = getattr(tracer, "sampler", None)
    if sampler is None or type(sampler).__module__ != SDK_SAMPLERS:
        return False
    text = sampler.get_description()
    if not text.startswith("ParentBased{"):
        return bool(text == ALWAYS_OFF)
    parents = ("remoteParentNotSampled", "localParentNotSampled")
    return all(f"{parent}:{ALWAYS_OFF}" in text for parent in parents)


class _Processing(NamedTuple):
    span: Span | None
    token: Token[Context]
    began_s: float


class Telemetry(Interceptor):
    """The interceptor that traces and measures.

    Each event is identified by an object that the methods before and after the event both get. This
    is the message that is sent, or the list of messages that a listener gets.
    """

    def __init__(self, tracing: Tracing, measurements: Measurements) -> None:
        self._tracing = tracing
        self._measurements = measurements
        self._sending: dict[int, Span] = {}
        # The property that sends carry, by unsampled span. Most programs use few spans. Spans
        # compare by identity, and their contexts do not change.
        self._unsampled: dict[Span, AddedProperty] = {}
        self._processing: dict[int, _Processing] = {}

    # ---- sends ----

    def before_send(self, message: Message) -> Message | AddedProperty | None:
        try:
            current = context.get_current()
            span: Span = current.get(SPAN_KEY, trace.INVALID_SPAN)  # type: ignore[assignment]
            known = self._unsampled.get(span)
            if known is not None and len(current) == 1 and self._tracing.follows_unsampled:
                return known
            parent = span.get_span_context()
            # true if the context contains nothing to carry except the span
            plain = len(current) == parent.is_valid
            sampled = bool(parent.trace_flags & SAMPLED)
            if not parent.is_valid or sampled or not self._tracing.follows_unsampled:
                return self._begin(message, current, plain=plain, expected=sampled)
            if plain and not parent.trace_state:
                return self._know(span, parent)
            return carrying(message, current, parent, plain=plain)
        except Exception:  # a failure to observe must not stop the send
            log.exception("the send of %r is not traced", message)
            return None

    def _know(self, span: Span, parent: SpanContext) -> AddedProperty:
        """Create and remember the property that sends within an unsampled span carry."""
        text = traceparent(parent.trace_id, parent.span_id, parent.trace_flags)
        added = AddedProperty(TRACEPARENT, text)
        if len(self._unsampled) >= SPANS_KNOWN:
            self._unsampled.clear()
        self._unsampled[span] = added
        return added

    def _begin(self, message: Message, current: Context, *, plain: bool, expected: bool) -> Message:
        """Begin a span for a send, if the sampler wants one. Return the message to send.

        `expected` is true if the send will probably be sampled. Otherwise the sampler gets only the
        topic.
        """
        attributes = of_send(message.topic)
        span = self._tracing.tracer().start_span(
            f"send {message.topic}",
            context=current,
            kind=SpanKind.PRODUCER,
            attributes={**attributes, **of_sent(message)} if expected else attributes,
        )
        try:
            traced = carrying(message, current, span.get_span_context(), plain=plain)
            if span.is_recording():
                if not expected:
                    span.set_attributes(of_sent(message))
                self._sending[id(traced)] = span
            return traced
        except BaseException:
            span.end()
            raise

    def follows_send(self, message: Message) -> bool:
        return id(message) in self._sending

    def after_send(
        self, message: Message, result: SendResult | None, error: BaseException | None
    ) -> None:
        span = self._sending.pop(id(message))
        if result is not None and span.is_recording():
            queue_id = str(result.queue.queue_id)
            span.set_attributes({names.MESSAGE_ID: result.message_id, names.QUEUE_ID: queue_id})
        _end(span, error_type(error), str(error or ""))

    def after_send_request(
        self, topic: str, message_count: int, elapsed_s: float, error: BaseException | None
    ) -> None:
        self._measurements.sent(message_count, elapsed_s, of_send(topic, error_type(error)))

    # ---- calls of a listener ----

    def before_consume(self, consumer_group: str, messages: Sequence[ReceivedMessage]) -> None:
        began_s = perf_counter()
        # Not the context of the runner, which may be that of the code that started the consumer.
        span, parent = None, Context()
        producer = producer_of(messages[0]) if len(messages) == 1 else None
        links: list[SpanContext] | None = []
        if producer is not None:
            parent = context_of(messages[0], producer)
            sampled = producer.trace_flags & SAMPLED or not self._tracing.follows_unsampled
            links = [producer] if sampled else None
        elif len(messages) > 1:
            links = self._producers(messages)
        if links is not None:
            process, topic = names.PROCESS, messages[0].topic
            attributes = of_operation(process, process, topic, consumer_group)
            span = self._tracing.tracer().start_span(
                f"process {topic}",
                context=parent,
                kind=SpanKind.CONSUMER,
                attributes={**attributes, **of_messages(messages)},
                links=[Link(each) for each in links],
            )
            token = context.attach(trace.set_span_in_context(span, parent))
        else:  # the listener's work belongs to an unsampled trace
            token = context.attach(parent)
        self._processing[id(messages)] = _Processing(span, token, began_s)

    def after_consume(
        self,
        consumer_group: str,
        messages: Sequence[ReceivedMessage],
        failures: Sequence[Failure | None],
    ) -> None:
        span, token, began_s = self._processing.pop(id(messages))
        context.detach(token)
        failure = next(filter(None, failures), None)
        reason = None if failure is None else failure.reason
        process = names.PROCESS
        attributes = of_operation(process, process, messages[0].topic, consumer_group, reason)
        self._measurements.processed(len(messages), perf_counter() - began_s, attributes)
        if span is not None:
            _end(span, reason, failure.description if failure else "")

    # ---- receives and settlements: notified when they are done ----

    def after_receive(
        self, consumer_group: str, messages: Sequence[ReceivedMessage], elapsed_s: float
    ) -> None:
        for topic, part in _by_topic(messages):
            attributes = of_operation(names.RECEIVE, names.RECEIVE, topic, consumer_group)
            self._measurements.received(len(part), elapsed_s, attributes)
            self._done(attributes, part, elapsed_s)

    def after_settle(
        self,
        consumer_group: str,
        operation: str,
        messages: Sequence[ReceivedMessage],
        elapsed_s: float,
        error: BaseException | None,
    ) -> None:
        reason = error_type(error)
        for topic, part in _by_topic(messages):
            attributes = of_operation(operation, names.SETTLE, topic, consumer_group, reason)
            self._measurements.settled(elapsed_s, attributes)
            parent = None
            if operation == names.SEND_BACK:  # done by the consumer itself: it continues the trace
                producer = producer_of(part[0])
                parent = Context() if producer is None else context_of(part[0], producer)
            self._done(attributes, part, elapsed_s, error, parent)

    def _done(
        self,
        attributes: Attributes,
        messages: Sequence[ReceivedMessage],
        elapsed_s: float,
        error: BaseException | None = None,
        parent: Context | None = None,
    ) -> None:
        """Record a span for a finished operation on messages, with a link for each sampled message.

        `parent` is the context of the span; None means the current context.
        """
        links = self._producers(messages)
        if links is None:
            return
        now_ns = time.time_ns()
        span = self._tracing.tracer().start_span(
            f"{attributes[names.OPERATION_NAME]} {attributes[names.TOPIC]}",
            context=parent,
            kind=SpanKind.CLIENT,
            attributes={**attributes, **of_messages(messages)},
            links=[Link(each) for each in links],
            start_time=now_ns - int(elapsed_s * 1e9),
        )
        _end(span, error_type(error), str(error or ""), now_ns)

    def _producers(self, messages: Sequence[ReceivedMessage]) -> list[SpanContext] | None:
        """Return the spans of the sends of sampled messages.

        Return None if the messages belong only to unsampled traces; then the operation gets no
        span.
        """
        sampled = [may_be_sampled(message) for message in messages]
        if self._tracing.follows_unsampled:
            if False in sampled and True not in sampled:
                return None
            messages = [each for each, found in zip(messages, sampled, strict=True) if found]
        return [found for each in messages if (found := producer_of(each)) is not None]


def _by_topic(
    messages: Sequence[ReceivedMessage],
) -> Iterable[tuple[str, Sequence[ReceivedMessage]]]:
    """Group messages by topic. There is nearly always one topic."""
    topics = {message.topic: None for message in messages}
    if len(topics) == 1:
        return [(messages[0].topic, messages)]
    return [(topic, [each for each in messages if each.topic == topic]) for topic in topics]


def _end(span: Span, reason: str | None, description: str, at_ns: int | None = None) -> None:
    """End a span. `at_ns` is in nanoseconds since the epoch; None means now."""
    if reason is not None:
        span.set_attribute(names.ERROR_TYPE, reason)
        span.set_status(Status(StatusCode.ERROR, description))
    span.end(at_ns)


class Measurements:
    """The metrics of a client.

    Recording one value takes a third of the time of a send. Metrics are therefore recorded once per
    request or call, and not once per message.
    """

    def __init__(self, meter: Meter) -> None:
        self._sent = meter.create_counter(
            names.SENT_MESSAGES, "{message}", "Messages that a producer tried to send"
        )
        self._consumed = meter.create_counter(
            names.CONSUMED_MESSAGES, "{message}", "Messages that were given to the application"
        )
        self._operation_duration = meter.create_histogram(
            names.OPERATION_DURATION,
            "s",
            "How long a request of sends, a receive or a settlement took",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._process_duration = meter.create_histogram(
            names.PROCESS_DURATION,
            "s",
            "How long a listener took",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )

    def sent(self, message_count: int, elapsed_s: float, attributes: Attributes) -> None:
        self._sent.add(message_count, attributes)
        self._operation_duration.record(elapsed_s, attributes)

    def received(self, message_count: int, elapsed_s: float, attributes: Attributes) -> None:
        self._consumed.add(message_count, attributes)
        self._operation_duration.record(elapsed_s, attributes)

    def settled(self, elapsed_s: float, attributes: Attributes) -> None:
        self._operation_duration.record(elapsed_s, attributes)

    def processed(self, message_count: int, elapsed_s: float, attributes: Attributes) -> None:
        self._consumed.add(message_count, attributes)
        self._process_duration.record(elapsed_s, attributes)
