"""F9, F28: a slow disk delays answers, and back-pressure bounds what waits for it.

A failure names its seed; `pytest tests/fault -k slow --fault-seed SEED` plays it again.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from aerobee_broker.commit.worker_thread import WorkerThread
from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.store.messages import ReadStatus
from aerobee_wire.status import Code, MqError
from fault.conftest import Campaign
from fault.slow_disk import (
    LIMIT,
    OPTIONS,
    PATH,
    Figures,
    SlowFlusher,
    end_all_other_tasks,
    on_a_virtual_loop,
    slow_history,
)
from support.broker.harness import BrokerHarness, InlineWorker
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import reporting

T = TypeVar("T")
BODY = 4_000
ONE_MORE = BODY + 400  # a record: it is let in when the limit is just not reached
PATIENCE_S = 30.0  # a loop that is blocked would never end by itself


def test_a_slow_disk_delays_answers_and_breaks_no_promise(campaign: Campaign) -> None:
    total = Figures()
    seeds = 0
    for seed in campaign.seeds(8, 250):
        with reporting(f"seed {seed}"):
            total.add(slow_history(seed))
        seeds += 1
    campaign.report(
        f"{seeds} seeds, {total.syncs:,} slow syncs, {total.acknowledged:,} acknowledged and "
        f"{total.shown:,} shown messages, 0 early, 0 lost; an answer took at most "
        f"{2 * total.worst:.2f} syncs; {total.timeouts} told that the disk is slow, "
        f"{total.refused} refused after a sync that failed; {total.archive_reads:,} reads of "
        "old messages meanwhile, all at once"
    )
    if campaign.seed is None:
        assert total.timeouts and total.refused, "these seeds try too little"


# ---- back-pressure ----


class Senders:
    """Producers of one message each. A patient one obeys `retry_after_ms` and sends it again."""

    def __init__(self, harness: BrokerHarness, *, patient: bool) -> None:
        self.harness = harness
        self.patient = patient
        self.busy = 0
        self.answers: dict[int, tuple[int, int]] = {}  # number → queue, queue offset
        self.most_unflushed = 0

    async def send(self, number: int) -> None:
        while True:
            body = b"%08d" % number + bytes(BODY - 8)
            try:
                [place] = await self.harness.send("orders", body, queue_id=number % 3)
            except MqError as error:
                if error.code is not Code.SYSTEM_BUSY or not error.retryable:
                    raise
                self.busy += 1
                if not self.patient:
                    return
                await asyncio.sleep((error.retry_after_ms or math.inf) / 1000)
            else:
                self.answers[number] = (place.queue_id, place.queue_offset)
                return
            finally:
                store = self.harness.store
                self.look(store.end_offset - store.flushed_offset)

    def look(self, unflushed: int) -> None:
        self.most_unflushed = max(self.most_unflushed, unflushed)


async def stuck(seed: int) -> tuple[BrokerHarness, SlowFlusher]:
    """A broker whose syncs do not return before `flusher.let_go()`."""
    rng = random.Random(seed)
    flusher = SlowFlusher(rng, lambda: 0.02)
    options = OPTIONS | {"syncFlushTimeout": 3_600_000}
    harness = await BrokerHarness.begin(PATH, disk=SimulatedDisk(seed), flusher=flusher, **options)
    await harness.send("orders", b"first")
    flusher.hold()
    return harness, flusher


def stand_still(count: int) -> tuple[int, int, int]:
    """Sends `count` messages while a sync hangs. Returns how many were refused, the most unflushed
    bytes, and the most memory allocated meanwhile.
    """

    async def run() -> tuple[int, int, int]:
        harness, flusher = await stuck(1)
        senders = Senders(harness, patient=False)
        tracemalloc.start()
        try:
            tasks = [asyncio.ensure_future(senders.send(number)) for number in range(count)]
            for _ in range(20):
                await asyncio.sleep(0.1)
            memory = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        waiting = count - senders.busy
        store = harness.store
        senders.look(store.end_offset - store.flushed_offset)
        assert not senders.answers
        assert len(await harness.bodies("orders")) == 1, "shown before it is durable"
        flusher.let_go()
        await asyncio.gather(*tasks)
        assert len(senders.answers) == waiting, "who was let in was not answered"
        # The disk works again: nothing is refused, and no refused message was stored.
        busy = senders.busy
        await senders.send(count)
        assert (senders.busy, len(senders.answers)) == (busy, waiting + 1)
        there = sum(harness.store.max_offset("orders", queue) for queue in range(3))
        assert there == 1 + waiting + 1
        await harness.end()
        return busy, senders.most_unflushed, memory

    return on_a_virtual_loop(run)


@pytest.mark.usefixtures("small_unflushed_limit")
def test_sends_are_refused_while_too_much_is_unflushed(campaign: Campaign) -> None:
    fits = LIMIT // BODY
    busy, unflushed, _ = stand_still(4 * fits)
    assert busy >= 3 * fits - 2
    assert LIMIT < unflushed <= LIMIT + ONE_MORE, "one message beyond the limit, no more"
    campaign.report(
        f"{busy} turned away; at most {unflushed:,} bytes waited, the limit is {LIMIT:,}"
    )


@pytest.mark.usefixtures("small_unflushed_limit")
def test_memory_is_bounded_while_the_disk_stands_still(campaign: Campaign) -> None:
    """Four times as many messages as fit, or twenty times: it takes hardly more memory."""
    fits = LIMIT // BODY
    some, many = stand_still(4 * fits)[2], stand_still(20 * fits)[2]
    campaign.report(f"{some:,} bytes of memory with {4 * fits} senders, {many:,} with {20 * fits}")
    # Each sender is a task of the test: its own 4 KB would go unnoticed in 3 KB a sender.
    assert many - some < 16 * fits * 3_000


@pytest.mark.usefixtures("small_unflushed_limit")
def test_senders_that_obey_retry_after_are_stored_once(campaign: Campaign) -> None:
    async def run(seed: int) -> int:
        harness, flusher = await stuck(seed)
        rng = random.Random(seed)
        senders = Senders(harness, patient=True)
        tasks = [asyncio.ensure_future(senders.send(number)) for number in range(300)]
        for _ in range(rng.randint(1, 4)):  # it works for a while, and stands still again
            await asyncio.sleep(rng.uniform(0.1, 2.0))
            flusher.let_go()
            await asyncio.sleep(rng.uniform(0.0, 0.03))
            flusher.hold()
        assert len(senders.answers) < 300
        flusher.let_go()
        await asyncio.gather(*tasks)
        assert senders.busy and senders.most_unflushed <= LIMIT + ONE_MORE
        stored = [
            record.body
            for queue in range(3)
            for record in await harness.read("orders", queue, max_bytes=1 << 24)
        ]
        numbers = sorted(int(body[:8]) for body in stored if body != b"first")
        assert numbers == list(range(300)), f"seed {seed}: lost or there twice"
        await harness.end()
        return senders.busy

    busy = [on_a_virtual_loop(partial(run, seed)) for seed in campaign.seeds(3, 60)]
    campaign.report(f"{len(busy)} seeds, {sum(busy):,} times turned away, 0 lost, 0 stored twice")


@pytest.mark.usefixtures("small_unflushed_limit")
def test_sends_without_a_flush_are_refused_too() -> None:
    """With ASYNC_FLUSH an answer does not wait for the disk, and nothing but the limit stops
    senders from filling the memory; consumers see nothing early.
    """

    async def run() -> None:
        flusher = SlowFlusher(random.Random(2), lambda: 0.02)
        harness = await BrokerHarness.begin(
            PATH, disk=SimulatedDisk(2), flusher=flusher, flushDiskType="ASYNC_FLUSH", **OPTIONS
        )
        flusher.hold()
        senders = Senders(harness, patient=False)
        for number in range(3 * LIMIT // BODY):
            await senders.send(number)
            if number % 10 == 0:
                await asyncio.sleep(0.1)
        assert senders.busy and senders.most_unflushed <= LIMIT + ONE_MORE
        assert await harness.bodies("orders", range(3)) == []
        flusher.let_go()
        await asyncio.sleep(1)
        assert len(await harness.bodies("orders", range(3))) == len(senders.answers)
        await senders.send(0)
        await harness.end()

    on_a_virtual_loop(run)


# ---- a thread that is really stuck ----


class OnThread(InlineWorker):
    """The product's flusher."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = WorkerThread("flusher")

    async def _run(self, function: Callable[[], T]) -> T:
        self.calls += 1
        return await self.thread(function)


