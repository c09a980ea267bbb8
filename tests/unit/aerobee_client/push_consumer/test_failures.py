"""Messages that are not consumed: retries, dead letters, timeouts, refusals of the broker."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from aerobee.broker.v1 import message_pb2

from aerobee_client.consume_result import ConsumeResult, DeadLetter, ReconsumeLater
from aerobee_client.consuming import concurrent_consumption
from aerobee_client.consuming.failure_details import this_consumer
from aerobee_client.message import ReceivedMessage
from aerobee_wire import properties, record
from aerobee_wire.status import Code, MqError
from support.client.consumer_group import DEAD, RETRY, TOPIC, Join, committed, fill
from support.client.memory import STORE_TIME_MS, MemoryBroker, MemoryCluster
from support.clock.polling import until


async def test_a_retry_has_its_reason_and_its_origin_topic(
    broker: MemoryBroker, join: Join
) -> None:
    fill(broker, 1, KEYS="UA1545")
    seen: list[ReceivedMessage] = []

    def listen(message: ReceivedMessage) -> None:
        seen.append(message)
        if message.reconsume_times == 0:
            raise ValueError("no arrival time")

    await join(listen)
    await until(lambda: len(seen) == 2)
    retried = seen[1]
    assert (retried.topic, retried.stored_topic, retried.reconsume_times) == (TOPIC, RETRY, 1)
    assert retried.keys == ("UA1545",)
    (stored,) = broker.messages(RETRY)
    assert stored.properties["DLQ_REASON"] == "ValueError"
    assert stored.properties["DLQ_REASON_DESCRIPTION"] == "no arrival time"


async def test_message_is_dead_lettered_after_its_attempts(
    broker: MemoryBroker, join: Join
) -> None:
    broker.max_reconsume_times = 2
    fill(broker, 5)
    attempts: Counter[bytes] = Counter()

    def listen(message: ReceivedMessage) -> ConsumeResult:
        attempts[message.body] += 1
        return ConsumeResult.RECONSUME_LATER

    await join(listen)
    await until(lambda: len(broker.messages(DEAD)) == 5)
    assert set(attempts.values()) == {3}


async def test_a_listener_may_choose_delay_level_or_dead_letter(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    fill(broker, 2)

    def listen(message: ReceivedMessage) -> None:
        if message.reconsume_times:
            return
        if message.body == b"0":
            raise ReconsumeLater("busy", delay_level=5)
        raise DeadLetter("hopeless")

    await join(listen)
    await until(lambda: broker.messages(DEAD))
    await until(lambda: broker.messages(RETRY))
    entries = [entry for request in cluster.requests("SendBack") for entry in request.entries]
    assert {entry.delay_level for entry in entries} == {5, -1}
    assert [record.body for record in broker.messages(DEAD)] == [b"1"]


async def test_waiting_failures_are_sent_back_in_batches(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    fill(broker, 200)
    consumer = await join(lambda message: ConsumeResult.DEAD_LETTER)
    await until(lambda: len(broker.messages(DEAD)) == 200)
    assert len(cluster.requests("SendBack")) < 100
    await consumer.close()
    assert committed(broker) == 200


async def test_a_message_that_cannot_be_sent_back_is_consumed_again(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent_consumption, "CONSUME_AGAIN_S", 0.01)

    cluster.answers["SendBack"] = MqError(Code.NO_PERMISSION, "the broker is not writable")
    fill(broker, 1)
    times: list[int] = []

    def listen(message: ReceivedMessage) -> None:
        times.append(message.reconsume_times)
        if len(times) < 3:
            raise ValueError("not yet")

    consumer = await join(listen)
    await until(lambda: len(times) == 3)
    await consumer.close()
    assert times == [0, 1, 2]
    assert committed(broker) == 1
    assert not broker.messages(RETRY)


async def test_consume_timeout_sends_the_message_back(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    fill(broker, 1)
    seen: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.reconsume_times)
        if not message.reconsume_times:
            await asyncio.Event().wait()

    consumer = await join(listen, consume_timeout=timedelta(milliseconds=50))
    await until(lambda: seen == [0, 1])
    ((entry,),) = [request.entries for request in cluster.requests("SendBack")]
    assert (entry.delay_level, entry.failure.reason) == (3, "ConsumeTimeout")
    await consumer.close(timedelta(milliseconds=10))
    assert committed(broker) == 1


async def test_sending_back_after_a_timeout_is_retried(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    fill(broker, 1)
    seen: list[int] = []
    refusals = 2

    def refuse(address: str, request: Any) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals < 0:
            del cluster.answers["SendBack"]
        else:
            raise MqError(Code.SYSTEM_BUSY, "the disk does not keep up")

    cluster.answers["SendBack"] = refuse

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.reconsume_times)
        if not message.reconsume_times:
            await asyncio.Event().wait()

    consumer = await join(listen, consume_timeout=timedelta(milliseconds=50))
    await until(lambda: seen == [0, 1])
    assert refusals < 1
    await consumer.close(timedelta(milliseconds=10))
    assert committed(broker) == 1


@pytest.mark.parametrize("code", [Code.SYSTEM_ERROR, Code.MESSAGE_CORRUPTED])
async def test_without_a_record_the_copy_is_sent_to_the_retry_topic(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join, code: Code
) -> None:
    """The record expired or was damaged while the listener ran: the broker cannot copy it."""
    cluster.answers["SendBack"] = lambda _, request: message_pb2.SendBackResponse(
        results=[{"code": int(code), "message": "no such record"} for _ in request.entries]
    )
    body = zlib.compress(b"body")
    broker.append(
        TOPIC,
        0,
        body,
        properties.encode({"UNIQ_KEY": "U1", "KEYS": "k", "TRAN_MSG": "true", "DELAY": "1"}),
        flag=7,
        sys_flag=record.COMPRESSED,
    )
    (first,) = broker.messages(TOPIC)
    seen: list[ReceivedMessage] = []

    def listen(message: ReceivedMessage) -> None:
        seen.append(message)
        if len(seen) == 1:
            raise ValueError("not\x02yet")

    consumer = await join(listen, max_reconsume_times=5)
    await until(lambda: len(seen) == 2)
    await consumer.close()
    assert committed(broker) == 1
    (sent,) = [request.messages[0] for request in cluster.requests("Send")]
    assert (sent.topic, sent.body, sent.flag, sent.reconsume_times) == (RETRY, body, 7, 1)
    assert sent.sys_flag == record.COMPRESSED
    assert (sent.born_timestamp_ms, sent.born_host) == (STORE_TIME_MS, broker.address)
    properties_sent = dict(sent.properties)
    assert properties_sent.pop("DLQ_CONSUMER") == this_consumer()
    assert "in listen" in properties_sent.pop("DLQ_STACK_TRACE")
    assert properties_sent == {
        "UNIQ_KEY": "U1",
        "KEYS": "k",
        "TRAN_MSG": "true",
        "RETRY_TOPIC": TOPIC,
        "ORIGIN_MESSAGE_ID": first.offset_message_id,
        "DLQ_REASON": "ValueError",
        "DLQ_REASON_DESCRIPTION": "not yet",
        "MAX_RECONSUME_TIMES": "5",
        "DELAY": "3",
    }
    assert seen[1].topic == TOPIC and seen[1].origin_message_id == first.offset_message_id


async def test_without_a_record_a_message_can_be_dead_lettered(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    cluster.answers["SendBack"] = lambda _, request: message_pb2.SendBackResponse(
        results=[{"code": 1, "message": "no such record"} for _ in request.entries]
    )
    fill(broker, 1)
    await join(lambda message: ConsumeResult.DEAD_LETTER if not message.reconsume_times else None)
    await until(lambda: cluster.requests("Send"))
    (sent,) = [request.messages[0] for request in cluster.requests("Send")]
    assert sent.reconsume_times > int(sent.properties["MAX_RECONSUME_TIMES"])
