"""Requests that nobody would send, to every RPC, over a real broker: each has an answer of the
StatusCode table, none is unforeseen, and none leaves anything behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aerobee_proxy.v2.status import Refused
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.handles.leases import key_of
from aerobee_wire.handles.receipt_handle import decode, encode
from aerobee_wire.status import Code as BrokerCode
from support.clock.virtual_loop import VirtualLoop
from support.codes import raises_code
from support.proxy.fuzz import bytes_or_text, mutated
from support.proxy.public_codes import ALLOWED, ANY, UNKNOWN, C
from support.proxy.public_requests import VALID, receive
from support.proxy.whole_cluster import SERVICE, WholeCluster

HANDLE = "HANDLE"  # stands for a good receipt handle


class World:
    """A cluster on a loop of its own, and the sizes of its tables."""

    def __init__(self, path: Path) -> None:
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.cluster = self.runner.run(self._begin(path))
        self.runner.run(self._warm_up())  # what the first message adds stays
        self.before = self.sizes()

    async def _begin(self, path: Path) -> WholeCluster:
        # Small limits, so that small requests reach them.
        cluster = await WholeCluster.begin(
            path,
            broker_options={"flushDiskType": "ASYNC_FLUSH", "autoCreateTopicEnable": False},
            max_message_size=64,
            max_user_property_size=256,
            user_property_max_num=4,
        )
        cluster.topic("orders", "NORMAL")
        cluster.topic("fifo", "FIFO")
        await cluster.broker.group("billing")
        await cluster.broker.group("orderly", consume_order=ConsumeOrder.ON)
        return cluster

    async def _warm_up(self) -> None:
        await self.one_handle()
        await self.quiet()

    def sizes(self) -> dict[str, int]:
        """The size of everything that a request could make grow."""
        proxy, broker = self.cluster.proxy, self.cluster.broker
        batches: Any = proxy.batches
        route_cache: Any = proxy.route_cache
        background: Any = proxy.background
        return {
            "sessions": len(proxy.sessions),
            "renewals": len(proxy.lease_renewal),
            "batchers": len(
                {*batches._sends, *batches._acks, *batches._changes, *batches._ends} - {"broker-a"}
            ),
            "flights": len(route_cache._route_flights),
            "addresses": len(route_cache._addresses),
            "background": len(background._tasks),
            "tasks": len(asyncio.all_tasks(self.runner.get_loop())),
            "polls": broker.broker.polls.count,
            "clients": len(list(broker.broker.clients.all())),
            "topics": len([t for t in broker.tables.topics.all() if t.topic in ("orders", "fifo")]),
        }

    async def quiet(self) -> None:
        """Lets time pass: silent clients expire, leases end."""
        cluster = self.cluster
        await asyncio.sleep(130)
        cluster.proxy.sessions.expire(cluster.clock.monotonic_ms())
        await cluster.proxy.lease_renewal.scan()
        cluster.broker.broker.clients.scan()

    async def one_handle(self) -> str:
        cluster = self.cluster
        await cluster.ask("SendMessage", VALID["SendMessage"](""))
        answers = await cluster.ask("ReceiveMessage", receive(batch_size=1))
        assert answers[0].status.code == Code.OK, answers
        return str(answers[1].message.system_properties.receipt_handle)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("fuzz"))
    with world.runner:
        yield world
        world.runner.run(world.cluster.end())


def statuses(rpc: str, answers: list[Any]) -> list[int]:
    if rpc == "ReceiveMessage":
        kinds = [answer.WhichOneof("content") for answer in answers]
        assert kinds == ["status", *["message"] * (len(kinds) - 2), "delivery_timestamp"]
    found = [answer.status for answer in answers if answer.HasField("status")]
    entries = [e.status for answer in answers for e in getattr(answer, "entries", ())]
    assert found or rpc == "Telemetry"
    return [status.code for status in (*found, *entries)]


@pytest.mark.parametrize("rpc", [method.name for method in SERVICE.methods])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_request_is_answered_and_leaks_nothing(
    world: World, rpc: str, data: st.DataObject
) -> None:
    request = data.draw(mutated(VALID[rpc](HANDLE), HANDLE))
    remaining_s = data.draw(st.sampled_from([None, 0.0, -1.0, 0.3, 1e9]))

    async def run() -> list[Any]:
        handle = await world.one_handle()
        good = type(request).FromString(request.SerializeToString())
        put_handle(good, handle)
        try:
            return await world.cluster.ask(rpc, good, time_remaining_s=remaining_s)
        finally:
            await world.quiet()

    with structlog.testing.capture_logs() as logs:
        try:
            codes = statuses(rpc, world.runner.run(run()))
        except Refused as refused:  # how a telemetry stream ends
            assert rpc == "Telemetry"
            codes = [refused.code]
    defects = [line for line in logs if line["log_level"] in ("error", "critical")]
    assert not defects and not world.cluster.transport.defects
    allowed = ANY | ALLOWED[rpc] | UNKNOWN.get(rpc, set())
    assert set(codes) <= allowed, [Code.Name(code) for code in codes]
    assert world.sizes() == world.before


def put_handle(request: Any, handle: str) -> None:
    """Replaces HANDLE in the request."""
    if getattr(request, "receipt_handle", "") == HANDLE:
        request.receipt_handle = handle
    for entry in getattr(request, "entries", ()):
        put_handle(entry, handle)


@settings(max_examples=300, deadline=None)
@given(text=bytes_or_text())
@example("")
@example("====")
def test_malformed_receipt_handle(text: str) -> None:
    with raises_code(BrokerCode.INVALID_RECEIPT_HANDLE):
        decode(text)


FORGED = {
    "broker_name": st.sampled_from(["", "broker-a", "broker-b", "x" * 255]),
    "topic": st.sampled_from(["orders", "fifo", "nobody", "%DLQ%billing", "rmq_sys_x"]),
    "consumer_group": st.sampled_from(["billing", "orderly", "nobody", "CID_RMQ_SYS_x"]),
    "queue_id": st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)]),
    "queue_offset": st.sampled_from([0, 1, -1, 10**6, 2**63 - 1, -(2**63)]),
    "lease_id": st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]),
    "pop_time_ms": st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]),
    "invisible_duration_ms": st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)]),
    "delivery_attempt": st.sampled_from([0, 1, 2**16 - 1]),
    "of_retry_topic": st.booleans(),
    "fifo": st.booleans(),
}


@pytest.mark.parametrize(
    "rpc", ["AckMessage", "ForwardMessageToDeadLetterQueue", "ChangeInvisibleDuration"]
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_made_up_handle_changes_nothing(world: World, rpc: str, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(list(FORGED)), min_size=1, unique=True))
    change: dict[str, Any] = {name: data.draw(FORGED[name]) for name in names}

    async def run() -> tuple[bool, list[Any], int]:
        handle = await world.one_handle()
        forged = decode(handle)._replace(**change)
        request: Any = VALID[rpc](encode(forged))
        request.topic.name, request.group.name = forged.topic, forged.consumer_group
        answers = await world.cluster.ask(rpc, request)
        (genuine,) = await world.cluster.ask("AckMessage", VALID["AckMessage"](handle))
        await world.quiet()
        return key_of(forged) == key_of(decode(handle)), answers, genuine.entries[0].status.code

    with structlog.testing.capture_logs() as logs:
        same, answers, genuine = world.runner.run(run())
    assert not [line for line in logs if line["log_level"] in ("error", "critical")]
    assert not world.cluster.transport.defects
    if not same:
        # OK: of a message that was acknowledged before, before the end that the handle names.
        repeated = {C.OK} if rpc == "AckMessage" else set()
        away = C.HA_NOT_AVAILABLE  # of a broker that nobody knows
        assert set(statuses(rpc, answers)) <= {*ALLOWED[rpc], C.BAD_REQUEST, away, *repeated}
        assert genuine == Code.OK, "the lease of the genuine handle is as it was"
    assert world.sizes() == world.before


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(place=st.integers(0, 200), letter=st.sampled_from("AZaz09-_=+/ é"))
def test_damaged_handle_changes_nothing(world: World, place: int, letter: str) -> None:
    async def run() -> tuple[str, str, int]:
        handle = await world.one_handle()
        at = place % len(handle)
        bad = handle[:at] + letter + handle[at + 1 :]
        (answer,) = await world.cluster.ask("AckMessage", VALID["AckMessage"](bad))
        await world.quiet()
        return handle, bad, answer.entries[0].status.code

    handle, bad, code = world.runner.run(run())
    assert code == (Code.OK if bad == handle else Code.INVALID_RECEIPT_HANDLE)


def test_unspoilt_requests_succeed(world: World) -> None:
    """The requests are good before they are spoilt."""

    async def run(rpc: str) -> int:
        handle = await world.one_handle()
        answers = await world.cluster.ask(rpc, VALID[rpc](handle))
        await world.quiet()
        return int(answers[0].status.code)

    # These need a transaction or a delayed message.
    for rpc in VALID.keys() - {"EndTransaction", "RecallMessage", "SyncLiteSubscription"}:
        assert world.runner.run(run(rpc)) == Code.OK, rpc
