"""A broker under load over a slow disk: its promises, checked at every answer.

The load: producers that send batches, each after the answer to the last; a consumer of each queue,
in long polls; a reader of old messages of another topic. All of it runs on a virtual loop over the
simulated disk, which alone is asked what is durable. Checked:

* an acknowledged or visible message is in the durable content of the log
* a send is answered at the end of the first sync that began after its append (appends during a
  sync share the next one, so a send waits for two syncs at most), or after syncFlushTimeout with
  FLUSH_DISK_TIMEOUT
* a consumer sees every queue offset once, in order
* a read of durable messages is answered at once, whatever the disk does
* after a failed sync nothing is acknowledged
* after a power cut or a kill at a random moment every acknowledged or visible message is there,
  and no message that was not sent
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.delivery.send.send import SendResult
from aerobee_broker.store.messages import ReadStatus
from aerobee_wire import record
from aerobee_wire.record import iter_records
from aerobee_wire.status import Code, MqError
from support.broker.harness import BrokerHarness, InlineWorker, message
from support.clock.virtual_loop import VirtualLoop
from support.disk.simulated_disk import PowerCut, SimulatedDisk
from support.disk.stores import claim

T = TypeVar("T")

TOPIC, QUEUES = "orders", 3
ARCHIVE = "archive"  # the topic of the old messages
ARCHIVED = 20
PATH = Path("/data")
LOG_FILE = 64 * 1024
LIMIT = 256 * 1024  # of bytes that wait for the disk, where a test sets it; else 256 MiB
TIMEOUT_S = 5.0  # syncFlushTimeout
OPTIONS: dict[str, Any] = {
    "mappedFileSizeCommitLog": LOG_FILE,
    "defaultTopicQueueNums": QUEUES,
    "syncFlushTimeout": round(TIMEOUT_S * 1000),
}


def on_a_virtual_loop(work: Callable[[], Awaitable[T]]) -> T:
    async def run() -> T:
        return await work()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


class SlowFlusher(InlineWorker):
    """Each sync takes `latency()` seconds; the disk has the bytes at some moment within."""

    def __init__(self, rng: random.Random, latency: Callable[[], float]) -> None:
        super().__init__()
        self.latency = latency
        self.began: list[float] = []
        self.ended: list[float] = []
        self._rng = rng
        self._one_at_a_time = asyncio.Lock()

    async def _run(self, function: Callable[[], T]) -> T:
        async with self._one_at_a_time:
            self.calls += 1
            loop = asyncio.get_running_loop()
            self.began.append(loop.time())
            await self.open.wait()
            latency = self.latency()
            lead = self._rng.random() * latency
            await asyncio.sleep(lead)
            try:
                return function()
            finally:
                await asyncio.sleep(latency - lead)
                self.ended.append(loop.time())


def latencies(rng: random.Random) -> Callable[[], float]:
    """How this disk is slow: always the same, anything, or well but for long stalls."""
    kind = rng.choice(["same", "any", "stalls", "hopeless"])
    if kind == "same":
        latency_s = rng.choice([0.001, 0.02, 0.2, 1.0])
        return lambda: latency_s
    if kind == "any":
        return lambda: rng.uniform(0.001, 2.0)
    if kind == "stalls":
        return lambda: 2.4 if rng.random() < 0.1 else 0.004
    return lambda: rng.uniform(3.0, 9.0)  # many an answer is late then


@dataclass
class Figures:
    """Of one history, or of many."""

    acknowledged: int = 0
    syncs: int = 0
    shown: int = 0
    timeouts: int = 0
    refused: int = 0  # after a sync that failed
    archive_reads: int = 0
    worst: float = 0.0  # wait for an answer, in units of the two syncs that it may take
    most_in_a_sync: int = 0

    def add(self, other: Figures) -> None:
        for name in ("acknowledged", "syncs", "shown", "timeouts", "refused", "archive_reads"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.worst = max(self.worst, other.worst)
        self.most_in_a_sync = max(self.most_in_a_sync, other.most_in_a_sync)


@dataclass
class SlowHistory:
    """One seed, one life: `await SlowHistory(seed).live()`, then `await ... .aftermath()`."""

    seed: int
    figures: Figures = field(default_factory=Figures)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.disk = SimulatedDisk(self.seed)
        self.flusher = SlowFlusher(self.rng, lambda: 0.0)
        self.sent: dict[int, set[bytes]] = {queue: set() for queue in range(QUEUES)}
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.shown: dict[tuple[int, int], bytes] = {}
        self.number = 0
        self.in_sync: dict[int, int] = {}  # number of the sync → messages it acknowledged
        self.failed_sync: int | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # ---- life ----

    async def live(self) -> None:
        """The load, up to a random moment. Raises Broken."""
        self.harness = await BrokerHarness.begin(
            PATH, disk=self.disk, flusher=self.flusher, **OPTIONS
        )
        await self.harness.send(ARCHIVE, *(b"old %d" % n for n in range(ARCHIVED)))
        await self.harness.send(TOPIC, b"first")
        self.acknowledged[0, 0] = b"first"
        self.sent[0].add(b"first")
        self.flusher.latency = latencies(self.rng)
        if self.rng.random() < 0.25:
            self._fail_a_sync(self.rng.randint(1, 12))
        work: list[Awaitable[None]] = [self._produce() for _ in range(self.rng.randint(1, 12))]
        work += [self._consume(queue) for queue in range(QUEUES)]
        work.append(self._browse())
        self._tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
        seconds = self.rng.uniform(0.5, 20.0)
        done, _ = await asyncio.wait(
            self._tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
        )
        for task in done:
            task.result()
        self.figures.syncs = len(self.flusher.began)
        self.figures.most_in_a_sync = max(self.in_sync.values(), default=0)

    def _fail_a_sync(self, number: int) -> None:
        """Of those to come; from then on the store takes nothing."""

        def fails(path: Path) -> bool:
            nonlocal number
            number -= path.parent.name == "commitlog"
            if number == 0:
                self.failed_sync = len(self.flusher.began) - 1
            return number == 0

        self.disk.fail_syncs = fails

    async def _produce(self) -> None:
        pause = self.rng.choice([0.001, 0.02, 0.3])
        while True:
            await self._send()
            await asyncio.sleep(self.rng.expovariate(1 / pause))

    async def _send(self) -> None:
        queue = self.rng.randrange(QUEUES)
        bodies = []
        for _ in range(self.rng.randint(1, 4)):
            self.number += 1
            bodies.append(b"%06d|" % self.number * self.rng.randint(1, 60))
        self.sent[queue].update(bodies)
        batch = [message(TOPIC, body, queue) for body in bodies]
        loop = asyncio.get_running_loop()
        begun, covering = loop.time(), len(self.flusher.began)
        try:
            places = await self.harness.broker.sending.sender.send(batch)
        except MqError as error:
            self._not_acknowledged(error, loop.time() - begun)
            await asyncio.sleep(0.5)
            return
        self._acknowledged(bodies, places, begun, covering)

    def _acknowledged(
        self, bodies: list[bytes], places: list[SendResult], begun: float, covering: int
    ) -> None:
        """`covering`: the number of the first sync that began after the append."""
        for body, place in zip(bodies, places, strict=True):
            self._claim_durable(place.physical_offset, body, "acknowledged")
            self.acknowledged[place.queue_id, place.queue_offset] = body
        self.figures.acknowledged += len(bodies)
        self.in_sync[covering] = self.in_sync.get(covering, 0) + len(bodies)
        ended, began = self.flusher.ended, self.flusher.began
        claim(
            len(ended) == covering + 1,
            f"an append waited for {len(ended) - covering} syncs instead of 1 that began after it",
        )
        claim(self.failed_sync is None, "acknowledged after a sync that failed")
        waited = asyncio.get_running_loop().time() - begun
        before = ended[covering - 1] - began[covering - 1]
        both = before + ended[covering] - began[covering]
        claim(waited <= both + 1e-6, f"an answer took {waited} s, two syncs {both} s")
        self.figures.worst = max(self.figures.worst, waited / both if both else 0.0)

    def _not_acknowledged(self, error: MqError, waited: float) -> None:
        if error.code is Code.FLUSH_DISK_TIMEOUT:
            claim(abs(waited - TIMEOUT_S) < 1e-6, f"told after {waited} s that the disk is slow")
            self.figures.timeouts += 1
        else:
            claim(error.code is Code.SERVICE_NOT_AVAILABLE, f"refused with {error!r}")
            claim(self.failed_sync is not None, f"refused by a disk that works: {error}")
            self.figures.refused += 1

    def _claim_durable(self, physical_offset: int, body: bytes, what: str) -> None:
        start = physical_offset - physical_offset % LOG_FILE
        data = self.disk.durable(PATH / "store" / "commitlog" / f"{start:020d}")
        try:
            durable = record.decode(data, physical_offset - start)
        except record.CorruptRecord as error:
            claim(False, f"{what} before it is durable: {body!r:.20} ({error})")
        else:
            claim(durable.body == body, f"{what} before it is durable: {body!r:.20}")

    async def _consume(self, queue: int) -> None:
        at = 0
        while True:
            # Or it does not wait for an arrival, and looks in the middle of a sync.
            suspend_ms = self.rng.choice([0, 0, 30_000])
            if not suspend_ms:
                await asyncio.sleep(self.rng.expovariate(20))
            pull = PullRequest("", TOPIC, queue, at, browse=True, suspend_timeout_ms=suspend_ms)
            result, _ = await self.harness.broker.consuming.pull.pull(pull)
            for shown in iter_records(result.records):
                claim(shown.queue_offset == at, f"queue offset {shown.queue_offset}, not {at}")
                self._claim_durable(shown.physical_offset, shown.body, "shown")
                self.shown[queue, at] = shown.body
                self.figures.shown += 1
                at += 1

    async def _browse(self) -> None:
        """Old messages are served at once, and a long poll ends in its time."""
        loop = asyncio.get_running_loop()
        pull = PullRequest("", ARCHIVE, 0, ARCHIVED, browse=True, suspend_timeout_ms=40)
        while True:
            begun = loop.time()
            found = await self.harness.bodies(ARCHIVE)
            claim(len(found) == ARCHIVED and loop.time() == begun, "old messages had to wait")
            self.figures.archive_reads += 1
            result, _ = await self.harness.broker.consuming.pull.pull(pull)
            claim(result.status is ReadStatus.NO_NEW, "a message that nobody sent")
            claim(abs(loop.time() - begun - 0.04) < 1e-6, "a long poll ended late")

    # ---- death ----

    async def aftermath(self) -> None:
        """The power goes, or the process dies, as it is now; then a broker starts again."""
        if self.rng.random() < 0.75:
            disk = self.disk.after_power_cut(self.rng.randrange(1 << 30))
        else:
            disk = self.disk.after_kill()
        await end_all_other_tasks()
        self.harness.store.abandon()
        harness = await BrokerHarness.begin(PATH, disk=disk, **OPTIONS)
        claim(harness.store.corruption_count == 0, "a crash was reported as damage")
        found: dict[tuple[int, int], bytes] = {}
        for queue in range(QUEUES):
            at = 0
            while records := await harness.read(TOPIC, queue, at, max_bytes=1 << 24):
                for stored in records:
                    claim(stored.body in self.sent[queue], f"nobody sent {stored.body!r:.20}")
                    found[queue, stored.queue_offset] = stored.body
                at = records[-1].queue_offset + 1
        claim(len(set(found.values())) == len(found), "a message is there twice")
        for what, messages in (("acknowledged", self.acknowledged), ("shown", self.shown)):
            for place, body in messages.items():
                claim(found.get(place) == body, f"{place} was {what} and is gone: {body!r:.20}")
        claim(len(await harness.bodies(ARCHIVE)) == ARCHIVED, "old messages are gone")
        await harness.end()


async def until_power_cut(disk: SimulatedDisk, work: Awaitable[None], *, patience_s: float) -> None:
    """Wait for the work until the power goes, or to its end. Then end all other tasks.

    A broker that lost its disk never answers: the wait ends after `patience_s` of virtual time.
    """
    try:
        async with asyncio.timeout(patience_s):
            await work
    except PowerCut:
        pass  # in a call of the broker's start, or of the loop's own
    except (MqError, TimeoutError):
        # The power went in a task of the broker: the caller gets an error of the disk, or waits for
        # ever. With a disk that works, neither may happen.
        assert disk.dead
    await end_all_other_tasks()


async def end_all_other_tasks() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def slow_history(seed: int) -> Figures:
    """Lives and dies; raises Broken."""

    async def run() -> Figures:
        history = SlowHistory(seed)
        await history.live()
        await history.aftermath()
        return history.figures

    return on_a_virtual_loop(run)
