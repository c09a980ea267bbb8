"""A recall takes a waiting message back, once it is durable."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path

import pytest

from aerobee_broker.delivery.delay import timer_table
from aerobee_broker.delivery.send.send import SendResult
from aerobee_broker.errors import DiskFull, NoPermission, NotRecalled
from support.broker.delayed import recall, timed
from support.broker.harness import Begin, BrokerHarness, message
from support.broker.pop_restarts import copy_store, failing_disk
from support.codes import raises_about

HOUR_MS = 3_600_000


async def is_refused(harness: BrokerHarness, stored: SendResult) -> bool:
    try:
        await recall(harness, stored)
    except NotRecalled:
        return True
    return False


async def test_a_recalled_message_is_not_delivered(harness: BrokerHarness) -> None:
    stored = await timed(harness, b"a", 5_000)
    await timed(harness, b"b", 5_000)
    await recall(harness, stored)
    assert harness.broker.delay.timers.waiting == 1
    assert await is_refused(harness, stored)
    await asyncio.sleep(6)
    assert await harness.bodies("t") == [b"b"]
    assert await is_refused(harness, stored)


async def test_a_delivered_message_cannot_be_recalled(harness: BrokerHarness) -> None:
    stored = await timed(harness, b"a", 1_000)
    await asyncio.sleep(1.1)
    assert await is_refused(harness, stored)


async def test_a_recall_names_topic_time_and_unique_key(harness: BrokerHarness) -> None:
    stored = await timed(harness, b"a", 1_000)
    for wrong in (
        ("other", stored.deliver_ms, stored.unique_message_id),
        ("t", stored.deliver_ms + 1, stored.unique_message_id),
        ("t", stored.deliver_ms, "nobody"),
    ):
        with pytest.raises(NotRecalled):
            await harness.broker.delay.recall.recall(*wrong)
    await asyncio.sleep(2)
    assert await harness.bodies("t") == [b"a"]


async def test_without_an_index_no_message_is_recalled(begin: Begin) -> None:
    harness = await begin(messageIndexEnable=False)
    stored = await timed(harness, b"a", 1_000)
    with raises_about(NotRecalled, "messageIndexEnable"):
        await recall(harness, stored)
    await asyncio.sleep(1.1)
    assert await harness.bodies("t") == [b"a"]


async def test_where_recalls_are_off_the_message_is_delivered(begin: Begin) -> None:
    harness = await begin(recallMessageEnable=False)
    stored = await timed(harness, b"a", 1_000)
    with raises_about(NoPermission, "recallMessageEnable"):
        await recall(harness, stored)
    await asyncio.sleep(1.1)
    assert await harness.bodies("t") == [b"a"]


async def test_every_copy_of_a_message_sent_twice_is_recalled(harness: BrokerHarness) -> None:
    due = str(harness.clock.now_ms() + 1_000)
    same = {"TIMER_DELIVER_MS": due, "UNIQ_KEY": "U"}
    for _ in range(2):
        stored = await harness.broker.sending.sender.send(
            [message("t", b"a", properties=dict(same))]
        )
    await recall(harness, stored[0])
    await asyncio.sleep(2)
    assert await harness.bodies("t") == []


@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_a_recall_holds_after_a_restart(
    harness: BrokerHarness, begin: Begin, tmp_path: Path, how: str
) -> None:
    stored = await timed(harness, b"a", 5_000)
    await recall(harness, stored)
    second = await begin(copy_store(harness) if how == "crash" else tmp_path)
    assert second.broker.delay.timers.waiting == 0
    assert await is_refused(second, stored)
    await asyncio.sleep(10)
    assert await second.bodies("t") == []


async def test_delivery_waits_for_a_recall_that_is_not_durable(harness: BrokerHarness) -> None:
    stored = await timed(harness, b"a", 1_000)
    await asyncio.sleep(0.99)
    harness.flusher.hold()
    under_way = asyncio.create_task(recall(harness, stored))
    await asyncio.sleep(3)
    assert not under_way.done()
    second = asyncio.create_task(recall(harness, stored))
    await asyncio.sleep(0.1)
    harness.flusher.let_go()
    await under_way
    with pytest.raises(NotRecalled):
        await second
    await asyncio.sleep(5)
    assert await harness.bodies("t") == []


async def test_a_cancelled_recall_delays_no_other_message(harness: BrokerHarness) -> None:
    """The marker is in the log, so the recall holds, as it would after a restart."""
    await timed(harness, b"a", 1_000)
    stored = await timed(harness, b"b", 1_000)
    await asyncio.sleep(0.99)
    harness.flusher.hold()
    under_way = asyncio.create_task(recall(harness, stored))
    await asyncio.sleep(0.1)
    under_way.cancel()
    await asyncio.gather(under_way, return_exceptions=True)
    harness.flusher.let_go()
    await asyncio.sleep(0.1)
    assert await harness.bodies("t") == [b"a"]


async def test_a_recall_during_delivery_is_refused(harness: BrokerHarness) -> None:
    stored = await timed(harness, b"a", 1_000)
    harness.flusher.hold()
    await asyncio.sleep(1.1)
    under_way = asyncio.create_task(recall(harness, stored))
    await asyncio.sleep(0.1)
    harness.flusher.let_go()
    with pytest.raises(NotRecalled):
        await under_way
    assert await harness.bodies("t") == [b"a"]


@pytest.mark.parametrize("room", [True, False])
async def test_a_cancelled_recall_holds_if_its_marker_is_flushed(
    harness: BrokerHarness, room: bool
) -> None:
    stored = await timed(harness, b"a", 5_000)
    await asyncio.sleep(0.1)

    disk = nullcontext() if room else failing_disk(harness, DiskFull("there is no room"))
    with disk:
        harness.flusher.hold()
        under_way = asyncio.create_task(recall(harness, stored))
        await asyncio.sleep(0.1)
        under_way.cancel()
        await asyncio.wait([under_way])
        harness.flusher.let_go()
        await asyncio.sleep(0.1)
    assert harness.broker.delay.timers.waiting == (0 if room else 1)
    await asyncio.sleep(6)
    assert await harness.bodies("t") == ([] if room else [b"a"])


async def test_a_message_is_not_recalled_again_after_a_restart(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_table, "_BLOCK_BITS", 0)
    first = await begin()
    stored = await timed(first, b"a", HOUR_MS)
    await recall(first, stored)
    await timed(first, b"b", 1_000)
    await asyncio.sleep(2)  # the floor of the progress is above the recalled message
    second = await begin()
    assert await is_refused(second, stored)
    assert second.broker.delay.timers.waiting == 0
