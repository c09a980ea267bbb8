"""Draining: what a broker that drains still does, and what has yet to leave it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aerobee_broker.delivery.retry.send_back import Entry
from aerobee_wire import properties as props
from aerobee_wire.route import READ, READ_WRITE
from aerobee_wire.status import Code, MqError
from support.broker.harness import Begin, BrokerHarness
from support.broker.transactions import half
from support.codes import raises_code

SOON = {props.DELAY: "1"}  # one second


async def refusal(harness: BrokerHarness, topic: str) -> Code:
    with pytest.raises(MqError) as caught:
        await harness.send(topic, b"late")
    return caught.value.code


async def test_producers_are_refused_and_topics_registered_without_write_permission(
    harness: BrokerHarness,
) -> None:
    await harness.send("t", b"early")
    assert harness.broker.permission.bits() == READ_WRITE
    announced = len(harness.announced)
    assert await harness.broker.draining.put(True) == (True, [])
    assert len(harness.announced) == announced + 1
    assert harness.tables.topics.changed_keys(harness.tables.topics.revision - 1) is None
    assert harness.broker.permission.bits() == READ
    assert await refusal(harness, "t") is Code.NO_PERMISSION
    assert await refusal(harness, "new") is Code.NO_PERMISSION
    assert "new" not in harness.tables.topics
    assert await harness.broker.draining.put(True) == (False, [])
    assert await harness.broker.draining.put(False) == (True, [])
    await harness.send("t", b"again")
    assert await harness.bodies("t", range(4)) == [b"early", b"again"]


async def test_name_servers_that_cannot_be_notified_are_named(harness: BrokerHarness) -> None:
    harness.unreachable = ["n2:9876"]
    assert await harness.broker.draining.put(True) == (True, ["n2:9876"])
    assert await refusal(harness, "t") is Code.NO_PERMISSION


async def test_draining_that_could_not_be_saved_begins_with_the_next_call(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = harness.tables.saved_drain
    with monkeypatch.context() as patch:
        patch.setattr(saved, "save", failing)
        with raises_code(Code.SYSTEM_ERROR):
            await harness.broker.draining.put(True)
    await harness.send("t", b"before it begins")
    announced = len(harness.announced)
    assert await harness.broker.draining.put(True) == (True, [])
    assert len(harness.announced) == announced + 1, "the name servers are told"
    assert await refusal(harness, "t") is Code.NO_PERMISSION


async def test_a_broker_waits_for_its_producers_before_a_stop(begin: Begin) -> None:
    harness = await begin()
    await harness.send("t", b"early")
    announced = len(harness.announced)
    moving = asyncio.create_task(harness.broker.draining.move_producers())
    for _ in range(3):
        await asyncio.sleep(1.5)
        assert await refusal(harness, "t") is Code.NO_PERMISSION
        assert not moving.done(), "a producer has not moved"
    await moving
    assert len(harness.announced) == announced + 1
    assert harness.broker.permission.bits() == READ
    assert await harness.bodies("t", range(4)) == [b"early"]
    assert harness.tables.drain.will_return
    again = await begin()
    await again.send("t", b"after the restart")
    assert again.tables.drain.since_ms == 0


async def test_producers_are_refused_before_a_stop_though_a_disk_fails(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.send("t", b"early")
    monkeypatch.setattr(harness.tables.saved_topics, "save", failing)
    await harness.broker.draining.move_producers()
    assert await refusal(harness, "t") is Code.NO_PERMISSION


async def failing() -> None:
    raise MqError(Code.SYSTEM_ERROR, "no room")


async def test_draining_survives_a_restart(tmp_path: Path) -> None:
    harness = await BrokerHarness.begin(tmp_path)
    await harness.broker.draining.put(True)
    since_ms = harness.tables.drain.since_ms
    harness.store.close()  # no clean stop: it was durable before
    again = await BrokerHarness.begin(tmp_path)
    assert again.tables.drain.since_ms == since_ms > 0
    assert await refusal(again, "t") is Code.NO_PERMISSION
    await again.end()


async def test_what_remains_is_counted_until_it_is_gone(harness: BrokerHarness) -> None:
    await harness.group("g")
    await harness.send("t", b"one", b"two")
    await harness.send("unread", b"nobody")
    await harness.send("t", b"soon", properties=SOON)
    await half(harness, b"half")
    offsets = harness.tables.offsets
    offsets.commit("g", "t", 0, 1)
    await harness.broker.draining.put(True)

    remaining = await harness.broker.draining.remaining()
    assert remaining.draining_since_ms == harness.tables.drain.since_ms
    assert remaining.lags == [("g", "t", 1)]
    assert sum(remaining.delayed_messages.values()) == 1
    assert remaining.half_messages == {"t": 1}
    assert remaining.unread_topics == {"unread": 1}
    assert remaining.dead_letters == {}

    (record,) = await harness.read("t", 0, 1)
    entry = Entry(record.physical_offset, delay_level=-1)
    await harness.broker.sending.send_back.send_back("g", [entry])
    offsets.commit("g", "t", 0, 2)
    remaining = await harness.broker.draining.remaining()
    assert remaining.lags == []
    assert remaining.dead_letters == {"%DLQ%g": 1}
