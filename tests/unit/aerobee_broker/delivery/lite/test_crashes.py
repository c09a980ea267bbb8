"""What a broker that was killed knows of an acknowledgement by which file. Random histories are in
tests/fault/crash/test_lite_topics.py."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.broker.harness import BrokerHarness
from support.disk.simulated_disk import SimulatedDisk
from support.lite.broker_client import REPLACE, Got, LiteConsumer, bind, make_parent, send_lite

PATH = Path("/data")


async def three_received(disk: SimulatedDisk) -> tuple[BrokerHarness, LiteConsumer, list[Got]]:
    """A broker, and a consumer of n0 and n1 that has three messages of n0 on lease."""
    harness = await BrokerHarness.begin(PATH, disk=disk)
    await make_parent(harness)
    await bind(harness)
    consumer = LiteConsumer(harness, "c1")
    await consumer.sync(REPLACE, "n0", "n1")
    await send_lite(harness, "n0", b"0", b"1", b"2")
    return harness, consumer, await consumer.pop()


async def left_after_a_kill(harness: BrokerHarness, disk: SimulatedDisk) -> list[Got]:
    """What another process on the same disk delivers of n0 and n1."""
    left = disk.copy().after_kill()
    await harness.end()
    harness = await BrokerHarness.begin(PATH, disk=left, clock=harness.clock)
    consumer = LiteConsumer(harness, "c2")
    await consumer.sync(REPLACE, "n0", "n1")
    found = await consumer.pop(poll_ms=20_000)
    await harness.end()
    return found


async def test_a_line_that_is_dropped_after_its_position_was_saved_stays_acknowledged() -> None:
    """`liteOffsets` was written while the lease lasted, the leases after the line was dropped: only
    the acknowledgement is read from the journal."""
    disk = SimulatedDisk(0)
    harness, consumer, got = await three_received(disk)
    state = harness.broker.lite.state
    await state.save(everything=True)
    assert set(await consumer.ack(got)) == {0}
    for _ in range(2):
        await state.save()
    assert not list(state.table)
    await send_lite(harness, "n1", b"0")
    assert set(await consumer.ack(await consumer.pop())) == {0}
    await state.save()
    assert await left_after_a_kill(harness, disk) == []


@pytest.mark.parametrize("turns", range(8))
async def test_a_position_that_is_saved_during_an_acknowledgement_has_it(turns: int) -> None:
    """`liteOffsets` says that it has the journal up to its end, which has the acknowledgement
    before the request ends."""
    disk = SimulatedDisk(0)
    harness, consumer, got = await three_received(disk)
    state = harness.broker.lite.state
    await send_lite(harness, "n1", b"0")
    others = await consumer.pop()
    saving = asyncio.create_task(state.save(everything=True))
    for _ in range(turns):
        await asyncio.sleep(0)
    assert set(await consumer.ack(got)) == {0}
    await saving
    await state.save()
    assert set(await consumer.ack(others)) == {0}
    await state.save()
    assert len(list(state.table)) == 1, "the line of n0 was dropped"
    assert await left_after_a_kill(harness, disk) == []


async def test_positions_that_are_newer_than_the_log_hide_no_message() -> None:
    """All but one file was restored from a backup."""
    disk = SimulatedDisk(0)
    harness, consumer, got = await three_received(disk)
    state = harness.broker.lite.state
    assert set(await consumer.ack(got)) == {0}
    for _ in range(3):  # the leases of n0 are dropped
        await state.save(everything=True)
    await send_lite(harness, "n1", b"0")
    assert set(await consumer.ack(await consumer.pop())) == {0}
    await state.save(everything=True)
    older = disk.copy().after_kill()
    for number in range(20):
        await send_lite(harness, "n0", b"%d" % (3 + number))
        assert set(await consumer.ack(await consumer.pop())) == {0}
    await harness.end()
    offsets = PATH / "store" / "liteOffsets"
    older.put(offsets, disk.files()[offsets])
    harness = await BrokerHarness.begin(PATH, disk=older, clock=harness.clock)
    consumer = LiteConsumer(harness, "c2")
    await consumer.sync(REPLACE, "n0", "n1")
    assert await consumer.pop() == []
    await send_lite(harness, "n0", b"a", b"b")
    got = await consumer.pop()
    assert [each.body for each in got] == [b"a", b"b"]
    assert set(await consumer.ack(got)) == {0}
    assert await left_after_a_kill(harness, older) == []
