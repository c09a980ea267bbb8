"""Mutated requests to PopService: each is answered with a code of its contract, none is logged as
an error, and a lease is settled only by a request that names it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from aerobee.broker.v1 import pop_pb2 as pb
from aerobee.broker.v1.message_pb2 import Failure, Subscription
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.record import iter_records
from aerobee_wire.status import Code, MqError
from support.broker.handlers import Handlers
from support.broker.harness import BrokerHarness
from support.clock.virtual_loop import VirtualLoop
from support.proxy.fuzz import mutated

COMMON = {Code.SUCCESS, Code.INVALID_PARAMETER}
POP = COMMON | {
    Code.NO_PERMISSION,
    Code.SUBSCRIPTION_GROUP_NOT_EXIST,
    Code.TOPIC_NOT_EXIST,
    Code.SUBSCRIPTION_PARSE_FAILED,
}
ENTRY = COMMON | {Code.INVALID_RECEIPT_HANDLE}
ALLOWED = {
    "Pop": POP,
    "Ack": ENTRY,
    "Ack sets": ENTRY,
    "ChangeInvisibleDuration": ENTRY,
    "DeadLetter": ENTRY | {Code.QUERY_NOT_FOUND},
}
INVISIBLE_MS = 60_000  # longer than a poll


def pop() -> pb.PopRequest:
    return pb.PopRequest(
        consumer_group="billing",
        topic="orders",
        max_messages=1,
        invisible_duration_ms=INVISIBLE_MS,
        poll_duration_ms=1_000,
        subscription=Subscription(topic="orders", expression="*"),
        start=pb.POP_START_EARLIEST,
    )


def requests(lease: pb.Lease) -> dict[str, Message]:
    """A good request of each RPC."""
    change = pb.InvisibleChange(lease=lease, invisible_duration_ms=10)
    lease_set = pb.LeaseSet(
        consumer_group=lease.consumer_group,
        topic=lease.topic,
        queue_id=lease.queue_id,
        lease_id=lease.lease_id,
        expires_timestamp_ms=lease.expires_timestamp_ms,
        queue_offsets=[lease.queue_offset],
    )
    letter = pb.DeadLetterEntry(lease=lease, failure=Failure(reason="E"))
    return {
        "Pop": pop(),
        "Ack": pb.AckRequest(leases=[lease]),
        "Ack sets": pb.AckRequest(lease_sets=[lease_set]),
        "ChangeInvisibleDuration": pb.ChangeInvisibleDurationRequest(changes=[change]),
        "DeadLetter": pb.DeadLetterRequest(entries=[letter]),
    }


class World:
    def __init__(self, path: Path) -> None:
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.harness = self.runner.run(self._begin(path))
        self._handlers = Handlers(self.harness)
        self.runner.run(self.a_lease())
        self.runner.run(self.let_leases_expire())
        self.before = self.sizes()

    async def _begin(self, path: Path) -> BrokerHarness:
        harness = await BrokerHarness.begin(
            path, flushDiskType="ASYNC_FLUSH", enablePropertyFilter=True
        )
        harness.tables.topics.put(TopicConfig("orders", 1, 1))
        fifo = {"message.type": "FIFO"}
        harness.tables.topics.put(TopicConfig("fifo", 1, 1, attributes=fifo))
        await harness.group("billing", retry_max_times=0)
        await harness.group("orderly", consume_order=ConsumeOrder.ON)
        return harness

    async def ask(self, rpc: str, request: Message) -> Any:
        answer = await self._handlers(rpc.partition(" ")[0], request)
        assert answer is not None
        return answer

    async def a_lease(self) -> pb.Lease:
        """A lease on a new message."""
        await self.harness.send("orders", b"body", properties={"color": "red"})
        answer = await self.ask("Pop", pop())
        (record,) = iter_records(answer.records)
        return pb.Lease(
            consumer_group="billing",
            topic="orders",
            queue_id=record.queue_id,
            queue_offset=record.queue_offset,
            lease_id=answer.lease_id,
            expires_timestamp_ms=answer.pop_time_ms + answer.invisible_duration_ms,
        )

    async def let_leases_expire(self) -> None:
        """Waits for longer than the longest lease."""
        await asyncio.sleep(43_300)

    def sizes(self) -> dict[str, int]:
        broker: Any = self.harness.broker
        queues = list(broker.consuming.leases.table.queues())
        return {
            "polls": broker.polls.parked_pops,
            "polled topics": len(broker.polls._pops.topics),
            "leased": sum(queue.leased_count for queue in queues),
            "watched": len(broker.consuming.leases.deadlines),
            "tasks": len(asyncio.all_tasks(self.runner.get_loop())),
        }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("fuzz"))
    with world.runner:
        yield world
        world.runner.run(world.harness.end())


def name_of(lease: pb.Lease) -> tuple[Any, ...]:
    key = (lease.consumer_group, lease.topic, lease.queue_id, lease.queue_offset)
    return (*key, lease.lease_id)


def named(request: Any) -> set[tuple[Any, ...]]:
    """The leases that a request settles or changes."""
    entries = [*getattr(request, "changes", ()), *getattr(request, "entries", ())]
    leases = getattr(request, "leases", [entry.lease for entry in entries])
    names = set(map(name_of, leases))
    for lease_set in getattr(request, "lease_sets", ()):
        key = (lease_set.consumer_group, lease_set.topic, lease_set.queue_id)
        names |= {(*key, offset, lease_set.lease_id) for offset in lease_set.queue_offsets}
    return names


@pytest.mark.parametrize("rpc", ALLOWED)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_mutated_request_is_answered_and_leaves_nothing_behind(
    world: World, rpc: str, data: st.DataObject
) -> None:
    lease = world.runner.run(world.a_lease())
    request = data.draw(mutated(requests(lease)[rpc], "HANDLE"))

    async def run() -> tuple[list[int], list[int]]:
        try:
            answer = await world.ask(rpc, request)
            codes = [result.code for result in getattr(answer, "results", ())]
            codes += [failure.result.code for failure in getattr(answer, "failures", ())]
        except MqError as error:
            codes = [error.code]
        acked = await world.ask("Ack", pb.AckRequest(leases=[lease]))
        await world.let_leases_expire()
        return codes, [result.code for result in acked.results]

    with structlog.testing.capture_logs() as logs:
        codes, acked = world.runner.run(run())
    assert not [line for line in logs if line["log_level"] in ("error", "critical")]
    assert set(codes) <= ALLOWED[rpc], [Code(code) for code in codes]
    if name_of(lease) not in named(request):
        assert acked == [Code.SUCCESS], "the lease is untouched"
    assert world.sizes() == world.before
