"""OpenTelemetry against real processes: one trace from the request that sends a message to the last
listener, through retries, a dead letter, a redrive and a transaction; spans and metrics of each
kind of consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncSimpleConsumer,
    AsyncTransactionProducer,
    ConsumeFromWhere,
    Message,
    MqError,
    ReceivedMessage,
    TransactionResolution,
)
from aerobee_client.observing import otel_attributes as names
from support.clock.polling import until
from support.observing.otel_backend import Backend, attributes, context_of, linked
from support.processes.command import aerobee

FIRST = ConsumeFromWhere.FIRST_OFFSET


@pytest.fixture
def backend() -> Iterator[Backend]:
    backend = Backend()
    yield backend
    backend.shutdown()


def trace_ids(spans: list[ReadableSpan]) -> set[int]:
    return {context_of(span).trace_id for span in spans}


async def test_a_trace_goes_through_retries_a_dead_letter_and_a_redrive(
    namesrv: str, backend: Backend
) -> None:
    seen: list[tuple[int, trace.SpanContext]] = []
    redriven = False

    def listen(message: ReceivedMessage) -> None:
        seen.append((message.reconsume_times, trace.get_current_span().get_span_context()))
        if not redriven:
            raise LookupError("no such seat")

    consumer = AsyncPushConsumer("seats-g", listen, namesrv=namesrv, consume_from_where=FIRST)
    consumer.subscribe("seats")
    async with AsyncAdminClient(namesrv) as admin, AsyncProducer(namesrv=namesrv) as producer:
        await admin.create_group("seats-g", max_attempts=2, retry_delays=[timedelta(seconds=1)])
        backend.instrument(producer)
        with backend.tracer().start_as_current_span("book a seat") as request:
            await producer.send(Message("seats", b"17A"))
        async with backend.instrument(consumer):
            dead = await until(lambda: _dead_letters(admin), retry_on=(MqError,), timeout_s=60)
            redriven = True
            done = await asyncio.to_thread(
                aerobee, "dlq", "redrive", "seats-g", "--all", namesrv=namesrv
            )
            assert done.returncode == 0, done.stderr
            await until(lambda: len(backend.spans("process seats")) == 3, timeout_s=60)
    assert [times for times, _ in seen] == [0, 1, 0]

    (sent,) = backend.spans("send seats")
    processed, sent_back = backend.spans("process seats"), backend.spans("send_back seats")
    assert len(sent_back) == 2  # for a retry, and to the dead letters
    everything = [sent, *processed, *sent_back]
    assert trace_ids(everything) == {request.get_span_context().trace_id}
    (dead_letter,) = dead
    assert (
        dead_letter.properties["traceparent"].split("-")[1] == f"{context_of(sent).trace_id:032x}"
    )
    assert sent.parent == request.get_span_context()
    for span in everything[1:]:
        assert span.parent is not None and span.parent.span_id == context_of(sent).span_id
        assert linked(span) == [context_of(sent).span_id]
    assert [span.status.is_ok for span in processed] == [False, False, True]
    assert [attributes(span).get(names.ERROR_TYPE) for span in processed[:2]] == ["LookupError"] * 2
    assert [context for _, context in seen] == [context_of(span) for span in processed]
    assert {attributes(span)[names.MESSAGE_ID] for span in everything} == {dead_letter.message_id}

    assert backend.counts(names.SENT_MESSAGES, "send") == {"": 1}
    assert backend.counts(names.CONSUMED_MESSAGES, "process") == {"": 1, "LookupError": 2}
    assert backend.counts(names.PROCESS_DURATION, "process") == {"": 1, "LookupError": 2}
    assert backend.counts(names.OPERATION_DURATION, "send") == {"": 1}
    assert backend.counts(names.OPERATION_DURATION, "send_back") == {"": 2}


async def _dead_letters(admin: AsyncAdminClient) -> list[ReceivedMessage]:
    browsed = await admin.browse("%DLQ%seats-g", "broker-a", 0, 0)
    return browsed.messages()


async def test_a_transaction_is_consumed_in_the_trace_of_its_producer(
    namesrv: str, backend: Backend
) -> None:
    seen: list[bytes] = []
    consumer = AsyncPushConsumer(
        "paid-g",
        lambda message: seen.append(message.body),
        namesrv=namesrv,
        consume_from_where=FIRST,
    )
    consumer.subscribe("paid")
    producer = AsyncTransactionProducer(
        "paying", lambda message: TransactionResolution.UNKNOWN, namesrv=namesrv
    )
    async with backend.instrument(producer), backend.instrument(consumer):
        with backend.tracer().start_as_current_span("pay") as request:
            with pytest.raises(ValueError, match="no money"):
                async with producer.transaction(Message("paid", b"rolled back")):
                    raise ValueError("no money")
            async with producer.transaction(Message("paid", b"committed")) as transaction:
                pass
        await until(lambda: backend.spans("process paid"), timeout_s=60)
    assert seen == [b"committed"]
    _, committed = backend.spans("send paid")
    assert attributes(committed)[names.MESSAGE_ID] == transaction.message_id
    (processed,) = backend.spans("process paid")
    assert processed.parent is not None
    assert processed.parent.span_id == context_of(committed).span_id
    assert trace_ids([committed, processed]) == {request.get_span_context().trace_id}


async def test_consumers_without_a_listener_link_what_they_receive(
    namesrv: str, backend: Backend
) -> None:
    async with AsyncAdminClient(namesrv) as admin:
        await admin.create_topic("read", queues=1)
    async with backend.instrument(AsyncProducer(namesrv=namesrv)) as producer:
        await producer.send_batch([Message("read", b"%d" % number) for number in range(3)])
    sent = [context_of(span).span_id for span in backend.spans("send read")]
    assert len(sent) == 3

    pull = AsyncPullConsumer("read-pull", namesrv=namesrv, consume_from_where=FIRST)
    simple = AsyncSimpleConsumer("read-simple", namesrv=namesrv, consume_from_where=FIRST)
    for consumer in (pull, simple):
        consumer.subscribe("read")
    polled: list[ReceivedMessage] = []
    received: list[ReceivedMessage] = []
    async with backend.instrument(pull), backend.instrument(simple), asyncio.timeout(60):
        with backend.tracer().start_as_current_span("a job") as job:
            while len(polled) < 3:
                polled += await pull.poll(8)
            while len(received) < 3:
                messages = await simple.receive(8, timedelta(seconds=30))
                await simple.ack(messages)
                received += messages
    by_group: dict[str, list[ReadableSpan]] = {"read-pull": [], "read-simple": []}
    for span in backend.spans("receive read"):
        by_group[attributes(span)[names.CONSUMER_GROUP]].append(span)
    for spans in (*by_group.values(), backend.spans("ack read")):
        assert [each for span in spans for each in linked(span)] == sent
        for span in spans:
            assert span.parent == job.get_span_context()
            assert span.kind is trace.SpanKind.CLIENT
            assert span.start_time is not None and span.end_time is not None
            assert span.start_time < span.end_time
    for metric in (names.CONSUMED_MESSAGES, names.OPERATION_DURATION):
        assert {point.attributes.get(names.CONSUMER_GROUP) for point in backend.points(metric)} >= {
            "read-pull",
            "read-simple",
        }
    assert sum(_values(backend, "receive")) == 6
    assert backend.counts(names.OPERATION_DURATION, "ack").keys() == {""}


def _values(backend: Backend, operation: str) -> list[int]:
    return [
        point.value
        for point in backend.points(names.CONSUMED_MESSAGES)
        if point.attributes[names.OPERATION_NAME] == operation
    ]
