"""Lite topics through kills and power cuts: what was answered holds, whatever derived file is lost
or torn.

A producer and two consumers work; at a random turn of the loop the power goes, or the process ends.
Then a broker starts on what is left, and everything is consumed: each acknowledged send once, in
the order of its lite topic, but for what was acknowledged before, and, where there is a TTL, for
what has expired.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from aerobee_broker.delivery.lite import ttl
from support.broker.harness import BrokerHarness
from support.disk.simulated_disk import SimulatedDisk
from support.lite.broker_client import (
    GROUP,
    REPLACE,
    Got,
    LiteConsumer,
    bind,
    make_parent,
    send_lite,
)
from support.lite.derived_files import lose_derived_files

NAMES = [f"n{number}" for number in range(6)]
PATH = Path("/data")
INVISIBLE_MS = 5_000
TTL_MS = 400

Place = tuple[str, int]  # lite topic, number of the message in it


class World:
    """`stored`, `acked`: what was answered. `sent_ms`: when the send of a message began;
    `stored_ms`: when it was answered."""

    def __init__(self, harness: BrokerHarness, rng: random.Random) -> None:
        self.harness = harness
        self.rng = rng
        self.stored: list[Place] = []
        self.sent_ms: dict[Place, int] = {}
        self.stored_ms: dict[Place, int] = {}
        self.acked: set[Place] = set()

    async def produce(self) -> None:
        counts = dict.fromkeys(NAMES, 0)
        while True:
            name = self.rng.choice(NAMES)
            places = [(name, counts[name] + n) for n in range(self.rng.randrange(1, 4))]
            counts[name] += len(places)
            queue_id = NAMES.index(name) % 2
            bodies = [b"%d" % number for _, number in places]
            self.sent_ms |= dict.fromkeys(places, self.harness.clock.now_ms())
            await send_lite(self.harness, name, *bodies, queue_id=queue_id)
            self.stored_ms |= dict.fromkeys(places, self.harness.clock.now_ms())
            self.stored += places
            await self.pause()

    async def consume(self, client_id: str) -> None:
        consumer = LiteConsumer(self.harness, client_id)
        await consumer.sync(REPLACE, *NAMES)
        while True:
            got = await consumer.pop(8, poll_ms=1_000, invisible_ms=INVISIBLE_MS)
            await self.pause()
            if got and self.rng.random() < 0.2:
                await consumer.change(got, 10, uncounted=self.rng.random() < 0.5)
                continue
            some = got[: self.rng.randrange(len(got) + 1)] if self.rng.random() < 0.3 else got
            codes = await consumer.ack(some) if some else []
            self.acked |= {place(each) for each, code in zip(some, codes, strict=True) if not code}

    async def upkeep(self) -> None:
        state = self.harness.broker.lite.state
        while True:
            await self.pause()
            match self.rng.randrange(12):
                case 0:
                    state.maintain()
                case 1:
                    await state.save()
                case 2:
                    await state.save(everything=True)
                case 3:
                    await asyncio.sleep(INVISIBLE_MS / 1_000)
                case 4:
                    self.harness.store.maintain(self.harness.clock.now_ms())
                case 5 | 6:
                    await self.harness.broker.lite.ttl.round()

    async def pause(self) -> None:
        for _ in range(self.rng.randrange(6)):
            await asyncio.sleep(0)
        await asyncio.sleep(self.rng.choice((0, 0.001, 0.3)))


def place(got: Got) -> Place:
    return got.lite_topic, int(got.body)


async def consumed(harness: BrokerHarness) -> list[Place]:
    """Everything that is left, each message acknowledged at its first delivery."""
    consumer, found = LiteConsumer(harness, "last"), []
    await consumer.sync(REPLACE, *NAMES)
    for _ in range(2):
        await asyncio.sleep(2 * INVISIBLE_MS / 1_000)  # what was held comes again
        while got := await consumer.pop(poll_ms=100):
            assert set(await consumer.ack(got)) == {0}
            found += [place(each) for each in got]
    return found


def may_have_expired(world: World, places: set[Place], end_ms: int) -> set[Place]:
    """Those behind which nothing of their lite topic was stored for the TTL, before `end_ms`, and
    those before them."""
    found: set[Place] = set()
    for name in NAMES:
        numbers = sorted(number for its, number in world.sent_ms if its == name)
        last = -1
        for number in numbers:
            after = world.stored_ms.get((name, number + 1), end_ms)
            if after - world.sent_ms[name, number] > TTL_MS:
                last = number
        found |= {(its, number) for its, number in places if its == name and number <= last}
    return found


def check(world: World, found: Sequence[Place], expired_by_ms: int | None = None) -> None:
    """`expired_by_ms`: when the last round of a TTL was made."""
    assert len(set(found)) == len(found), "delivered twice"
    repeated = world.acked & set(found)
    assert not repeated, f"acknowledged before: {sorted(repeated)}"
    lost = set(world.stored) - world.acked - set(found)
    for name, number in lost:  # a lite topic goes as a whole
        assert not any(its == name and other < number for its, other in found)
    if expired_by_ms is not None:
        lost -= may_have_expired(world, lost, expired_by_ms)
    assert not lost, f"stored, and not delivered: {sorted(lost)}"
    for name in NAMES:
        numbers = [number for its, number in found if its == name]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("ending", ["power cut", "kill"])
@pytest.mark.parametrize(
    ("expires", "seed"),
    [*((False, seed) for seed in range(15)), *((True, seed) for seed in range(8))],
)
async def test_what_was_answered_holds(
    seed: int, ending: str, monkeypatch: pytest.MonkeyPatch, *, expires: bool
) -> None:
    monkeypatch.setattr(ttl, "MINUTE_MS", TTL_MS)
    monkeypatch.setattr(ttl, "SLICE", 2)
    rng, disk = random.Random(seed), SimulatedDisk(seed)
    harness = await BrokerHarness.begin(PATH, disk=disk)
    await make_parent(harness, lite_topic_expiration="1" if expires else "-1")
    await bind(harness)
    for _ in range(3):
        world = World(harness, rng)
        works = [world.produce(), world.consume("c1"), world.consume("c2"), world.upkeep()]
        tasks = [asyncio.create_task(work) for work in works]
        await asyncio.sleep(rng.uniform(0, 6))
        for _ in range(rng.randrange(20)):
            await asyncio.sleep(0)
        left = disk.copy()  # the broker of before goes on with its own, unseen
        disk = left.after_power_cut(seed) if ending == "power cut" else left.after_kill()
        stored, acked = list(world.stored), set(world.acked)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in outcomes), outcomes
        await harness.end()
        world.stored, world.acked = stored, acked
        if rng.random() < 0.6:
            lose_derived_files(disk, rng)
        harness = await BrokerHarness.begin(PATH, disk=disk, clock=harness.clock)
        started_ms = harness.clock.now_ms()
        check(world, await consumed(harness), started_ms if expires else None)
        group = harness.broker.groups.get(GROUP)
        assert group.attributes["lite.bind.topic"]
    await harness.end()


async def test_a_line_that_is_dropped_after_its_position_was_saved_stays_acknowledged() -> None:
    """`liteOffsets` was written while the lease lasted, the leases after the line was dropped: only
    the acknowledgement is read from the journal."""
    disk = SimulatedDisk(0)
    harness = await BrokerHarness.begin(PATH, disk=disk)
    await make_parent(harness)
    await bind(harness)
    consumer, state = LiteConsumer(harness, "c1"), harness.broker.lite.state
    await consumer.sync(REPLACE, "n0", "n1")
    await send_lite(harness, "n0", b"0", b"1", b"2")
    got = await consumer.pop()
    await state.save(everything=True)
    assert set(await consumer.ack(got)) == {0}
    for _ in range(2):
        await state.save()
    assert not list(state.table)
    await send_lite(harness, "n1", b"0")
    assert set(await consumer.ack(await consumer.pop())) == {0}
    await state.save()
    left = disk.copy().after_kill()
    await harness.end()
    harness = await BrokerHarness.begin(PATH, disk=left, clock=harness.clock)
    assert await consumed(harness) == []
    await harness.end()
