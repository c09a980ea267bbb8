"""Messages that wait for a delay level, and with a time of their own: what holds for both."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aerobee_broker.errors import TransientReadError
from aerobee_broker.metadata.topics import TopicConfig
from support.broker.delayed import delayed, timed
from support.broker.harness import Begin, BrokerHarness, message
from support.broker.replicas import ScriptedReplicas

Wait = Callable[[BrokerHarness, bytes, str], Awaitable[object]]  # body, topic; waits a second


async def _by_level(harness: BrokerHarness, body: bytes, topic: str) -> None:
    await delayed(harness, body, 1, topic)


async def _by_time(harness: BrokerHarness, body: bytes, topic: str) -> None:
    await timed(harness, body, 1_000, topic)


@pytest.fixture(params=[_by_level, _by_time], ids=["level", "time"])
def wait(request: pytest.FixtureRequest) -> Wait:
    how: Wait = request.param
    return how


async def test_messages_due_during_a_stop_are_delivered_at_the_start(
    harness: BrokerHarness, begin: Begin, wait: Wait
) -> None:
    await wait(harness, b"a", "t")
    await harness.end()
    await asyncio.sleep(3_600)
    second = await begin()
    await asyncio.sleep(0.001)
    assert await second.bodies("t") == [b"a"]


async def test_a_stop_does_not_wait_for_a_replica_that_never_confirms_a_copy(
    begin: Begin, wait: Wait
) -> None:
    replicas = ScriptedReplicas()
    replicas.has = 1 << 40
    harness = await begin(replicas=replicas)
    await wait(harness, b"a", "t")
    replicas.has = harness.store.end_offset
    await asyncio.sleep(30)
    async with asyncio.timeout(60):
        await harness.end()
    second = await begin()
    await asyncio.sleep(30)
    assert await second.bodies("t") == [b"a"]


@pytest.mark.parametrize("how", ["level", "time"])
async def test_the_delivered_copy_has_the_fields_of_the_message(
    harness: BrokerHarness, how: str
) -> None:
    due = str(harness.clock.now_ms() + 1_000)
    waits = {"DELAY": "1"} if how == "level" else {"TIMER_DELIVER_MS": due}
    properties = {**waits, "TAGS": "a", "KEYS": "k", "UNIQ_KEY": "U"}
    fields: dict[str, Any] = {"flag": 9, "sys_flag": 1, "born_timestamp_ms": 55}
    await harness.send("t", b"x", queue_id=3, properties=properties, **fields)
    await asyncio.sleep(2)
    record = (await harness.read("t", 3))[0]
    assert (record.queue_id, record.flag, record.sys_flag & 1) == (3, 9, 1)
    assert (record.born_timestamp_ms, record.born_host) == (55, "10.0.0.7:4711")
    assert properties.items() <= record.properties.items()
    assert not {"REAL_TOPIC", "REAL_QID", "RETRY_DELAY_MS"} & record.properties.keys()


async def test_a_slow_disk_repeats_no_message(harness: BrokerHarness, wait: Wait) -> None:
    """The flush of the copies takes longer than syncFlushTimeout."""
    await wait(harness, b"a", "t")
    harness.flusher.hold()
    await asyncio.sleep(30)
    harness.flusher.let_go()
    await asyncio.sleep(30)
    assert await harness.bodies("t") == [b"a"]


async def test_a_stop_during_a_slow_flush_repeats_no_message(
    harness: BrokerHarness, begin: Begin, wait: Wait
) -> None:
    await wait(harness, b"a", "t")
    harness.flusher.hold()
    await asyncio.sleep(2)
    stop = asyncio.create_task(harness.end())
    await asyncio.sleep(30)
    assert not stop.done()
    harness.flusher.let_go()
    await stop
    second = await begin()
    await asyncio.sleep(30)
    assert await second.bodies("t") == [b"a"]


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
async def test_a_message_unreadable_for_a_while_is_delivered_later(
    harness: BrokerHarness, wait: Wait, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Neither too many open files nor one failed read prove that the record is damaged."""
    await wait(harness, b"a", "t")

    def refuse(place: int, size: int) -> bytes:
        raise OSError(error, "not now")

    with monkeypatch.context() as patch:
        patch.setattr(harness.store._log, "read", refuse)
        await asyncio.sleep(5)
        with pytest.raises(TransientReadError):
            harness.store.get(0)
    assert harness.store.corruption_count == 0
    await asyncio.sleep(10)
    assert await harness.bodies("t") == [b"a"]


async def test_an_unreadable_message_delays_others_by_a_minute(
    harness: BrokerHarness, wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wait(harness, b"bad", "t")
    bad = harness.store.end_offset - 1
    await wait(harness, b"good", "t")
    read = harness.store._log.read

    def refuse(place: int, size: int) -> bytes:
        if place <= bad < place + size:
            raise OSError(errno.EIO, "Input/output error")
        return read(place, size)

    monkeypatch.setattr(harness.store._log, "read", refuse)
    await asyncio.sleep(50)
    assert harness.store.corruption_count == 0
    await asyncio.sleep(50)
    assert await harness.bodies("t") == [b"good"]
    assert harness.store.corruption_count == 1


async def test_a_message_of_a_deleted_topic_is_dropped(harness: BrokerHarness, wait: Wait) -> None:
    await harness.send("gone", b"x")
    await wait(harness, b"a", "gone")
    await wait(harness, b"b", "t")
    await harness.broker.administration.delete_topic("gone")
    await asyncio.sleep(2)
    assert await harness.bodies("t") == [b"b"]
    assert "gone" not in harness.store.topics()


async def test_a_recreated_topic_gets_no_message_sent_before(
    harness: BrokerHarness, begin: Begin, wait: Wait
) -> None:
    await harness.send("t", b"x")
    await wait(harness, b"old", "t")
    await harness.broker.administration.delete_topic("t")
    await wait(harness, b"new", "t")
    second = await begin()
    await asyncio.sleep(2)
    assert await second.bodies("t") == [b"new"]


@pytest.mark.parametrize(("message_type", "queue_id"), [("NORMAL", 1), ("PRIORITY", 2)])
@pytest.mark.parametrize("properties", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}], ids=str)
async def test_a_message_of_a_queue_that_the_topic_lost_is_delivered_to_another(
    harness: BrokerHarness, properties: dict[str, str], message_type: str, queue_id: int
) -> None:
    """The queue was empty, so the topic could be shrunk."""
    attributes = {"message.type": message_type}
    await harness.broker.topics.put(TopicConfig("t", 5, 5, attributes=attributes))
    sender = harness.broker.sending.sender
    await sender.send([message("t", b"%d" % at, at, properties=properties) for at in (0, 4)])
    await harness.broker.administration.update_topic(
        TopicConfig("t", 3, 3),
        ["read_queue_count", "write_queue_count"],
        dry_run=False,
        force=False,
    )
    await asyncio.sleep(2)
    expected = {0: [b"0"], queue_id: [b"4"]}
    assert {at: await harness.bodies("t", (at,)) for at in range(3)} == {
        at: expected.get(at, []) for at in range(3)
    }


async def test_a_message_above_a_lowered_size_limit_is_delivered(
    harness: BrokerHarness, begin: Begin, wait: Wait
) -> None:
    await wait(harness, b"x" * 5_000, "t")
    await wait(harness, b"b", "t")
    second = await begin(maxMessageSize=1_024)
    await asyncio.sleep(2)
    assert await second.bodies("t") == [b"x" * 5_000, b"b"]
