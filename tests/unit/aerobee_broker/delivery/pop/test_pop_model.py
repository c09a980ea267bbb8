"""Pop against a reference that a page can hold: whatever is sent, leased, settled, changed, however
time passes, the disk fails, callers go away and the broker is killed, what comes out is what the
reference allows.

The reference knows rows: the messages of one message group in order. Without FIFO each message is
a row of its own.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aerobee_broker.errors import StoreWriteError
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire import properties as props
from aerobee_wire.status import Code
from support.broker.harness import Parts
from support.broker.pop_consumer import GROUP, TOPIC, Got, PopConsumer, lease_set
from support.clock.virtual_loop import LoopClock, VirtualLoop

T = TypeVar("T")
RETRY_MAX_TIMES = 2


@dataclass
class Model:
    """A message as it should be. `deadline`: of the lease; None when it is on none."""

    offset: int
    row: str
    attempt: int = 0
    lease_id: int = 0
    deadline: int | None = None
    uncounted: bool = False
    acked: bool = False
    settled: bool = False
    dead: bool = False


class PopMachine(RuleBasedStateMachine):
    fifo = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.folder = Path(tempfile.mkdtemp(prefix="pop-model-"))
        self.starts = 0
        self.clock = LoopClock()
        self.messages: list[Model] = []
        self.received: list[Got] = []
        self.parts = self.run(self._begin())
        self.run(self._set_up())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.run(self.parts.end())
        self.loop.close()
        shutil.rmtree(self.folder)

    async def _begin(self) -> Parts:
        parts = await Parts.begin(self.folder / str(self.starts), clock=self.clock)
        parts.tables.topics.put(TopicConfig(TOPIC, 1, 1))
        await _settle()
        return parts

    async def _set_up(self) -> None:
        await self.parts.group(GROUP, retry_max_times=RETRY_MAX_TIMES)

    @property
    def consumer(self) -> PopConsumer:
        return PopConsumer(self.parts)

    # ---- the reference ----

    def row(self, name: str) -> list[Model]:
        return [one for one in self.messages if one.row == name and not one.settled]

    def tidy(self, name: str) -> None:
        row = self.row(name)
        while row and row[0].acked:
            row.pop(0).settled = True
        if not any(one.deadline is not None for one in row):
            for one in row:
                one.acked = False

    def time_passed(self, now: int) -> None:
        ended = [one for one in self.messages if one.deadline is not None and one.deadline <= now]
        for one in sorted(ended, key=lambda one: one.deadline or 0):
            one.deadline = None
            if one.attempt > RETRY_MAX_TIMES and not one.uncounted:
                one.settled = one.dead = True
            elif one.uncounted:
                one.attempt, one.uncounted = one.attempt - 1, False
            self.tidy(one.row)

    def is_alive(self, got: Got) -> bool:
        one = self.messages[got.lease.queue_offset]
        return one.deadline is not None and one.lease_id == got.lease.lease_id

    # ---- what happens ----

    @rule(names=st.lists(st.sampled_from("abc"), min_size=1, max_size=6))
    def send(self, names: list[str]) -> None:
        for name in names:
            offset = len(self.messages)
            properties = {props.SHARDING_KEY: name}
            self.run(self.parts.send(TOPIC, b"%d" % offset, properties=properties))
            self.messages.append(Model(offset, name if self.fifo else str(offset)))

    @rule(count=st.integers(1, 5), invisible_ms=st.sampled_from([1_000, 5_000, 60_000]))
    def pop(self, count: int, invisible_ms: int) -> None:
        self.pop_some(count, invisible_ms)

    @rule()
    def pop_one_for_long(self) -> None:
        self.pop_some(1, 60_000)

    def pop_some(self, count: int, invisible_ms: int) -> None:
        async def work() -> tuple[list[Got], int]:
            now = self.clock.monotonic_ms()
            return await self.consumer.pop(count, invisible_ms=invisible_ms, fifo=self.fifo), now

        got, now = self.run(work())
        assert len(got) <= count
        blocked = {one.row for one in self.messages if one.deadline is not None}
        open_rows = {one.row for one in self.messages if not one.settled} - blocked
        assert got or not open_rows, f"nothing came, though {open_rows} could"
        rows = {name: self.row(name) for name in open_rows}
        for one in got:
            model = self.messages[one.lease.queue_offset]
            assert model.row in rows, "its message group is on lease, or it is settled"
            assert rows[model.row].pop(0) is model, "out of order, or with a gap"
            model.attempt += 1
            assert one.attempt == model.attempt
            model.lease_id, model.deadline = one.lease.lease_id, now + invisible_ms
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
            of_pop = {got.lease.lease_id: list[Got]() for got in chosen}
            for got in self.received:
                if got.lease.lease_id in of_pop:
                    of_pop[got.lease.lease_id].append(got)
            sets = list(of_pop.values())
        if doubled:
            sets = [one + one for one in sets]
        chosen = [got for one in sets for got in one]
        expected = []
        now_ms = self.run(_now(self.clock))
        for got in chosen:
            model = self.messages[got.lease.queue_offset]
            if self.is_alive(got):
                model.acked, model.deadline = True, None
                self.tidy(model.row)
                expected.append(Code.SUCCESS)
                continue
            acked = model.acked and model.lease_id == got.lease.lease_id
            known = (model.settled or acked) and got.lease.expires_ms > now_ms
            expected.append(Code.SUCCESS if known else Code.INVALID_RECEIPT_HANDLE)
        assert self.run(self.consumer.ack_sets(*(lease_set(*one) for one in sets))) == expected

    @precondition(lambda self: self.received)
    @rule(
        data=st.data(),
        invisible_ms=st.sampled_from([0, 500, 30_000]),
        uncounted=st.booleans(),
    )
    def change(self, data: st.DataObject, invisible_ms: int, uncounted: bool) -> None:
        got = data.draw(st.sampled_from(self.received))
        model = self.messages[got.lease.queue_offset]
        alive = self.is_alive(got)

        async def work() -> tuple[bool, int]:
            now = self.clock.monotonic_ms()
            shown = await self.consumer.change(got, invisible_ms, uncounted=uncounted)
            await _settle()
            return shown.error is None, now

        done, now = self.run(work())
        assert done is alive
        if alive:
            model.deadline, model.uncounted = now + invisible_ms, uncounted
            self.time_passed(now)

    @rule(count=st.integers(1, 5), taken=st.booleans())
    def pop_and_go_away(self, count: int, taken: bool) -> None:
        """`taken`: whether the disk takes what nobody waits for any more."""

        async def work() -> None:
            self.parts.flusher.hold()
            with nullcontext() if taken else _failing_disk(self.parts):
                popping = asyncio.create_task(self.consumer.pop(count, fifo=self.fifo))
                await _settle()
                popping.cancel()
                (got,) = await asyncio.gather(popping, return_exceptions=True)
                assert got == [] or isinstance(got, asyncio.CancelledError)
                self.parts.flusher.let_go()
                await _settle()

        self.run(work())

    @rule(count=st.integers(1, 5))
    def pop_while_the_disk_fails(self, count: int) -> None:
        self.fail(self.consumer.pop(count, fifo=self.fifo), [])

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
        if self.is_alive(got):
            self.fail(self.consumer.change(got, 500))

    def fail(self, work: Coroutine[Any, Any, Any], *otherwise: Any) -> None:
        """Either the disk is not needed, or all is as before."""

        async def failing() -> None:
            with _failing_disk(self.parts):
                try:
                    result = await work
                except StoreWriteError:
                    pass
                else:
                    assert not otherwise or result in otherwise
                await _settle()

        self.run(failing())

    @rule(ms=st.sampled_from([1, 400, 1_000, 5_000, 61_000]))
    def wait(self, ms: int) -> None:
        async def work() -> int:
            await asyncio.sleep(ms / 1000)
            await _settle()
            return self.clock.monotonic_ms()

        self.time_passed(self.run(work()))

    @rule(killed=st.booleans(), without_snapshot=st.booleans())
    def restart(self, killed: bool, without_snapshot: bool) -> None:
        if killed:
            self.starts += 1
            shutil.copytree(self.parts.store.path, self.folder / str(self.starts) / "store")
        self.run(self.parts.end())
        if without_snapshot:
            for file in (self.folder / str(self.starts)).glob("store/config/popLeases*"):
                file.unlink()
        self.parts = self.run(self._begin())

    # ---- what always holds ----

    @invariant()
    def the_group_is_where_the_first_unsettled_message_is(self) -> None:
        committed = self.consumer.committed() or 0
        unsettled = [one.offset for one in self.messages if not one.settled]
        assert committed <= min(unsettled, default=len(self.messages))
        if not unsettled or self.messages[unsettled[0]].attempt:
            assert committed == min(unsettled, default=committed)

    @invariant()
    def the_dead_letters_are_those_that_used_up_their_attempts(self) -> None:
        if f"%DLQ%{GROUP}" in self.parts.tables.topics:
            letters = [int(one.body) for one in self.run(self.parts.read(f"%DLQ%{GROUP}"))]
        else:
            letters = []
        assert sorted(letters) == [one.offset for one in self.messages if one.dead]


class FifoMachine(PopMachine):
    fifo = True


async def _settle() -> None:
    """Lets everything that is due happen."""
    for _ in range(40):
        await asyncio.sleep(0)


def _failing_disk(parts: Parts) -> AbstractContextManager[Any]:
    error = StoreWriteError("injected")
    return mock.patch.object(parts.store.flush, "write_and_sync", side_effect=error)


async def _now(clock: LoopClock) -> int:
    return clock.now_ms()


_SETTINGS = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestPop = PopMachine.TestCase
TestPop.settings = _SETTINGS
TestFifo = FifoMachine.TestCase
TestFifo.settings = _SETTINGS
