"""The traces of `enable_trace` in a real broker, as a reader of RocketMQ's format finds them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from aerobee_client import (
    AdminClient,
    AsyncAdminClient,
    AsyncProducer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    ConsumeFromWhere,
    Message,
    MqError,
    ReceivedMessage,
    TransactionResolution,
)
from support.clock.polling import until
from support.processes.service import namesrv_and_broker

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
# The fields of each record behind its type, in the order in which RocketMQ's encoder writes them.
FIELDS = {
    "Pub": (
        "timestamp regionId group topic msgId tags keys storeHost bodyLength costTime msgType "
        "offsetMsgId success"
    ),
    "SubBefore": "timestamp regionId group requestId msgId retryTimes keys",
    "SubAfter": "requestId msgId costTime success keys contextCode timestamp group",
    "EndTransaction": (
        "timestamp regionId group topic msgId tags keys storeHost msgType transactionId state "
        "fromCheck"
    ),
    "Recall": "timestamp regionId group topic msgId success",
}
NORMAL, HALF, COMMIT, DELAYED = "0", "1", "2", "3"
SUCCESS, EXCEPTION = "0", "2"


class Trace(NamedTuple):
    kind: str
    fields: dict[str, str]
    keys: tuple[str, ...]  # of the message that has it


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of a name server and a broker that has the topic of traces."""
    path = tmp_path_factory.mktemp("suite")
    enabled = ("--set", "traceTopicEnable=true")
    with namesrv_and_broker(path, *enabled) as (namesrv, broker):
        yield namesrv.address, broker.address


async def traces(namesrv: str) -> list[Trace]:
    """Decode all messages of the topic."""
    found: list[Trace] = []
    async with AsyncAdminClient(namesrv) as admin:
        for queue in await admin.topic_status(TRACE_TOPIC):
            at = 0
            while at < queue.max_offset:
                page = await admin.browse(TRACE_TOPIC, queue.broker_name, queue.queue_id, at)
                for message in page.messages():
                    records = message.body.decode().split("\x02")
                    assert records.pop() == "", "each record has an end"
                    for record in records:
                        kind, *values = record.split("\x01")
                        names = FIELDS[kind].split()
                        fields = dict(zip(names, values, strict=True))
                        found.append(Trace(kind, fields, message.keys))
                at = page.next_begin_offset
    return found


def of(found: list[Trace], kind: str, message_id: str) -> list[dict[str, str]]:
    matching = [each for each in found if each.kind == kind and each.fields["msgId"] == message_id]
    for each in matching:
        keys = each.fields.get("keys", "")
        assert {message_id, *keys.split()} <= set(each.keys), "it is found by id and key"
    return [each.fields for each in matching]


async def test_sends_recalls_and_transactions_are_traced(cluster: tuple[str, str]) -> None:
    namesrv, broker = cluster
    async with AsyncProducer("shop", namesrv=namesrv, enable_trace=True) as producer:
        plain = await producer.send(
            Message("orders", b"17 apples", tag="fruit", keys=["order-17", "customer-5"])
        )
        later = await producer.send(Message("orders", b"later", delay=timedelta(hours=1)))
        assert await producer.recall("orders", later.recall_handle) == later.message_id
        batch = await producer.send_batch([Message("orders", b"%d" % n) for n in range(3)])
        with pytest.raises(MqError):
            await producer.send(Message("orders", b"x" * ((4 << 20) + 1), keys="too-large"))

    def check(_: ReceivedMessage) -> TransactionResolution:
        return TransactionResolution.UNKNOWN

    async with (
        AsyncTransactionProducer("payments", check, namesrv=namesrv, enable_trace=True) as payments,
        payments.transaction(Message("orders", b"paid", keys="order-18")) as paid,
    ):
        pass

    found = await traces(namesrv)
    [pub] = of(found, "Pub", plain.message_id)
    assert int(pub.pop("timestamp")) > 1_700_000_000_000 and int(pub.pop("costTime")) >= 0
    assert pub == {
        "regionId": "DefaultRegion",
        "group": "shop",
        "topic": "orders",
        "msgId": plain.message_id,
        "tags": "fruit",
        "keys": "order-17 customer-5",
        "storeHost": broker,
        "bodyLength": "9",
        "msgType": NORMAL,
        "offsetMsgId": plain.offset_message_id,
        "success": "true",
    }
    assert [each["msgType"] for each in of(found, "Pub", later.message_id)] == [DELAYED]
    [recall] = of(found, "Recall", later.message_id)
    assert (recall["topic"], recall["group"], recall["success"]) == ("orders", "shop", "true")
    assert all(len(of(found, "Pub", each.message_id)) == 1 for each in batch)
    [failed] = [each for each in found if each.fields.get("success") == "false"]
    assert (failed.fields["keys"], failed.keys) == ("too-large", failed.keys)
    assert "too-large" in failed.keys

    [half] = of(found, "Pub", paid.message_id)
    assert (half["msgType"], half["group"]) == (HALF, "payments")
    [end] = of(found, "EndTransaction", paid.message_id)
    assert (end["state"], end["fromCheck"], end["msgType"]) == ("COMMIT_MESSAGE", "false", COMMIT)
    assert (end["transactionId"], end["keys"]) == (paid.message_id, "order-18")
    assert (end["topic"], end["storeHost"]) == ("orders", broker)


async def test_listener_calls_are_traced(cluster: tuple[str, str]) -> None:
    namesrv, _ = cluster
    calls: list[int] = []

    def listen(message: ReceivedMessage) -> None:
        calls.append(message.reconsume_times)
        if not message.reconsume_times:
            raise LookupError("no such seat")

    async with AsyncAdminClient(namesrv) as admin:
        await admin.create_topic("seats", queues=1)
        await admin.create_group("booking", retry_delays=[timedelta(milliseconds=100)])
    async with AsyncProducer(namesrv=namesrv) as producer:
        sent = await producer.send(Message("seats", b"17A", keys="seat-17A"))
    consumer = AsyncPushConsumer(
        "booking",
        listen,
        namesrv=namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        enable_trace=True,
    )
    consumer.subscribe("seats")
    async with consumer:
        await until(lambda: len(calls) == 2, "it was delivered again", timeout_s=60)

    found = await traces(namesrv)
    before = of(found, "SubBefore", sent.message_id)
    after = {each["requestId"]: each for each in of(found, "SubAfter", sent.message_id)}
    assert [each["retryTimes"] for each in before] == ["0", "1"]
    ends = [after[each["requestId"]] for each in before]
    assert [each["contextCode"] for each in ends] == [EXCEPTION, SUCCESS]
    assert [each["success"] for each in ends] == ["false", "true"]
    for each in (*before, *ends):
        assert (each["group"], each["keys"]) == ("booking", "seat-17A")
        assert int(each["timestamp"]) > 1_700_000_000_000
    with AdminClient(namesrv) as plain:
        found_by_key = plain.query_messages(TRACE_TOPIC, key="seat-17A")
    assert found_by_key, "mqadmin's query by key finds it"


async def test_a_broker_without_the_topic_fails_no_send(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with namesrv_and_broker(tmp_path, "--set", "autoCreateTopicEnable=false") as (namesrv, _):
        async with AsyncAdminClient(namesrv.address) as admin:
            await admin.create_topic("orders", queues=1)
        async with AsyncProducer(namesrv=namesrv.address, enable_trace=True) as producer:
            assert (await producer.send(Message("orders", b"x"))).message_id
            traced = producer._traces
    assert traced is not None and traced.dropped == 1
    assert "traceTopicEnable" in caplog.text
