"""Spans of a simple consumer: how long its receives and settlements took, in virtual time."""

from __future__ import annotations

import asyncio

from aerobee_client.message import Message
from aerobee_client.observing import otel_attributes as names
from aerobee_client.producer import AsyncProducer
from aerobee_wire.status import Code
from support.client.leasing import LEASE, NAMESRV, TOPIC, Leasing, seconds
from support.clock.virtual_loop import LoopClock
from support.codes import raises_code
from support.observing.otel_backend import Backend, attributes, context_of, duration_s, linked


async def test_a_receive_lasts_until_its_messages_come(leasing: Leasing) -> None:
    backend = Backend()
    consumer = backend.instrument(await leasing.started())
    async with AsyncProducer(
        "p", namesrv=NAMESRV, transport=leasing.transport, clock=LoopClock()
    ) as producer:
        backend.instrument(producer)
        queue = (await producer.queues(TOPIC))[0]
        with backend.tracer().start_as_current_span("a worker") as worker:
            receiving = asyncio.create_task(consumer.receive(32, LEASE, seconds(20)))
        await asyncio.sleep(3)
        await producer.send_batch([Message(TOPIC, b"1"), Message(TOPIC, b"2")], queue=queue)
        first, second = await receiving
        await consumer.ack([first])
        await asyncio.sleep(LEASE.total_seconds())
        with raises_code(Code.INVALID_RECEIPT_HANDLE):
            await consumer.dead_letter(second, "too late")
    sent = [context_of(span).span_id for span in backend.spans(f"send {TOPIC}")]
    (received,) = backend.spans(f"receive {TOPIC}")
    assert 3 <= duration_s(received) < 4
    assert received.parent == worker.get_span_context()
    assert linked(received) == sent
    assert attributes(received)[names.BATCH_MESSAGE_COUNT] == 2
    (settled,) = backend.spans(f"ack {TOPIC}")
    assert linked(settled) == sent[:1] and duration_s(settled) >= 0
    assert attributes(settled)[names.OPERATION_TYPE] == "settle"
    assert attributes(settled)[names.MESSAGE_ID] == first.message_id
    (refused,) = backend.spans(f"dead_letter {TOPIC}")
    assert attributes(refused)[names.ERROR_TYPE] == "INVALID_RECEIPT_HANDLE"
    assert backend.counts(names.CONSUMED_MESSAGES, "receive") == {"": 2}
    duration = names.OPERATION_DURATION
    assert backend.counts(duration, "receive") == backend.counts(duration, "ack") == {"": 1}
    assert backend.counts(duration, "dead_letter") == {"INVALID_RECEIPT_HANDLE": 1}
    backend.shutdown()
