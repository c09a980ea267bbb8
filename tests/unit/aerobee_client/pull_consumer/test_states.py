"""Members that poll, seek, commit, come, go and die, against a model, driven by Hypothesis on a
virtual clock.

Each poll goes on at the position in each queue and leaves nothing out. No committed offset passes a
message that no earlier poll returned, no commit names, and no seek passed over. What is behind the
committed offsets in the end is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aerobee_client.errors import BrokerUnreachable
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.consumer import ConsumeFromWhere
from aerobee_client.pull_consumer import AsyncPullConsumer
from aerobee_client.pulling.unread import Lent
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import Code
from support.client.consumer_group import GROUP, TOPIC, committed
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.clock.virtual_loop import LoopClock, VirtualLoop
from support.codes import raises_code

R = TypeVar("R")

QUEUES = [MessageQueue(TOPIC, "a", queue_id) for queue_id in range(3)]
QUEUE = st.sampled_from(QUEUES)
MEMBERS = 3
CHOICE = st.integers(0, MEMBERS - 1)
AT_ONCE, A_WHILE = timedelta(0), timedelta(seconds=2)


class Network:
    """The transport of one member; `cut`: the member has died."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cut = False
        self._cluster = cluster

    async def call(
        self, address: str, rpc: Rpc[Any, Any], request: Any, *, timeout_s: float
    ) -> Any:
        if self.cut:
            raise BrokerUnreachable(address, "this member has died")
        return await self._cluster.call(address, rpc, request, timeout_s=timeout_s)

    def stream(self, address: str, rpc: Rpc[Any, Any], request: Any) -> AsyncGenerator[Any, None]:
        return self._cluster.stream(address, rpc, request)

    def expect(self, address: str, broker_name: str) -> None:
        """No certificates here."""

    async def drop(self, address: str) -> None: ...

    async def close(self) -> None: ...


class Member:
    """`returned`: what the last poll gave, of queues that were neither lost nor sought since.
    `lent`: what a loop in another thread was handed; `next_offsets`: of each holding, for it."""

    def __init__(self, cluster: MemoryCluster, *, auto_commit: bool) -> None:
        self.auto_commit = auto_commit
        self.network = Network(cluster)
        self.consumer = AsyncPullConsumer(
            GROUP,
            namesrv=NAMESRV,
            transport=self.network,
            clock=LoopClock(),
            auto_commit=auto_commit,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            pull_batch_size=4,
            pull_threshold_for_queue=6,
        )
        self.returned: list[tuple[object, MessageQueue, int]] = []
        self.lent: Lent | None = None
        self.next_offsets: dict[object, int] = {}

    def holding(self, queue: MessageQueue) -> object:
        """Stands for one acquisition of a queue, or one seek in it."""
        membership = self.consumer._running()._membership
        assert membership is not None
        return membership.assignment.process_queue(queue)


class GroupMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.broker = MemoryBroker("a", "10.0.0.11:10911")
        self.broker.create(TOPIC, len(QUEUES))
        self.cluster = MemoryCluster(self.broker)
        self.members: list[Member] = []
        # What a committed offset may pass.
        self.passed: dict[MessageQueue, set[int]] = {queue: set() for queue in QUEUES}

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        return self.runner.run(coroutine)

    def member(self, choice: int) -> Member:
        return self.members[choice % len(self.members)]

    def is_up(self) -> bool:
        return not self.cluster.down

    def end(self, queue: MessageQueue) -> int:
        return len(self.broker.queues[TOPIC, queue.queue_id])

    # ---- what may happen ----

    @rule(queue=QUEUE, count=st.integers(1, 9))
    def append(self, queue: MessageQueue, count: int) -> None:
        for _ in range(count):
            self.broker.append(TOPIC, queue.queue_id, b"x", b"")
        self.run(self.broker.wake())

    @precondition(lambda self: len(self.members) < MEMBERS and self.is_up())
    @rule(auto_commit=st.booleans())
    def join(self, auto_commit: bool) -> None:
        async def start() -> None:
            member = Member(self.cluster, auto_commit=auto_commit)
            member.consumer.subscribe(TOPIC)
            await member.consumer.start()
            self.members.append(member)

        self.run(start())

    @precondition(lambda self: self.members)
    @rule(choice=CHOICE, dies=st.booleans())
    def leave(self, choice: int, dies: bool) -> None:
        member = self.members.pop(choice % len(self.members))

        async def end() -> None:
            member.network.cut = dies
            for notices in list(self.broker.watchers.values()) if dies else ():
                notices.put_nowait(None)  # every stream ends; those who live open theirs again
            await member.consumer.close()

        self.run(end())

    @precondition(lambda self: self.members)
    @rule(choice=CHOICE, most=st.integers(1, 12), waits=st.booleans())
    def poll(self, choice: int, most: int, waits: bool) -> None:
        member = self.member(choice)

        async def poll() -> None:
            consumer = member.consumer
            before = {queue: await consumer.position(queue) for queue in consumer.queues}
            holdings = {queue: member.holding(queue) for queue in before}
            self.count_returned(member)
            messages = await consumer.poll(most, A_WHILE if waits else AT_ONCE)
            assert len(messages) <= most
            found: dict[MessageQueue, list[int]] = {}
            for message in messages:
                queue = MessageQueue(TOPIC, "a", message.queue_id)
                found.setdefault(queue, []).append(message.queue_offset)
            for queue, offsets in found.items():
                holding = member.holding(queue)
                first = before[queue] if holding is holdings.get(queue) else offsets[0]
                assert offsets == list(range(first, first + len(offsets)))
                assert await consumer.position(queue) == offsets[-1] + 1
                member.returned += [(holding, queue, offset) for offset in offsets]

        self.run(poll())

    @precondition(lambda self: self.members)
    @rule(choice=CHOICE, count=st.integers(1, 6))
    def begin_loop(self, choice: int, count: int) -> None:
        """The plain class loops: its messages are lent together, and taken one by one."""
        member = self.member(choice)

        async def begin() -> None:
            consumer = member.consumer
            member.next_offsets = {
                member.holding(queue): await consumer.position(queue) for queue in consumer.queues
            }
            self.count_returned(member)
            member.lent = await consumer._running().unread.lend(0)

        self.run(begin())
        self.take(member, count)

    @precondition(lambda self: self.members)
    @rule(choice=CHOICE, count=st.integers(1, 6))
    def go_on_with_loop(self, choice: int, count: int) -> None:
        self.take(self.member(choice), count)

    def take(self, member: Member, count: int) -> None:
        for _ in range(count):
            message = member.lent.take() if member.lent is not None else None
            if message is None:
                break
            self.count_returned(member)
            queue = MessageQueue(TOPIC, "a", message.queue_id)
            holding, queue_offset = member.holding(queue), message.queue_offset
            assert queue_offset == member.next_offsets.get(holding, queue_offset)
            member.next_offsets[holding] = queue_offset + 1
            member.returned = [(holding, queue, queue_offset)]

    def count_returned(self, member: Member) -> None:
        """The poll before is consumed, except for what was lost or sought."""
        for holding, queue, offset in member.returned:
            if member.auto_commit and member.holding(queue) is holding:
                self.passed[queue].add(offset)
        member.returned.clear()

    @precondition(lambda self: self.members and self.is_up())
    @rule(choice=CHOICE, queue=QUEUE, part=st.floats(0, 1))
    def seek(self, choice: int, queue: MessageQueue, part: float) -> None:
        member = self.member(choice)
        queue_offset = round(part * self.end(queue))

        async def seek() -> None:
            if queue not in member.consumer.queues:
                with raises_code(Code.ILLEGAL_OPERATION):
                    await member.consumer.seek(queue, queue_offset)
                return
            if member.auto_commit:
                self.passed[queue].update(range(queue_offset))
            await member.consumer.seek(queue, queue_offset)
            assert await member.consumer.position(queue) == queue_offset
            with raises_code(Code.INVALID_PARAMETER):
                await member.consumer.seek(queue, self.end(queue) + 1)

        self.run(seek())

    @precondition(lambda self: self.members and self.is_up())
    @rule(choice=CHOICE)
    def commit(self, choice: int) -> None:
        member = self.member(choice)

        async def commit() -> None:
            consumer = member.consumer
            positions = {queue: await consumer.position(queue) for queue in consumer.queues}
            for queue, position in positions.items():
                self.passed[queue].update(range(position))
            done = await consumer.commit()
            assert done == positions
            for queue, position in done.items():
                if queue in consumer.queues:
                    assert self.broker.offsets[GROUP, TOPIC, queue.queue_id] == position
            for queue in set(QUEUES) - consumer.queues:
                with raises_code(Code.ILLEGAL_OPERATION):
                    await consumer.commit({queue: 0})

        self.run(commit())

    @rule(seconds=st.sampled_from([0.05, 1.0, 6.0, 45.0]))
    def wait(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule()
    def broker_dies_or_comes_back(self) -> None:
        if self.is_up():
            self.run(self.cluster.kill(self.broker))
        else:
            self.cluster.revive(self.broker)

    # ---- what always holds ----

    @invariant()
    def no_committed_offset_passes_an_unread_message(self) -> None:
        for queue in QUEUES:
            stored = self.broker.offsets.get((GROUP, TOPIC, queue.queue_id), 0)
            assert set(range(stored)) <= self.passed[queue], queue

    @invariant()
    def every_offset_that_a_broker_sees_is_known(self) -> None:
        for pull in self.cluster.requests("Pull"):
            assert pull.queue_offset >= 0 and pull.commit_offset >= 0
        self.cluster.calls.clear()

    def teardown(self) -> None:
        async def finish() -> None:
            self.cluster.revive(self.broker)
            await asyncio.sleep(45)
            for member in self.members:
                await member.consumer.close()
            behind = sum(map(self.end, QUEUES)) - committed(self.broker)
            last = Member(self.cluster, auto_commit=True)
            last.consumer.subscribe(TOPIC)
            async with last.consumer as consumer:
                await asyncio.sleep(45)
                read = [message async for message in consumer.read_to_end()]
            assert len(read) == behind
            assert committed(self.broker) == sum(map(self.end, QUEUES))
            assert len(asyncio.all_tasks()) == 1

        if hasattr(self, "runner"):
            self.run(finish())
            self.runner.close()


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
