"""Pop over real processes: long polls, invalid requests, and acks across kill -9."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from aerobee.broker.v1 import pop_pb2

from aerobee_wire import properties as props
from aerobee_wire.record import iter_records
from aerobee_wire.status import Code, MqError
from support.broker.calls import BrokerCaller
from support.clock.polling import until
from support.processes.service import broker_process


@dataclass(frozen=True)
class Leased:
    body: bytes
    attempt: int
    lease: pop_pb2.Lease


async def pop(caller: BrokerCaller, topic: str = "t", **fields: Any) -> list[Leased]:
    fields = {"invisible_duration_ms": 30_000, **fields}
    request = pop_pb2.PopRequest(consumer_group="g", topic=topic, **fields)
    answer = await caller.call(caller.pops.Pop, request)
    expires = answer.pop_time_ms + answer.invisible_duration_ms
    records = list(iter_records(answer.records))
    assert len(records) == answer.message_count
    return [
        Leased(
            record.body,
            attempt,
            pop_pb2.Lease(
                consumer_group="g",
                topic=topic,
                queue_id=record.queue_id,
                queue_offset=record.queue_offset,
                lease_id=answer.lease_id,
                expires_timestamp_ms=expires,
            ),
        )
        for record, attempt in zip(records, answer.delivery_attempts, strict=True)
    ]


async def ack(caller: BrokerCaller, messages: list[Leased]) -> list[int]:
    request = pop_pb2.AckRequest(leases=[message.lease for message in messages])
    response = await caller.call(caller.pops.Ack, request)
    return [result.code for result in response.results]


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[BrokerCaller]:
    """Of a broker with a topic t of one queue."""
    with broker_process(tmp_path) as broker:
        async with BrokerCaller(broker.address) as caller:
            await caller.put_topic("t")
            yield caller


async def test_acks_survive_kill_9(tmp_path: Path) -> None:
    """Consumers pop and acknowledge while the broker is killed, three times."""
    settled: set[bytes] = set()
    unsure: set[bytes] = set()  # the answer to their acknowledgement was lost
    sent = {b"%d" % number for number in range(3_000)}
    again: list[bytes] = []

    async def consume(caller: BrokerCaller) -> None:
        while True:
            try:
                got = await pop(
                    caller, max_messages=8, invisible_duration_ms=2_000, poll_duration_ms=1_000
                )
            except grpc.aio.AioRpcError:
                return
            again.extend(message.body for message in got if message.body in settled)
            try:
                codes = await ack(caller, got) if got else []
            except grpc.aio.AioRpcError:
                unsure.update(message.body for message in got)
                return
            settled.update(
                message.body
                for message, code in zip(got, codes, strict=True)
                if code == Code.SUCCESS
            )

    with broker_process(tmp_path) as broker:
        async with BrokerCaller(broker.address) as caller:
            await caller.put_topic("t", queues=2)
            for queue_id in range(2):
                bodies = [body for body in sorted(sent) if int(body) % 2 == queue_id]
                await caller.send_batch("t", bodies, queue_id)
        for kill in range(3):
            async with BrokerCaller(broker.address) as caller:
                consumers = [asyncio.create_task(consume(caller)) for _ in range(4)]
                enough = 600 * (kill + 1)
                await until(partial(_reached, settled, enough), f"{enough} are settled")
                broker.kill()
                await asyncio.gather(*consumers)
            broker.start()
        async with BrokerCaller(broker.address) as caller:
            consumers = [asyncio.create_task(consume(caller)) for _ in range(4)]
            await until(lambda: settled | unsure >= sent, "all are settled")
            for consumer in consumers:
                consumer.cancel()
            await asyncio.wait(consumers)
            assert await pop(caller) == []
    assert len(unsure) <= 3 * 4 * 8
    assert again == [], "redelivered after its acknowledgement"


async def test_the_order_of_a_fifo_topic_survives_kill_9(tmp_path: Path) -> None:
    """In a group that nobody has created, and for a consumer that does not ask for order."""
    with broker_process(tmp_path) as broker:
        async with BrokerCaller(broker.address) as caller:
            await caller.put_topic("t", message_type="FIFO")
            for body in (b"a1", b"a2", b"b1", b"a3"):
                properties = {props.SHARDING_KEY: body[:1].decode()}
                await caller.send("t", body, properties=properties)
            a1, b1 = await pop(caller)
            assert (a1.body, b1.body) == (b"a1", b"b1")
        broker.kill()
        broker.start()
        async with BrokerCaller(broker.address) as caller:
            assert await pop(caller) == []
            assert await ack(caller, [a1]) == [Code.SUCCESS]
            assert [message.body for message in await pop(caller)] == [b"a2"]


def _reached(settled: set[bytes], count: int) -> bool:
    return len(settled) >= count


async def test_a_parked_pop_gets_arrivals_and_redeliveries(caller: BrokerCaller) -> None:
    waiting = asyncio.create_task(pop(caller, poll_duration_ms=20_000))
    await asyncio.sleep(0.2)
    await caller.send("t", b"1")
    (got,) = await waiting
    waiting = asyncio.create_task(pop(caller, poll_duration_ms=20_000))
    await asyncio.sleep(0.2)
    change = pop_pb2.InvisibleChange(lease=got.lease, invisible_duration_ms=100)
    request = pop_pb2.ChangeInvisibleDurationRequest(changes=[change])
    (result,) = (await caller.call(caller.pops.ChangeInvisibleDuration, request)).results
    assert (result.code, result.invisible_duration_ms) == (Code.SUCCESS, 100)
    (again,) = await waiting
    assert (again.body, again.attempt) == (b"1", 2)
    assert await ack(caller, [got, again]) == [Code.INVALID_RECEIPT_HANDLE, Code.SUCCESS]


async def test_an_invalid_pop_is_refused(caller: BrokerCaller) -> None:
    for code, fields in (
        (Code.TOPIC_NOT_EXIST, {"topic": "unknown"}),
        (Code.INVALID_PARAMETER, {"max_messages": 33}),
        (Code.INVALID_PARAMETER, {"queue_id": 1}),
        (Code.INVALID_PARAMETER, {"invisible_duration_ms": 43_200_001}),
        (Code.INVALID_PARAMETER, {"poll_duration_ms": -1}),
        (Code.INVALID_PARAMETER, {"start": 9}),
    ):
        with pytest.raises(MqError) as raised:
            await pop(caller, **fields)
        assert raised.value.code is code, fields


async def test_sigterm_ends_parked_pops(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        async with BrokerCaller(broker.address) as caller:
            await caller.put_topic("t")
            waiting = asyncio.create_task(pop(caller, poll_duration_ms=30_000))
            await asyncio.sleep(0.3)
            assert await asyncio.to_thread(broker.stop) == 0
            assert await waiting == []
