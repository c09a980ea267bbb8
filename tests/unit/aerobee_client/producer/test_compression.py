"""Bodies that a producer compresses, and what a consumer is shown of them."""

from __future__ import annotations

import asyncio
import random
import sys
from datetime import timedelta
from typing import Any

import pytest

from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.producer import AsyncProducer
from aerobee_wire.compression import SYS_FLAGS
from aerobee_wire.record import Record
from aerobee_wire.status import Code
from support.client.memory import MemoryBroker, MemoryCluster
from support.client.producing import TOPIC, producer
from support.codes import raises_code

LONG = b"flight " * 1_000
NOISE = random.Random(1).randbytes(7_000)  # does not shrink
METHODS = tuple(SYS_FLAGS)


def stored(broker: MemoryBroker) -> list[Record]:
    return sorted(broker.messages(TOPIC), key=lambda record: record.physical_offset)


@pytest.mark.parametrize("method", METHODS)
async def test_every_way_of_sending_compresses(
    cluster: MemoryCluster, broker: MemoryBroker, method: str
) -> None:
    async with producer(cluster, compression=method) as sender:
        message = Message(TOPIC, LONG, tag="T", keys="k", properties={"a": "b"}, flag=7)
        sent = await sender.send(message)
        await sender.send(message, accumulate=False)
        await sender.send_async(message)
        await sender.send_async(message, accumulate=False)
        await sender.send_oneway(message, accumulate=False)
        await sender.send_oneway(message)
        await sender.send_batch([message, Message(TOPIC, b"short")])
    assert message.body == LONG  # the caller's own is as it was
    found = [ReceivedMessage(record) for record in stored(broker)]
    assert sent.message_id in {each.message_id for each in found}
    assert sorted(each.body for each in found) == [LONG] * 7 + [b"short"]
    for each in found:
        if each.body == LONG:
            assert (each.sys_flag, each.tag, each.keys) == (SYS_FLAGS[method], "T", ("k",))
            assert each.properties["a"] == "b" and len(each.stored_body) < 1_000


@pytest.mark.parametrize(
    ("body", "settings", "is_compressed"),
    [
        (LONG, {}, False),
        (LONG, {"compression": None}, False),
        (LONG[:4_095], {"compression": "zlib"}, False),
        (LONG[:4_096], {"compression": "zlib"}, True),
        (LONG[:99], {"compression": "zstd", "compress_over": 99}, True),
        (NOISE, {"compression": "zlib"}, False),
        (NOISE, {"compression": "lz4"}, False),
        (NOISE, {"compression": "zstd", "compression_level": 22}, False),
    ],
    ids=["by default", "None", "short", "long enough", "by option", "zlib", "lz4", "zstd"],
)
async def test_short_bodies_and_those_that_do_not_shrink_stay(
    cluster: MemoryCluster,
    broker: MemoryBroker,
    body: bytes,
    settings: dict[str, Any],
    is_compressed: bool,
) -> None:
    async with producer(cluster, **settings) as sender:
        await sender.send(Message(TOPIC, body))
    (record,) = stored(broker)
    assert (record.sys_flag != 0, record.body != body) == (is_compressed, is_compressed)
    assert ReceivedMessage(record).body == body


async def test_compressed_messages_travel_together_in_the_plain_form(
    cluster: MemoryCluster, broker: MemoryBroker
) -> None:
    async with producer(cluster, compression="zstd") as sender:
        await sender.queues(TOPIC)
        sends = [Message(TOPIC, body) for body in (LONG, b"short", LONG, b"short too")]
        await asyncio.gather(*map(sender.send, sends))
        await sender.send_batch(sends)
    requests = cluster.requests("Send")
    shapes = sorted((len(r.messages), len(r.batch.body_sizes)) for r in requests)
    assert shapes == [(0, 2), (0, 2), (2, 0), (2, 0)]


async def test_the_budget_gets_back_what_was_taken(cluster: MemoryCluster) -> None:
    """Counted by the bodies that callers gave, compressed or not."""
    async with producer(cluster, compression="zstd", max_pending_bytes=len(LONG)) as sender:
        for _ in range(5):
            await sender.send(Message(TOPIC, LONG), block=False)
            await sender.send_async(Message(TOPIC, LONG))
        with raises_code(Code.MESSAGE_ILLEGAL):
            await sender.send(Message(TOPIC, bytes(5 << 20)))  # its own size counts
        assert sender._budget.try_take(len(LONG))


@pytest.mark.parametrize(
    "settings",
    [
        {"compression": "gzip"},
        {"compression": "zlib", "compress_over": 0},
        {"compression": "zlib", "compression_level": 10},
        {"compression": "zstd", "compression_level": 0},
        {"compression": "zstd", "compression_level": 23},
    ],
)
def test_settings_out_of_bounds_are_refused(settings: dict[str, Any]) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        AsyncProducer("p", namesrv="n:1", send_timeout=timedelta(seconds=1), **settings)


def test_a_producer_without_the_extra_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with raises_code(Code.INVALID_PARAMETER, about="compression") as refusal:
        AsyncProducer("p", namesrv="n:1", compression="lz4")
    assert "aerobee-client[compression]" in refusal.value.message
