"""Pop against a model of one page: messages are sent, leased, acknowledged and changed, time
passes, the disk fails, callers cancel and the broker is killed, and every answer is one that the
model allows.

In the model each message is of a message group; without FIFO, of one of its own.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aerobee_broker.errors import StoreWriteError
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire import properties as props
from aerobee_wire.status import Code
from support.broker.harness import BrokerHarness
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer, Received, lease_set
from support.broker.pop_restarts import failing_disk
from support.clock.virtual_loop import LoopClock, VirtualLoop

T = TypeVar("T")
RETRY_MAX_TIMES = 2


@dataclass
class ModelMessage:
    """A message as it should be. `deadline`: of its lease; None when it is on none."""

    offset: int
    group: str
    attempt: int = 0
    lease_id: int = 0
    deadline: int | None = None
    uncounted: bool = False
    acked: bool = False
    settled: bool = False
    dead: bool = False


class PopMachine(RuleBasedStateMachine):
    fifo = False
    keeps_order = True  # the consumer, where the topic is FIFO

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.folder = Path(tempfile.mkdtemp(prefix="pop-model-"))
        self.starts = 0
        self.clock = LoopClock()
        self.messages: list[ModelMessage] = []
        self.received: list[Received] = []
        self.harness = self.run(self._begin())
        self.run(self._set_up())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.run(self.harness.end())
        self.loop.close()
        shutil.rmtree(self.folder)

    async def _begin(self) -> BrokerHarness:
        harness = await BrokerHarness.begin(self.folder / str(self.starts), clock=self.clock)
        attributes = {"message.type": "FIFO"} if self.fifo else {}
        harness.tables.topics.put(TopicConfig(TOPIC, 1, 1, attributes=attributes))
        await _run_due()
        return harness

    async def _set_up(self) -> None:
        await self.harness.group(GROUP, retry_max_times=RETRY_MAX_TIMES)

    @property
    def consumer(self) -> PopConsumer:
        return PopConsumer(self.harness)

    # ---- the model ----

    def unsettled(self, group: str) -> list[ModelMessage]:
        return [
            message for message in self.messages if message.group == group and not message.settled
        ]

    def settle_front(self, group: str) -> None:
        messages = self.unsettled(group)
        while messages and messages[0].acked:
            messages.pop(0).settled = True
        if all(message.deadline is None for message in messages):
            for message in messages:
                message.acked = False

    def time_passed(self, now: int) -> None:
        leased = [message for message in self.messages if message.deadline is not None]
        for message in sorted(leased, key=lambda message: message.deadline or 0):
            if message.deadline is None or message.deadline > now:
                continue
            message.deadline = None
            if message.attempt > RETRY_MAX_TIMES and not message.uncounted:
                message.settled = message.dead = True
            elif message.uncounted:
                message.attempt, message.uncounted = message.attempt - 1, False
            self.settle_front(message.group)

    def is_leased(self, got: Received) -> bool:
        message = self.messages[got.lease.queue_offset]
        return message.deadline is not None and message.lease_id == got.lease.lease_id

    # ---- requests, time and faults ----

    @rule(names=st.lists(st.sampled_from("abc"), min_size=1, max_size=6))
    def send(self, names: list[str]) -> None:
        for name in names:
            offset = len(self.messages)
            properties = {props.SHARDING_KEY: name}
            self.run(self.harness.send(TOPIC, b"%d" % offset, properties=properties))
            self.messages.append(ModelMessage(offset, name if self.fifo else str(offset)))

    @rule(count=st.integers(1, 5), invisible_ms=st.sampled_from([1_000, 5_000, 60_000]))
    def pop(self, count: int, invisible_ms: int) -> None:
        self.pop_some(count, invisible_ms)

    @rule()
    def pop_one_for_long(self) -> None:
        self.pop_some(1, 60_000)

    def pop_some(self, count: int, invisible_ms: int) -> None:
        async def work() -> tuple[list[Received], int]:
            now = self.clock.monotonic_ms()
            return await self.consumer.pop(
                count, invisible_ms=invisible_ms, fifo=self.keeps_order
            ), now

        got, now = self.run(work())
        assert len(got) <= count
        blocked = {message.group for message in self.messages if message.deadline is not None}
        free = {message.group for message in self.messages if not message.settled} - blocked
        assert got or not free, f"nothing was leased, though {free} could be"
        waiting = {group: self.unsettled(group) for group in free}
        if not self.keeps_order:
            groups = [self.messages[received.lease.queue_offset].group for received in got]
            assert len(groups) == len(set(groups)), "two of one message group"
        for received in got:
            model = self.messages[received.lease.queue_offset]
            assert model.group in waiting, "its message group is on lease, or it is settled"
            assert waiting[model.group].pop(0) is model, "out of order, or with a gap"
            model.attempt += 1
            assert received.attempt == model.attempt
            model.lease_id, model.deadline = received.lease.lease_id, now + invisible_ms
            model.acked = False
        self.received += got

    @precondition(lambda self: self.received)
    @rule(
        data=st.data(), several=st.integers(1, 4), whole_pops=st.booleans(), doubled=st.booleans()
    )
    def ack(self, data: st.DataObject, several: int, whole_pops: bool, doubled: bool) -> None:
        chosen = [data.draw(st.sampled_from(self.received)) for _ in range(several)]
        sets = [[got] for got in chosen]
        if whole_pops:
            of_pop = {got.lease.lease_id: list[Received]() for got in chosen}
            for got in self.received:
                if got.lease.lease_id in of_pop:
                    of_pop[got.lease.lease_id].append(got)
            sets = list(of_pop.values())
        if doubled:
            sets = [of_set + of_set for of_set in sets]
        chosen = [got for of_set in sets for got in of_set]
        expected = []
        now_ms = self.run(_now(self.clock))
        for got in chosen:
            model = self.messages[got.lease.queue_offset]
            if self.is_leased(got):
                model.acked, model.deadline = True, None
                self.settle_front(model.group)
                expected.append(Code.SUCCESS)
                continue
            acked = model.acked and model.lease_id == got.lease.lease_id
            known = (model.settled or acked) and got.lease.expires_ms > now_ms
            expected.append(Code.SUCCESS if known else Code.INVALID_RECEIPT_HANDLE)
        assert (
            self.run(self.consumer.ack_sets(*(lease_set(*of_set) for of_set in sets))) == expected
        )

    @precondition(lambda self: self.received)
    @rule(data=st.data(), invisible_ms=st.sampled_from([0, 500, 30_000]), uncounted=st.booleans())
    def change(self, data: st.DataObject, invisible_ms: int, uncounted: bool) -> None:
        got = data.draw(st.sampled_from(self.received))
        model = self.messages[got.lease.queue_offset]
        is_leased = self.is_leased(got)

        async def work() -> tuple[bool, int]:
            now = self.clock.monotonic_ms()
            changed = await self.consumer.change(got, invisible_ms, uncounted=uncounted)
            await _run_due()
            return changed.error is None, now

        done, now = self.run(work())
        assert done is is_leased
        if is_leased:
            model.deadline, model.uncounted = now + invisible_ms, uncounted
            self.time_passed(now)

    @rule(count=st.integers(1, 5), taken=st.booleans())
    def pop_and_cancel(self, count: int, taken: bool) -> None:
        """`taken`: whether the disk takes the record of the cancelled pop."""

        async def work() -> None:
            self.harness.flusher.hold()
            with nullcontext() if taken else failing_disk(self.harness):
                popping = asyncio.create_task(self.consumer.pop(count, fifo=self.keeps_order))
                await _run_due()
                popping.cancel()
                (got,) = await asyncio.gather(popping, return_exceptions=True)
                assert got == [] or isinstance(got, asyncio.CancelledError)
                self.harness.flusher.let_go()
                await _run_due()

        self.run(work())

    @rule(count=st.integers(1, 5))
    def pop_while_the_disk_fails(self, count: int) -> None:
        self.fail(self.consumer.pop(count, fifo=self.keeps_order), [])

    @precondition(lambda self: self.received)
    @rule(data=st.data())
    def ack_while_the_disk_fails(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(self.received)).lease.lease_id
        of_pop = [got for got in self.received if got.lease.lease_id == lease_id]
        self.fail(self.consumer.ack_sets(lease_set(*of_pop)))

    @precondition(lambda self: self.received)
    @rule(data=st.data())
    def change_while_the_disk_fails(self, data: st.DataObject) -> None:
        got = data.draw(st.sampled_from(self.received))
        if self.is_leased(got):
            self.fail(self.consumer.change(got, 500))

    def fail(self, work: Coroutine[Any, Any, Any], *otherwise: Any) -> None:
        """The request needs no disk, or it is rolled back."""

        async def failing() -> None:
            with failing_disk(self.harness):
                try:
                    result = await work
                except StoreWriteError:
                    pass
                else:
                    assert not otherwise or result in otherwise
                await _run_due()

        self.run(failing())

    @rule(ms=st.sampled_from([1, 400, 1_000, 5_000, 61_000]))
    def wait(self, ms: int) -> None:
        async def work() -> int:
            await asyncio.sleep(ms / 1000)
            await _run_due()
            return self.clock.monotonic_ms()

        self.time_passed(self.run(work()))

    @rule(killed=st.booleans(), without_snapshot=st.booleans())
    def restart(self, killed: bool, without_snapshot: bool) -> None:
        if killed:
            self.starts += 1
            shutil.copytree(self.harness.store.path, self.folder / str(self.starts) / "store")
        self.run(self.harness.end())
        if without_snapshot:
            for file in (self.folder / str(self.starts)).glob("store/config/popLeases*"):
                file.unlink()
        self.harness = self.run(self._begin())

    # ---- invariants ----

    @invariant()
    def the_committed_offset_is_the_first_unsettled_message(self) -> None:
        committed = self.consumer.committed() or 0
        unsettled = [message.offset for message in self.messages if not message.settled]
        assert committed <= min(unsettled, default=len(self.messages))
        if not unsettled or self.messages[unsettled[0]].attempt:
            assert committed == min(unsettled, default=committed)

    @invariant()
    def the_dead_letters_are_those_that_used_up_their_attempts(self) -> None:
        if f"%DLQ%{GROUP}" in self.harness.tables.topics:
            letters = [int(body) for body in self.run(self.harness.bodies(f"%DLQ%{GROUP}"))]
        else:
            letters = []
        assert sorted(letters) == [message.offset for message in self.messages if message.dead]


class FifoMachine(PopMachine):
    fifo = True


class FifoTopicMachine(FifoMachine):
    keeps_order = False


async def _run_due() -> None:
    """Runs every task that is due."""
    for _ in range(40):
        await asyncio.sleep(0)


async def _now(clock: LoopClock) -> int:
    return clock.now_ms()


_SETTINGS = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestPop = PopMachine.TestCase
TestPop.settings = _SETTINGS
TestFifo = FifoMachine.TestCase
TestFifo.settings = _SETTINGS
TestFifoTopic = FifoTopicMachine.TestCase
TestFifoTopic.settings = _SETTINGS
