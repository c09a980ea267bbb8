"""Queue locks: who gets them, when they end, and what they keep others from."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee_broker.delivery.pull.offsets import QueueOffset
from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.registry.clients import Client
from aerobee_broker.registry.consumers import Consumer
from aerobee_broker.registry.queue_locks import LOCK_MS, Holder, QueueLocks
from aerobee_wire.status import Code
from support.broker.harness import Begin, BrokerHarness
from support.codes import raises_code

ALL = compile_filter("TAG", "*")
Q0, Q1 = ("t", 0), ("t", 1)


@pytest.fixture
async def harness(begin: Begin) -> BrokerHarness:
    harness = await begin()
    await harness.broker.topics.put(TopicConfig("t", 2, 2))
    await harness.group("g")
    for client_id in ("a", "b"):
        harness.broker.clients.heartbeat(Client(client_id, consumers={"g": Consumer()}))
    return harness


@pytest.fixture
def locks(harness: BrokerHarness) -> QueueLocks:
    return harness.broker.locks


def holders(found: list[Holder]) -> list[str]:
    return [held.client_id for held in found]


async def pull(harness: BrokerHarness, client_id: str, **fields: Any) -> int:
    """The number of messages."""
    request = PullRequest("g", "t", 0, 0, filter=ALL, client_id=client_id, **fields)
    result, _ = await harness.broker.consuming.pull.pull(request)
    return result.message_count


async def test_the_first_member_gets_a_lock_and_renews_it(locks: QueueLocks) -> None:
    (first,) = locks.lock("g", "a", [Q0])
    assert first.client_id == "a" and first.epoch > 0
    assert locks.lock("g", "b", [Q0, Q1])[0] == Holder("a", 0)
    assert locks.lock("g", "a", [Q0]) == [first]
    assert locks.holders("g") == {Q0: "a", Q1: "b"}


async def test_groups_lock_the_same_queue_side_by_side(
    harness: BrokerHarness, locks: QueueLocks
) -> None:
    harness.broker.clients.heartbeat(Client("c", consumers={"h": Consumer()}))
    assert holders(locks.lock("g", "a", [Q0])) == ["a"]
    assert holders(locks.lock("h", "c", [Q0])) == ["c"]


async def test_a_lock_ends_60_s_after_it_was_asked_for(locks: QueueLocks) -> None:
    locks.lock("g", "a", [Q0])
    await asyncio.sleep(LOCK_MS / 1000 - 1)
    assert holders(locks.lock("g", "b", [Q0])) == ["a"]
    await asyncio.sleep(1)
    assert locks.holders("g") == {}
    assert holders(locks.lock("g", "b", [Q0])) == ["b"]


async def test_a_lock_that_nobody_took_meanwhile_is_the_same_one(locks: QueueLocks) -> None:
    (first,) = locks.lock("g", "a", [Q0])
    await asyncio.sleep(2 * LOCK_MS / 1000)
    assert locks.lock("g", "a", [Q0]) == [first]


async def test_a_lock_that_was_free_has_another_epoch(locks: QueueLocks) -> None:
    (first,) = locks.lock("g", "a", [Q0])
    locks.unlock("g", "a", [Q0])
    (second,) = locks.lock("g", "a", [Q0])
    assert second.epoch > first.epoch


async def test_nobody_unlocks_for_others(locks: QueueLocks) -> None:
    locks.lock("g", "a", [Q0])
    locks.unlock("g", "b", [Q0])
    assert locks.holders("g") == {Q0: "a"}


@pytest.mark.parametrize("way", ["stream", "unregistered", "group", "silent"])
async def test_the_locks_of_a_member_end_with_it(
    harness: BrokerHarness, locks: QueueLocks, way: str
) -> None:
    clients = harness.broker.clients
    watch = clients.watch("a")
    other = clients.watch("b")
    locks.lock("g", "a", [Q0, Q1])
    if way == "stream":
        clients.end_watch(watch)
    elif way == "unregistered":
        clients.unregister("a")
    elif way == "group":
        clients.unregister("a", consumer_group="g")
    else:
        await asyncio.sleep(121)
        clients.heartbeat(Client("b", consumers={"g": Consumer()}))
        clients.scan()
    assert locks.holders("g") == {}
    assert await other.next() == ["g"]


async def test_a_stream_that_was_replaced_frees_nothing(
    harness: BrokerHarness, locks: QueueLocks
) -> None:
    before = harness.broker.clients.watch("a")
    locks.lock("g", "a", [Q0])
    harness.broker.clients.watch("a")
    harness.broker.clients.end_watch(before)
    assert locks.holders("g") == {Q0: "a"}


async def test_who_was_refused_is_notified_when_the_lock_is_free(
    harness: BrokerHarness, locks: QueueLocks
) -> None:
    waiting = harness.broker.clients.watch("b")
    locks.lock("g", "a", [Q0])
    locks.lock("g", "b", [Q0])
    locks.unlock("g", "a", [Q0])
    assert await waiting.next() == ["g"]


@pytest.mark.parametrize(("group", "client_id"), [("g", "stranger"), ("none", "a"), ("g", "")])
async def test_only_members_lock(locks: QueueLocks, group: str, client_id: str) -> None:
    with raises_code(Code.CONSUMER_NOT_ONLINE):
        locks.lock(group, client_id, [Q0])


async def test_a_queue_that_is_not_there_is_nobodys(locks: QueueLocks) -> None:
    assert locks.lock("g", "a", [("t", 2), ("other", 0)]) == [Holder("", 0)] * 2


@pytest.mark.parametrize("client_id", ["b", ""])
async def test_a_locked_queue_is_pulled_by_its_holder_alone(
    harness: BrokerHarness, locks: QueueLocks, client_id: str
) -> None:
    await harness.send("t", b"x")
    locks.lock("g", "a", [Q0])
    assert await pull(harness, "a") == 1
    with raises_code(Code.QUEUE_LOCK_NOT_HELD):
        await pull(harness, client_id, commit_offset=1)
    assert harness.tables.offsets.get("g", "t", 0) is None
    locks.unlock("g", "a", [Q0])
    assert await pull(harness, client_id) == 1


async def test_a_pull_that_claims_a_lock_needs_it(
    harness: BrokerHarness, locks: QueueLocks
) -> None:
    with raises_code(Code.QUEUE_LOCK_NOT_HELD):
        await pull(harness, "a", locked=True)
    locks.lock("g", "a", [Q0])
    assert await pull(harness, "a", locked=True) == 0


async def test_a_long_poll_gets_nothing_of_a_queue_that_was_locked_meanwhile(
    harness: BrokerHarness, locks: QueueLocks
) -> None:
    polling = asyncio.create_task(pull(harness, "b", suspend_timeout_ms=15_000))
    await asyncio.sleep(1)
    locks.lock("g", "a", [Q0])
    await harness.send("t", b"x")
    with raises_code(Code.QUEUE_LOCK_NOT_HELD):
        await polling


async def test_the_offset_of_a_locked_queue_is_committed_by_its_holder_alone(
    harness: BrokerHarness, locks: QueueLocks
) -> None:
    queries = harness.broker.consuming.offset_queries
    for queue_id in (0, 1):
        await harness.send("t", b"x", queue_id=queue_id)
    locks.lock("g", "a", [Q0])
    both = [QueueOffset("t", 1, 1), QueueOffset("t", 0, 1)]
    with raises_code(Code.QUEUE_LOCK_NOT_HELD):
        queries.update("g", both, client_id="b")
    assert queries.stored("g", "t") == []
    queries.update("g", both, client_id="a")
    assert queries.stored("g", "t") == both[::-1]
    with raises_code(Code.QUEUE_LOCK_NOT_HELD):  # of queue 1 it is not the holder
        queries.update("g", both, client_id="a", locked=True)


async def test_an_operator_resets_a_locked_queue(harness: BrokerHarness, locks: QueueLocks) -> None:
    await harness.send("t", b"x", b"y")
    locks.lock("g", "a", [Q0])
    await harness.broker.consuming.offset_queries.reset("g", "t", [0], queue_offset=1)
    assert harness.tables.offsets.get("g", "t", 0) == 1
