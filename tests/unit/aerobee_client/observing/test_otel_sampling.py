"""What is sampled: the sampler is asked, with the right trace, and what it drops costs no span."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from aerobee_client import otel
from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.observing import otel_attributes as names
from aerobee_client.push_consumer import AsyncPushConsumer
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.client.producing import TOPIC, messages, producer
from support.clock.polling import until
from support.observing.otel_backend import Backend, context_of, linked

SAMPLED = trace.TraceFlags.SAMPLED
UNSAMPLED = trace.SpanContext(
    trace_id=0xABC << 100, span_id=0xDEF << 48, is_remote=False, trace_flags=trace.TraceFlags(0)
)
FOLLOWING: str = ParentBased(ALWAYS_OFF).get_description()  # type: ignore[no-untyped-call]
# A listener saw the message in this context.
Seen = list[tuple[trace.SpanContext, Any]]


class Asked(Sampler):
    """Notes the trace ids that it is asked about, and decides as `inner`."""

    def __init__(self, inner: Sampler) -> None:
        self.trace_ids: list[int] = []
        self._inner = inner

    def should_sample(  # noqa: PLR0917  # as the SDK has it
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Any = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        self.trace_ids.append(trace_id)
        return self._inner.should_sample(parent_context, trace_id, name, kind, attributes, links)

    def get_description(self) -> str:
        return FOLLOWING  # as if it need not be asked


@pytest.fixture
def backend() -> Iterator[Backend]:
    backend = Backend()
    yield backend
    backend.shutdown()


def within(span_context: trace.SpanContext) -> Any:
    """`with within(…)`: the current span, of the application."""
    return trace.use_span(trace.NonRecordingSpan(span_context))


def traceparents(broker: MemoryBroker) -> list[str]:
    return [each.properties["traceparent"] for each in broker.messages(TOPIC)]


def recording(cluster: MemoryCluster, seen: Seen, **settings: Any) -> AsyncPushConsumer:
    def listen(batch: list[ReceivedMessage]) -> None:
        span = trace.get_current_span().get_span_context()
        seen.extend((span, baggage.get_baggage("seat")) for _ in batch)

    consumer = AsyncPushConsumer(
        "g", batch_listener=listen, namesrv=NAMESRV, transport=cluster, **settings
    )
    consumer.subscribe(TOPIC)
    return consumer


async def test_a_trace_that_is_not_sampled_costs_no_span_and_stays_so(
    cluster: MemoryCluster, broker: MemoryBroker, backend: Backend
) -> None:
    listening: list[trace.SpanContext] = []

    def listen(message: ReceivedMessage) -> None:
        listening.append(trace.get_current_span().get_span_context())

    consumer = AsyncPushConsumer("g", listen, namesrv=NAMESRV, transport=cluster)
    consumer.subscribe(TOPIC)
    unsampled = TracerProvider(sampler=ParentBased(ALWAYS_OFF)).get_tracer("the application")
    async with backend.instrument(producer(cluster)) as sender, backend.instrument(consumer):
        with unsampled.start_as_current_span("handle a request") as request:
            await sender.send(Message(TOPIC, b"body"))
        await until(lambda: len(listening) == 1)
    (record,) = broker.messages(TOPIC)
    flags = record.properties["traceparent"].rpartition("-")[2]
    assert not int(flags, 16) & trace.TraceFlags.SAMPLED
    assert listening[0].trace_id == request.get_span_context().trace_id
    assert not backend.spans(f"send {TOPIC}") and not backend.spans(f"process {TOPIC}")


async def test_each_send_of_a_span_that_is_not_sampled_carries_its_own_context(
    cluster: MemoryCluster, broker: MemoryBroker, backend: Backend
) -> None:
    """Of more spans than are remembered, in turns, with baggage and with a traceparent of old."""
    tracer = TracerProvider(sampler=ParentBased(ALWAYS_OFF)).get_tracer("the application")
    spans = [tracer.start_span("request") for _ in range(otel.SPANS_KNOWN + 2)]
    wanted = []
    async with backend.instrument(producer(cluster)) as sender:
        for number, span in enumerate([*spans, spans[0], spans[-1], spans[0]]):
            old = {"traceparent": "older"} if number % 5 == 0 else {}
            carried = baggage.set_baggage("seat", "17A") if number % 7 == 0 else None
            token = context.attach(trace.set_span_in_context(span, carried))
            await sender.send(Message(TOPIC, b"%d" % number, properties=old))
            context.detach(token)
            made = span.get_span_context()
            seat = "seat=17A" if carried else None
            wanted.append((b"%d" % number, made.trace_id, made.span_id, seat))
    found = []
    for record in broker.messages(TOPIC):
        _, trace_id, span_id, flags = record.properties["traceparent"].split("-")
        assert not int(flags, 16) & SAMPLED
        seat = record.properties.get("baggage")
        found.append((record.body, int(trace_id, 16), int(span_id, 16), seat))
    assert sorted(found) == sorted(wanted)
    assert not backend.spans()


async def test_a_sampler_that_refuses_a_send_costs_no_span_and_the_listener_knows(
    cluster: MemoryCluster, broker: MemoryBroker, backend: Backend
) -> None:
    refusing = TracerProvider(sampler=ALWAYS_OFF)
    sender = producer(cluster)
    otel.instrument(sender, tracer_provider=refusing, meter_provider=backend.meter_provider)
    given = Message(TOPIC, b"body", tag="T", properties={"traceparent": "older", "k": "v"})
    async with sender:
        await sender.send(given)
    (record,) = broker.messages(TOPIC)
    sent = ReceivedMessage(record)
    version, trace_id, span_id, flags = sent.properties["traceparent"].split("-")
    assert (version, len(trace_id), len(span_id)) == ("00", 32, 16)
    assert not int(flags, 16) & trace.TraceFlags.SAMPLED
    assert (sent.tag, sent.properties["k"]) == ("T", "v")
    assert given.properties == {"traceparent": "older", "k": "v"}
    (point,) = backend.points(names.SENT_MESSAGES)
    assert point.value == 1


@pytest.mark.parametrize(
    ("sampler", "asked", "sampled"),
    [
        (Asked(ALWAYS_ON), True, True),  # decides by itself, whatever the parent is
        (Asked(ALWAYS_OFF), True, False),
        (ALWAYS_ON, True, True),
        (TraceIdRatioBased(1.0), True, True),
        (TraceIdRatioBased(0.0), True, False),
        (ParentBased(ALWAYS_ON, local_parent_not_sampled=ALWAYS_ON), True, True),
        (ParentBased(ALWAYS_ON, remote_parent_not_sampled=ALWAYS_ON), True, False),
        (ParentBased(ALWAYS_ON), False, False),
        (ParentBased(TraceIdRatioBased(1.0)), False, False),
        (ALWAYS_OFF, False, False),
    ],
    ids=lambda given: given.get_description()[:40] if isinstance(given, Sampler) else str(given),
)
async def test_each_sampler_decides_about_a_send_whose_parent_is_not_sampled(
    cluster: MemoryCluster, broker: MemoryBroker, *, sampler: Sampler, asked: bool, sampled: bool
) -> None:
    backend = Backend(sampler)
    assert otel.Tracing(backend.tracer_provider).follows_unsampled is not asked
    async with backend.instrument(producer(cluster)) as sender:
        with within(UNSAMPLED):
            await sender.send(Message(TOPIC, b"body"))
    assert len(backend.spans()) == sampled
    if isinstance(sampler, Asked):
        assert sampler.trace_ids == [UNSAMPLED.trace_id]
    (text,) = traceparents(broker)
    _, trace_id, _, flags = text.split("-")
    assert (int(trace_id, 16), int(flags, 16) & SAMPLED) == (UNSAMPLED.trace_id, sampled)
    backend.shutdown()


async def test_a_ratio_samples_sends_without_a_parent_by_their_trace_ids(
    cluster: MemoryCluster, broker: MemoryBroker
) -> None:
    ratio = TraceIdRatioBased(0.5)
    backend = Backend(ParentBased(ratio))
    async with backend.instrument(producer(cluster)) as sender:
        await sender.send_batch(messages(200))
    decided = [text.split("-") for text in traceparents(broker)]
    assert len({trace_id for _, trace_id, _, _ in decided}) == 200
    for _, trace_id, _, flags in decided:
        wanted = ratio.should_sample(None, int(trace_id, 16), "").decision
        assert int(flags, 16) & SAMPLED == (wanted is Decision.RECORD_AND_SAMPLE)
    assert 0 < len(backend.spans(f"send {TOPIC}")) < 200
    assert backend.counts(names.SENT_MESSAGES, "send") == {"": 200}
    backend.shutdown()


@pytest.mark.parametrize("sampled", [True, False])
async def test_baggage_and_trace_state_travel_too(cluster: MemoryCluster, *, sampled: bool) -> None:
    backend = Backend(ParentBased(ALWAYS_ON))
    seen: Seen = []
    flags = trace.TraceFlags(SAMPLED if sampled else 0)
    parent = trace.SpanContext(
        7, 8, is_remote=False, trace_flags=flags, trace_state=TraceState([("vendor", "x")])
    )
    async with (
        backend.instrument(producer(cluster)) as sender,
        backend.instrument(recording(cluster, seen)),
    ):
        with within(parent):
            token = context.attach(baggage.set_baggage("seat", "17A"))
            await sender.send(Message(TOPIC, b"body"))
            context.detach(token)
        await until(lambda: len(seen) == 1)
    ((at, seat),) = seen
    assert (at.trace_id, at.trace_flags.sampled, seat) == (7, sampled, "17A")
    assert at.trace_state.get("vendor") == "x"
    assert len(backend.spans()) == 2 * sampled
    backend.shutdown()


async def test_baggage_without_a_trace_travels(
    cluster: MemoryCluster, broker: MemoryBroker
) -> None:
    """The API alone, without the SDK."""
    sender = producer(cluster)
    otel.instrument(sender, tracer_provider=trace.NoOpTracerProvider())
    given = Message(TOPIC, b"body")
    async with sender:
        await sender.send(given)
        token = context.attach(baggage.set_baggage("seat", "17A"))
        await sender.send(given)
        context.detach(token)
    plain, carrying = sorted(broker.messages(TOPIC), key=lambda each: each.store_timestamp_ms)
    assert {"traceparent", "baggage"}.isdisjoint(plain.properties)
    assert carrying.properties["baggage"] == "seat=17A"


async def test_the_global_provider_counts_also_when_it_is_set_later(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Backend(ParentBased(ALWAYS_ON))
    sender = producer(cluster)
    otel.instrument(sender)
    async with sender:
        await sender.send(Message(TOPIC, b"nobody is told"))
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: backend.tracer_provider)
        await sender.send(Message(TOPIC, b"traced"))
        with within(UNSAMPLED):
            await sender.send(Message(TOPIC, b"dropped with its parent"))
    assert [span.name for span in backend.spans()] == [f"send {TOPIC}"]
    backend.shutdown()


async def test_a_batch_links_what_is_sampled_of_it(cluster: MemoryCluster) -> None:
    backend = Backend(ParentBased(ALWAYS_ON))
    seen: Seen = []
    async with backend.instrument(producer(cluster)) as sender:
        queue = (await sender.queues(TOPIC))[0]
        await sender.send(Message(TOPIC, b"sampled"), queue=queue)
        with within(UNSAMPLED):
            await sender.send_batch(messages(2), queue=queue)
    async with backend.instrument(recording(cluster, seen, consume_message_batch_max_size=8)):
        await until(lambda: len(seen) == 3 and backend.spans(f"process {TOPIC}"))
    (sent,) = backend.spans(f"send {TOPIC}")
    (processed,) = backend.spans(f"process {TOPIC}")
    assert linked(processed) == [context_of(sent).span_id]
    backend.shutdown()


@pytest.mark.parametrize("batch_size", [1, 8])
async def test_a_listener_is_not_in_the_trace_of_whoever_started_its_consumer(
    cluster: MemoryCluster, batch_size: int
) -> None:
    async def listen(batch: list[ReceivedMessage]) -> None:
        raise LookupError("no arrival")

    backend = Backend()
    consumer = AsyncPushConsumer(
        "g",
        batch_listener=listen,
        namesrv=NAMESRV,
        transport=cluster,
        consume_message_batch_max_size=batch_size,
    )
    consumer.subscribe(TOPIC)
    async with producer(cluster) as sender:
        queue = (await sender.queues(TOPIC))[0]
        await sender.send_batch(messages(3), queue=queue)
    with backend.tracer().start_as_current_span("start-up"):
        await backend.instrument(consumer).start()
    await until(lambda: len(backend.spans(f"send_back {TOPIC}")) >= 3)
    await consumer.close()
    spans = [span for span in backend.spans() if span.name != "start-up"]
    assert [span.name for span in spans if span.parent is not None] == []
    backend.shutdown()


async def test_a_batch_of_which_nothing_is_sampled_has_no_span(cluster: MemoryCluster) -> None:
    backend = Backend(ParentBased(ALWAYS_ON))
    seen: Seen = []
    async with backend.instrument(producer(cluster)) as sender:
        queue = (await sender.queues(TOPIC))[0]
        with within(UNSAMPLED):
            await sender.send_batch(messages(3), queue=queue)
    async with backend.instrument(recording(cluster, seen, consume_message_batch_max_size=8)):
        await until(lambda: backend.counts(names.CONSUMED_MESSAGES, "process") == {"": 3})
    assert backend.spans() == [] and len(seen) == 3
    backend.shutdown()


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "text",
    [
        PARENT,
        PARENT[:-2] + "03",
        PARENT[:-2] + "00",
        PARENT + "-further",
        "cc" + PARENT[2:],
        "cc" + PARENT[2:] + "-further",
        "ff" + PARENT[2:],
        PARENT[:3] + "0" * 32 + PARENT[35:],
        PARENT[:36] + "0" * 16 + PARENT[52:],
        PARENT.upper(),
        PARENT[:-1],
        "no trace context",
    ],
)
async def test_a_trace_context_is_read_as_the_propagator_reads_it(
    cluster: MemoryCluster, broker: MemoryBroker, text: str
) -> None:
    async with producer(cluster) as sender:
        await sender.send(Message(TOPIC, b"x", properties={"traceparent": text, "k": "v"}))
    (record,) = broker.messages(TOPIC)
    found = otel.producer_of(ReceivedMessage(record))
    extracted = TraceContextTextMapPropagator().extract({"traceparent": text})
    wanted = trace.get_current_span(extracted).get_span_context()
    assert (found or trace.INVALID_SPAN_CONTEXT) == wanted


def test_what_a_sampler_of_the_sdk_says_of_itself_is_what_this_client_reads() -> None:
    """A version of the SDK that says it in other words makes sends slower, not wrong; here it is
    told."""
    for sampler in (ParentBased(ALWAYS_ON), ALWAYS_OFF):
        assert otel.Tracing(TracerProvider(sampler=sampler)).follows_unsampled
