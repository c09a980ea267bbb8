"""A broker with lite topics whose power is cut, or whose process ends, at a random turn of the loop
or within a write; the clients that work on it until then; and whether what they were told holds.

Three consumer groups of two clients each: Shared, Exclusive and wildcard. After each crash a broker
starts on what is left, with some derived files lost or torn, and each group consumes the rest.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from aerobee_wire.status import MqError
from support.broker.harness import BrokerHarness
from support.disk.damage import lose_derived_files
from support.disk.simulated_disk import PowerCut, SimulatedDisk
from support.lite.broker_client import (
    ADD,
    GROUP,
    LEAVE,
    REMOVE,
    REPLACE,
    Got,
    LiteConsumer,
    bind,
    make_parent,
    send_lite,
)
from support.lite.observed import LiteObserved

NAMES = tuple(f"n{number}" for number in range(6))
GROUPS: Mapping[str, dict[str, Any]] = {
    GROUP: {},
    "owners": {"model": "Exclusive"},
    "all": {"wildcard": True},
}
CLIENTS = ("c1", "c2")
PATH = Path("/data")
INVISIBLE_MS = 5_000
TTL_MS = 400  # of a parent that has one: whoever runs a history sets a minute of it to this
LIVES = 3
LONGEST_LIFE_S = 6.0
MOST_CHANGES = 600  # of the disk, until the power goes within one
ENDINGS = ("power cut", "kill", "power cut in a write")

Place = tuple[str, int]  # lite topic, number of the message in it


def place(got: Got) -> Place:
    return got.lite_topic, int(got.body)


class LiteHistory:
    """`stored`: what was answered. `sent_ms`: when the send of a message began; `stored_ms`: when
    it was answered."""

    def __init__(self, seed: int, ending: str, *, expires: bool = False) -> None:
        self.rng = random.Random(seed)
        self.disk = SimulatedDisk(seed)
        self.stored: set[Place] = set()
        self.sent_ms: dict[Place, int] = {}
        self.stored_ms: dict[Place, int] = {}
        self.observed = {group: LiteObserved() for group in GROUPS}
        self._ending = ending
        self._expires = expires
        self._counts = dict.fromkeys(NAMES, 0)
        self._noted = self.stored, self.observed

    @property
    def settled(self) -> int:
        return sum(len(observed.settled) for observed in self.observed.values())

    async def run(self) -> None:
        harness = await BrokerHarness.begin(PATH, disk=self.disk)
        await make_parent(harness, lite_topic_expiration="1" if self._expires else "-1")
        for group, settings in GROUPS.items():
            await bind(harness, group, **settings)
        for _ in range(LIVES):
            self.disk = await self._live(harness)
            if self.rng.random() < 0.6:
                lose_derived_files(self.disk, self.rng)
            harness = await BrokerHarness.begin(PATH, disk=self.disk, clock=harness.clock)
            started_ms = harness.clock.now_ms()
            for group in GROUPS:
                await self._drain(harness, group)
                self._check(group, started_ms)
                assert harness.broker.groups.get(group).attributes["lite.bind.topic"]
        await harness.end()

    # ---- a life ----

    async def _live(self, harness: BrokerHarness) -> SimulatedDisk:
        """Until its end. Returns the disk that it leaves."""
        works = [self._produce(harness), self._upkeep(harness)]
        works += [
            self._consume(LiteConsumer(harness, client_id, group))
            for group in GROUPS
            for client_id in CLIENTS
        ]
        tasks = [asyncio.create_task(work) for work in works]
        disk, is_cut = self.disk, asyncio.Event()

        def cut() -> None:
            self._note()
            is_cut.set()

        disk.on_cut = cut
        if self._ending == "power cut in a write":
            disk.crash_at = disk.steps + self.rng.randint(1, MOST_CHANGES)
        with suppress(TimeoutError):
            await asyncio.wait_for(is_cut.wait(), self.rng.uniform(0, LONGEST_LIFE_S))
        for _ in range(self.rng.randrange(20)):
            await asyncio.sleep(0)
        if not disk.dead:
            self._note()
        stored, observed = self._noted
        if self._ending == "kill":
            left = disk.after_kill()
        else:
            left = disk.after_power_cut(self.rng.randrange(1 << 30))
            disk.dead = True
        me = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not me]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            # Of a disk that works, no call of a client fails.
            assert error is None or isinstance(error, (MqError, PowerCut)), repr(error)
        self.stored, self.observed = stored, observed
        return left

    def _note(self) -> None:
        """What was answered until the power goes."""
        self._noted = (
            self.stored.copy(),
            {group: observed.copy() for group, observed in self.observed.items()},
        )

    async def _produce(self, harness: BrokerHarness) -> None:
        while True:
            name = self.rng.choice(NAMES)
            begin = self._counts[name]
            self._counts[name] += self.rng.randrange(1, 4)
            places = [(name, number) for number in range(begin, self._counts[name])]
            bodies = [b"%d" % number for _, number in places]
            self.sent_ms |= dict.fromkeys(places, harness.clock.now_ms())
            await send_lite(harness, name, *bodies, queue_id=NAMES.index(name) % 2)
            self.stored_ms |= dict.fromkeys(places, harness.clock.now_ms())
            self.stored.update(places)
            await self._pause()

    async def _consume(self, consumer: LiteConsumer) -> None:
        """Acknowledges most of what it gets, gives some back or renews it, and leaves a few to the
        end of their lease."""
        observed, rng, loop = self.observed[consumer.group], self.rng, asyncio.get_running_loop()
        await self._subscribe(consumer, REPLACE)
        while True:
            if rng.random() < 0.2:
                await self._subscribe(consumer, rng.choice((ADD, REMOVE, REPLACE, REPLACE, LEAVE)))
            began = loop.time()
            got = await consumer.pop(
                rng.choice((1, 8, 32)), poll_ms=rng.choice((0, 1_000)), invisible_ms=INVISIBLE_MS
            )
            for each in got:
                observed.received(place(each), began)
            await self._pause()
            dice = rng.random()
            if got and dice < 0.3:
                ms = 10 if dice < 0.2 else 2 * INVISIBLE_MS
                await consumer.change(got, ms, uncounted=rng.random() < 0.5)
            if got and not 0.1 < dice < 0.2:
                some = got if dice > 0.5 else [each for each in got if rng.random() < 0.7]
                observed.acknowledging([place(each) for each in some])
                codes = await consumer.ack(some) if some else []
                observed.answered([place(each) for each in some])
                acked = {place(each) for each, code in zip(some, codes, strict=True) if not code}
                observed.acknowledged([place(each) for each in got], acked, loop.time())

    async def _subscribe(self, consumer: LiteConsumer, action: int) -> None:
        if consumer.group == "all":  # every lite topic of the parent
            await consumer.sync(LEAVE if action == LEAVE else REPLACE)
        elif action == LEAVE:
            await consumer.sync(LEAVE)
        else:
            await consumer.sync(action, *self.rng.sample(NAMES, self.rng.randint(1, len(NAMES))))

    async def _upkeep(self, harness: BrokerHarness) -> None:
        state = harness.broker.lite.state
        while True:
            await self._pause()
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
                    harness.store.maintain(harness.clock.now_ms())
                    while harness.store.maintain_files():
                        pass
                case 5 | 6:
                    await harness.broker.lite.ttl.round()

    async def _pause(self) -> None:
        for _ in range(self.rng.randrange(6)):
            await asyncio.sleep(0)
        await asyncio.sleep(self.rng.choice((0, 0.001, 0.3)))

    # ---- after it ----

    async def _drain(self, harness: BrokerHarness, group: str) -> None:
        """Everything that is left, each message acknowledged at its first delivery."""
        consumer, observed, loop = (
            LiteConsumer(harness, "last", group),
            self.observed[group],
            harness.clock,
        )
        await consumer.sync(REPLACE, *(() if group == "all" else NAMES))
        found: set[Place] = set()
        for _ in range(2):
            await asyncio.sleep(2 * INVISIBLE_MS / 1_000)  # what was held comes again
            while got := await consumer.pop(poll_ms=100):
                places = [place(each) for each in got]
                assert not found & set(places), "delivered twice"
                found.update(places)
                for each in places:
                    observed.received(each, loop.monotonic_ms() / 1_000)
                assert set(await consumer.ack(got)) == {0}
                observed.acknowledged(places, set(places), loop.monotonic_ms() / 1_000)
        await consumer.sync(LEAVE)

    def _check(self, group: str, expired_by_ms: int) -> None:
        """`expired_by_ms`: when the last round of the TTL was made."""
        observed = self.observed[group]
        lost = self.stored - observed.acked - observed.in_doubt.keys()
        if self._expires:
            lost = {
                (name, number)
                for name, number in lost
                if number > self._last_that_may_have_expired(name, expired_by_ms)
            }
        assert not lost, f"stored, and not delivered to {group}: {sorted(lost)}"

    def _last_that_may_have_expired(self, name: str, end_ms: int) -> int:
        """The last message behind which nothing of its lite topic was stored for the TTL, or -1."""
        last = -1
        for number in range(self._counts[name]):
            after_ms = self.stored_ms.get((name, number + 1), end_ms)
            if after_ms - self.sent_ms[name, number] > TTL_MS:
                last = number
        return last
