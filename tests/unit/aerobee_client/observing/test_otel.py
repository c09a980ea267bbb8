"""Spans and metrics of OpenTelemetry, as an exporter in memory gets them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from opentelemetry import trace

import aerobee_client
from aerobee_client import otel
from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.observing import otel_attributes as names
from aerobee_client.pull_consumer import AsyncPullConsumer
from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_wire.status import Code, MqError
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.client.producing import TOPIC, messages, producer
from support.clock.polling import until
from support.codes import raises_code
from support.observing.otel_backend import Backend, attributes, context_of, linked


@pytest.fixture
def backend() -> Iterator[Backend]:
    backend = Backend()
    yield backend
    backend.shutdown()


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
    tracer = backend.tracer()
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
        assert processed.parent.span_id == context_of(sent).span_id  # also of the retry
        assert linked(processed) == [processed.parent.span_id]
        assert attributes(processed)[names.CONSUMER_GROUP] == "g"
        assert attributes(processed)[names.MESSAGE_ID] == result.message_id
    assert listening == [context_of(span).span_id for span in (first, second)]
    assert (first.status.is_ok, second.status.is_ok) == (False, True)
    assert attributes(first)[names.ERROR_TYPE] == "LookupError"
    (settled,) = backend.spans(f"send_back {TOPIC}")
    assert linked(settled) == [context_of(sent).span_id]


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
    sent = {context_of(span).span_id for span in backend.spans(f"send {TOPIC}")}
    assert len(sent) == 4
    (processed,) = backend.spans(f"process {TOPIC}")
    assert sorted(linked(processed)) == sorted(sent)
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
    sending = backend.instrument(producer(cluster, retries=0))
    async with sending as sender, backend.instrument(consumer):
        await sender.send_batch(messages(3), queue=(await sender.queues(TOPIC))[0])
        cluster.answers["Send"] = MqError(Code.NO_PERMISSION, "refused by the broker")
        with raises_code(Code.NO_PERMISSION):
            await sender.send(Message(TOPIC, b"refused"))
        del cluster.answers["Send"]
        with raises_code(Code.MESSAGE_ILLEGAL):
            await sender.send(Message(TOPIC, bytes(5 << 20)))  # refused before it leaves
        await until(lambda: len(backend.spans(f"process {TOPIC}")) == 4)
        await until(lambda: backend.spans(f"send_back {TOPIC}"))
    assert backend.counts(names.SENT_MESSAGES, "send") == {"": 3, "NO_PERMISSION": 1}
    assert backend.counts(names.OPERATION_DURATION, "send") == {"": 1, "NO_PERMISSION": 1}
    assert backend.counts(names.OPERATION_DURATION, "send_back") == {"": 1}
    assert backend.counts(names.CONSUMED_MESSAGES, "process") == {"": 3, "LookupError": 1}
    assert backend.counts(names.PROCESS_DURATION, "process") == {"": 3, "LookupError": 1}


async def test_sends_that_travel_together_are_measured_together(
    cluster: MemoryCluster, backend: Backend
) -> None:
    async with backend.instrument(producer(cluster)) as sender:
        await sender.send(Message(TOPIC, b"the route is known from now on"))
        await asyncio.gather(*(sender.send(message) for message in messages(20)))
        await sender.send_oneway(Message(TOPIC, b"alone"), accumulate=False)
        await until(lambda: backend.counts(names.SENT_MESSAGES, "send") == {"": 22})
    assert backend.counts(names.OPERATION_DURATION, "send") == {"": 3}
    (point,) = backend.points(names.OPERATION_DURATION)
    assert max(point.explicit_bounds) == 10, "seconds, not milliseconds"
    assert len(backend.spans(f"send {TOPIC}")) == 22


async def test_a_poll_lasts_from_its_call_to_its_messages(
    cluster: MemoryCluster, backend: Backend
) -> None:
    consumer = AsyncPullConsumer("g", namesrv=NAMESRV, transport=cluster)
    consumer.subscribe(TOPIC)
    async with backend.instrument(producer(cluster)) as sender, backend.instrument(consumer):
        queue = (await sender.queues(TOPIC))[0]
        assert await consumer.poll(timeout=timedelta(milliseconds=1)) == []
        waiting = asyncio.create_task(consumer.poll(8))
        await asyncio.sleep(0.05)
        sent_ns = time.time_ns()
        await sender.send_batch(messages(3), queue=queue)
        assert len(await waiting) == 3
    (received,) = backend.spans(f"receive {TOPIC}")
    assert received.start_time is not None and received.end_time is not None
    assert received.start_time < sent_ns < received.end_time
    sends = backend.spans(f"send {TOPIC}")
    assert linked(received) == [context_of(span).span_id for span in sends]
    assert attributes(received) == {
        names.SYSTEM: "rocketmq",
        names.OPERATION_NAME: "receive",
        names.OPERATION_TYPE: "receive",
        names.TOPIC: TOPIC,
        names.CONSUMER_GROUP: "g",
        names.BATCH_MESSAGE_COUNT: 3,
    }
    assert backend.counts(names.CONSUMED_MESSAGES, "receive") == {"": 3}
    assert backend.counts(names.OPERATION_DURATION, "receive") == {"": 1}


async def test_a_poll_of_two_topics_is_a_span_of_each(
    cluster: MemoryCluster, broker: MemoryBroker, backend: Backend
) -> None:
    broker.create("trains", 4)
    consumer = AsyncPullConsumer("g", namesrv=NAMESRV, transport=cluster)
    async with producer(cluster) as sender, backend.instrument(consumer):
        for topic, count in (("flights", 2), ("trains", 1)):
            await sender.send_batch([Message(topic, b"x")] * count)
        queues = [
            *await consumer.fetch_message_queues("flights"),
            *await consumer.fetch_message_queues("trains"),
        ]
        consumer.assign(queues)
        await consumer.seek_to_begin()
        unread = consumer._running().unread
        await until(lambda: sum(map(len, unread._unread.values())) == 3)
        assert len(await consumer.poll()) == 3
    assert sorted(span.name for span in backend.spans()) == ["receive flights", "receive trains"]
    sizes = {
        point.attributes[names.TOPIC]: point.value
        for point in backend.points(names.CONSUMED_MESSAGES)
    }
    assert sizes == {"flights": 2, "trains": 1}


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


def test_a_traced_message_is_otherwise_the_given_one() -> None:
    given = Message(TOPIC, b"b", tag="T", keys="k", flag=3, message_group="g", wait_store_ok=False)
    traced = given.with_properties({"traceparent": "00"})
    assert traced.size == given.size + len("traceparent00")
    for slot in set(Message.__slots__) - {"properties", "size"}:
        assert getattr(traced, slot) == getattr(given, slot), slot
    assert (given.properties, traced.properties) == ({}, {"traceparent": "00"})
