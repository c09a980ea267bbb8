"""Batches: stored in columns as they came, refused as a whole, rules only where asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee_broker.delivery.send.batch import SendBatch
from aerobee_wire import properties as props
from aerobee_wire.status import Code
from support.broker.harness import BORN_HOST, BrokerHarness
from support.codes import raises_code


def of_bodies(*bodies: bytes, topic: str = "t", **fields: Any) -> SendBatch:
    batch: dict[str, Any] = {
        "topic": topic,
        "queue_id": 0,
        "body_sizes": [len(body) for body in bodies],
        "bodies": b"".join(bodies),
        "born_host": BORN_HOST,
    }
    return SendBatch(**{**batch, **fields})


def of_properties(*each: dict[str, str], **fields: Any) -> SendBatch:
    encoded = [props.encode(properties) for properties in each]
    return of_bodies(
        *[b"body"] * len(each),
        properties_sizes=list(map(len, encoded)),
        properties=b"".join(encoded),
        **fields,
    )


async def test_a_batch_is_stored_in_order_with_its_flags(harness: BrokerHarness) -> None:
    stored = await harness.broker.sending.batch_sender.send(
        of_bodies(b"a", b"bb", b"ccc", flags=[1, -2, 3])
    )
    records = await harness.read("t")
    assert [record.body for record in records] == [b"a", b"bb", b"ccc"]
    assert [record.flag for record in records] == [1, -2, 3]
    assert stored.physical_offsets == [record.physical_offset for record in records]
    assert (stored.queue_id, stored.first_queue_offset) == (0, 0)


async def test_properties_of_a_batch_are_stored_as_they_came(harness: BrokerHarness) -> None:
    given = {"UNIQ_KEY": "1", "TAGS": "a", "x": "y"}
    await harness.broker.sending.batch_sender.send(
        of_properties(given, {"TAGS": "b", "UNIQ_KEY": "2"})
    )
    records = await harness.read("t")
    assert records[0].raw_properties == props.encode(given)
    assert records[1].unique_message_id == "2"


async def test_a_batch_gets_its_missing_unique_ids(harness: BrokerHarness) -> None:
    # "NOT_UNIQ_KEY" ends like the name, and a value holds it.
    given = [{"TAGS": "a"}, {"NOT_UNIQ_KEY": "x"}, {}, {"a": "UNIQ_KEY"}]
    await harness.broker.sending.batch_sender.send(of_properties(*given))
    records = await harness.read("t")
    assert len({record.unique_message_id for record in records}) == 4
    assert all(len(record.unique_message_id) == 32 for record in records)
    assert [
        {name: value for name, value in record.properties.items() if name != "UNIQ_KEY"}
        for record in records
    ] == given


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (of_bodies(), Code.INVALID_PARAMETER),
        (of_bodies(b"a", b""), Code.MESSAGE_ILLEGAL),
        (of_bodies(b"a", b"b" * 4_097), Code.MESSAGE_ILLEGAL),
        (of_bodies(b"ab", body_sizes=[1]), Code.INVALID_PARAMETER),
        (of_bodies(b"a", flags=[1, 2]), Code.INVALID_PARAMETER),
        (of_bodies(b"a", properties_sizes=[2], properties=b"x"), Code.INVALID_PARAMETER),
        (of_bodies(b"a", properties_sizes=[2], properties=b"\xff\x01"), Code.MESSAGE_ILLEGAL),
        (of_bodies(b"a", topic="%RETRY%g"), Code.MESSAGE_ILLEGAL),
        (of_bodies(b"a", sys_flag=8), Code.NO_PERMISSION),
        (of_bodies(b"a", queue_id=9), Code.QUEUE_NOT_EXIST),
        (of_properties({"TRAN_MSG": "true"}), Code.NO_PERMISSION),
        (of_properties({"a": "b"}, {"TIMER_DELAY_MS": "x"}), Code.MESSAGE_ILLEGAL),
    ],
)
async def test_a_refused_batch_stores_nothing(
    harness: BrokerHarness, batch: SendBatch, code: Code
) -> None:
    with raises_code(code):
        await harness.broker.sending.batch_sender.send(batch)
    assert await harness.bodies("t") == []


async def test_only_the_delayed_message_of_a_batch_waits(harness: BrokerHarness) -> None:
    await harness.broker.sending.batch_sender.send(
        of_properties({"a": "1"}, {"DELAY": "1"}, {"a": "2"})
    )
    assert len(await harness.bodies("t")) == 2
    assert harness.broker.delay.levels.undelivered() == {"level 1 (1 s)": 1}


async def test_a_timed_message_of_a_batch_waits_for_its_time(harness: BrokerHarness) -> None:
    batch = of_properties({"a": "1"}, {"TIMER_DELAY_MS": "1500", "a": "2"})
    await harness.broker.sending.batch_sender.send(batch)
    assert len(await harness.bodies("t")) == 1
    await asyncio.sleep(1.501)
    assert [record.properties["a"] for record in await harness.read("t")] == ["1", "2"]
