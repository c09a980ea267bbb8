"""Spans and metrics of OpenTelemetry, as an exporter in memory gets them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

import aerobee_client
from aerobee_client import otel
from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.observing import otel_names as names
from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_wire.status import Code
from support.client.memory_cluster import NAMESRV, MemoryBroker, MemoryCluster
from support.client.producing import TOPIC, messages, producer
from support.clock.polling import until
from support.codes import raises_code


class Backend:
    """What was exported."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._metrics = InMemoryMetricReader()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meter_provider = MeterProvider(metric_readers=[self._metrics])

    def instrument(self, client: Any) -> Any:
        otel.instrument(
            client, tracer_provider=self.tracer_provider, meter_provider=self.meter_provider
        )
        return client

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.name == name]

    def points(self, metric: str) -> list[Any]:
        data = self._metrics.get_metrics_data()
        assert data is not None
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        ]


@pytest.fixture
def backend() -> Iterator[Backend]:
    backend = Backend()
    yield backend
    backend.tracer_provider.shutdown()
    backend.meter_provider.shutdown()


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_trace_goes_from_the_sender_through_retries_to_the_listener(
    cluster: MemoryCluster, backend: Backend
) -> None:
    listening: list[int] = []

    def listen(message: ReceivedMessage) -> None:
        listening.append(trace.get_current_span().get_span_context().span_id)
        if not message.reconsume_times:
            raise LookupError("no arrival")

    consumer = AsyncPushConsumer("g", listen, namesrv=NAMESRV, transport=cluster)
    consumer.subscribe(TOPIC)
    sender = backend.instrument(producer(cluster))
    tracer = backend.tracer_provider.get_tracer("the application")
    async with sender, backend.instrument(consumer):
        with tracer.start_as_current_span("handle a request") as request:
            result = await sender.send(Message(TOPIC, b"body", tag="T", keys="k"))
        await until(lambda: len(backend.spans(f"process {TOPIC}")) == 2)
    (sent,) = backend.spans(f"send {TOPIC}")
    assert sent.parent == request.get_span_context()
    assert sent.kind is trace.SpanKind.PRODUCER
    assert attributes(sent) == {
        names.SYSTEM: "rocketmq",
        names.OPERATION_NAME: "send",
        names.OPERATION_TYPE: "send",
        names.TOPIC: TOPIC,
        names.BODY_SIZE: 4,
        names.TAG: "T",
        names.KEYS: ("k",),
        names.MESSAGE_ID: result.message_id,
        names.QUEUE_ID: str(result.queue.queue_id),
    }
    first, second = backend.spans(f"process {TOPIC}")
    for processed in (first, second):
        assert processed.parent is not None and processed.context is not None
        assert processed.parent.span_id == id_of(sent)  # also of the retry
        assert [link.context.span_id for link in processed.links] == [processed.parent.span_id]
        assert attributes(processed)[names.CONSUMER_GROUP] == "g"
        assert attributes(processed)[names.MESSAGE_ID] == result.message_id
    assert listening == [id_of(span) for span in (first, second)]
    assert (first.status.is_ok, second.status.is_ok) == (False, True)
    assert attributes(first)[names.ERROR_TYPE] == "LookupError"
    (settled,) = backend.spans(f"send_back {TOPIC}")
    assert [link.context.span_id for link in settled.links] == [id_of(sent)]


async def test_a_batch_has_a_link_for_each_message(
    cluster: MemoryCluster, backend: Backend
) -> None:
    sizes: list[int] = []
    consumer = AsyncPushConsumer(
        "g",
        batch_listener=lambda batch: sizes.append(len(batch)),
        namesrv=NAMESRV,
        transport=cluster,
        consume_message_batch_max_size=8,
    )
    consumer.subscribe(TOPIC)
    async with backend.instrument(producer(cluster)) as sender:
        queue = (await sender.queues(TOPIC))[0]
        await sender.send_batch(messages(4), queue=queue)
    async with backend.instrument(consumer):
        await until(lambda: sum(sizes) == 4 and backend.spans(f"process {TOPIC}"))
    sent = {id_of(span) for span in backend.spans(f"send {TOPIC}")}
    assert len(sent) == 4
    linked = [
        link.context.span_id for span in backend.spans(f"process {TOPIC}") for link in span.links
    ]
    assert sorted(linked) == sorted(sent)
    (processed,) = backend.spans(f"process {TOPIC}")
    assert processed.parent is None
    assert attributes(processed)[names.BATCH_MESSAGE_COUNT] == 4


async def test_a_send_that_fails_is_an_error(cluster: MemoryCluster, backend: Backend) -> None:
    async with backend.instrument(producer(cluster, retries=0)) as sender:
        with raises_code(Code.MESSAGE_ILLEGAL):
            await sender.send(Message(TOPIC, bytes(5 << 20)))
    (sent,) = backend.spans(f"send {TOPIC}")
    assert not sent.status.is_ok
    assert attributes(sent)[names.ERROR_TYPE] == "MESSAGE_ILLEGAL"


async def test_sends_and_calls_of_listeners_are_measured(
    cluster: MemoryCluster, backend: Backend
) -> None:
    def listen(message: ReceivedMessage) -> None:
        if message.body == b"1" and not message.reconsume_times:
            raise LookupError("no arrival")

    consumer = AsyncPushConsumer("g", listen, namesrv=NAMESRV, transport=cluster)
    consumer.subscribe(TOPIC)
    async with backend.instrument(producer(cluster)) as sender, backend.instrument(consumer):
        await sender.send_batch(messages(3))
        with raises_code(Code.MESSAGE_ILLEGAL):
            await sender.send(Message(TOPIC, bytes(5 << 20)))
        await until(lambda: len(backend.spans(f"process {TOPIC}")) == 4)

    def counts(metric: str) -> dict[str, int]:
        return {
            point.attributes.get(names.ERROR_TYPE, ""): getattr(point, "value", 0)
            or getattr(point, "count", 0)
            for point in backend.points(metric)
        }

    assert counts(names.SENT_MESSAGES) == {"": 3, "MESSAGE_ILLEGAL": 1}
    assert counts(names.OPERATION_DURATION) == {"": 3, "MESSAGE_ILLEGAL": 1}
    assert counts(names.CONSUMED_MESSAGES) == {"": 3, "LookupError": 1}
    assert counts(names.PROCESS_DURATION) == {"": 3, "LookupError": 1}


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


def test_nothing_is_imported_unless_asked_for() -> None:
    program = (
        "import sys, aerobee_client.producer, aerobee_client.push_consumer\n"
        "assert not any(name.startswith(('opentelemetry', 'lz4', 'zstandard')) for name in"
        " sys.modules)\n"
        "sys.modules['opentelemetry.semconv._incubating.attributes'] = None\n"
        "try:\n    from aerobee_client import otel\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and "aerobee-client[otel]" in done.stdout, done.stderr
    assert aerobee_client.otel is otel


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


def test_a_traced_message_is_otherwise_the_given_one() -> None:
    given = Message(TOPIC, b"b", tag="T", keys="k", flag=3, message_group="g", wait_store_ok=False)
    traced = given.with_own_property("traceparent", "00")
    for slot in set(Message.__slots__) - {"properties"}:
        assert getattr(traced, slot) == getattr(given, slot), slot
    assert (given.properties, traced.properties) == ({}, {"traceparent": "00"})