class StuckDisk(SimulatedDisk):
    """A sync in the commit log does not return before `let_go`; gives up after a while."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self.gave_up = False
        self.before_sync = self._stick

    def _stick(self, path: Path) -> None:
        if path.parent.name == "commitlog" and not self.go.is_set():
            self.stuck.set()
            self.gave_up |= not self.go.wait(PATIENCE_S)


@pytest.mark.parametrize("ends_well", [True, False], ids=["comes back", "fails"])
async def test_the_loop_runs_while_a_sync_hangs(ends_well: bool) -> None:
    """Everything that needs no new byte on the disk is served: reads, long polls, offsets, upkeep
    of the store; and sends are taken, to be answered later.
    """
    disk, flusher = StuckDisk(), OnThread()
    harness = await BrokerHarness.begin(PATH, disk=disk, flusher=flusher, **OPTIONS)
    await harness.group("g")
    await harness.send("old", b"a", b"b")
    await harness.send("orders", b"first")
    disk.go.clear()
    first = asyncio.create_task(harness.send("orders", b"second"))
    await asyncio.to_thread(disk.stuck.wait, PATIENCE_S)
    others = [asyncio.create_task(harness.send("orders", b"%d" % n)) for n in range(20)]
    upkeep = asyncio.ensure_future(maintain(harness))
    polls = [
        PullRequest("g", "old", 0, 2, suspend_timeout_ms=20, browse=True),
        PullRequest("g", "orders", 0, 1, suspend_timeout_ms=20, browse=True),
    ]
    for _ in range(3):
        assert await harness.bodies("old") == [b"a", b"b"]
        for poll in polls:
            result, _ = await harness.broker.consuming.pull.pull(poll)
            assert result.status is ReadStatus.NO_NEW
    assert harness.store.query("old", "nothing") == []
    assert not first.done() and not any(task.done() for task in others)
    assert not disk.gave_up, "the loop waited for the disk"
    calls = flusher.calls
    if not ends_well:
        disk.fail_syncs = lambda path: path.parent.name == "commitlog"
    disk.go.set()
    answers = await asyncio.gather(first, *others, return_exceptions=True)
    await upkeep
    if ends_well:
        assert all(isinstance(answer, list) for answer in answers)
        assert flusher.calls <= calls + 3, "all that waited share one sync"
        assert len(await harness.bodies("orders")) == 22
        await harness.end()
    else:
        codes = {answer.code for answer in answers if isinstance(answer, MqError)}
        assert (codes, len(answers)) == ({Code.SERVICE_NOT_AVAILABLE}, 21)
        assert not any(isinstance(answer, list) for answer in answers)
        assert await harness.bodies("orders") == [b"first"]
        harness.store.abandon()
        await end_all_other_tasks()
    flusher.thread.close()


async def maintain(harness: BrokerHarness) -> None:
    """What the broker does once a second."""
    harness.store.maintain(harness.clock.now_ms())
    await harness.flusher(harness.store.maintain_files)
