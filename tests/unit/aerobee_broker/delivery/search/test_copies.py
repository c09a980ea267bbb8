"""The copies of a message: as sent, as retry and as dead letter, and while it waits."""

from __future__ import annotations

import pytest

from aerobee_broker.delivery.retry.send_back import Entry
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.status import Code
from support.broker.harness import Begin, BrokerHarness
from support.codes import raises_code


@pytest.fixture
async def harness(begin: Begin) -> BrokerHarness:
    harness = await begin()
    await harness.broker.topics.put(TopicConfig("t", 1, 1))
    return harness


async def topics_of(harness: BrokerHarness, unique_id: str) -> list[str]:
    found = await harness.broker.consuming.copies.find(unique_id)
    return [record.topic for record in found.records]


async def test_retries_waiting_copies_and_dead_letters_are_found(harness: BrokerHarness) -> None:
    await harness.group("g", retry_max_times=1)
    [sent] = await harness.send("t", b"x", properties={"UNIQ_KEY": "U"})
    await harness.send("t", b"other", properties={"UNIQ_KEY": "V", "KEYS": "U"})
    assert await topics_of(harness, "U") == ["t"]
    entry = Entry(sent.physical_offset)
    await harness.broker.sending.send_back.send_back("g", [entry])
    assert await topics_of(harness, "U") == ["t", "SCHEDULE_TOPIC_XXXX"]
    dead = Entry(sent.physical_offset, delay_level=-1)
    await harness.broker.sending.send_back.send_back("g", [dead])
    assert await topics_of(harness, "U") == ["t", "SCHEDULE_TOPIC_XXXX", "%DLQ%g"]


async def test_an_unknown_id_has_no_copy(harness: BrokerHarness) -> None:
    assert await topics_of(harness, "unknown") == []
    with raises_code(Code.INVALID_PARAMETER):
        await topics_of(harness, "")


async def test_a_broker_without_an_index_refuses(begin: Begin) -> None:
    harness = await begin(messageIndexEnable=False)
    with raises_code(Code.ILLEGAL_OPERATION):
        await topics_of(harness, "U")
