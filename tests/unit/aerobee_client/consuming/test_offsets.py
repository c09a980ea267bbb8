"""Commits to the brokers: which offsets are sent, and when one of them is refused."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from aerobee_client.consuming.offsets import OffsetStore
from aerobee_client.message_queue import MessageQueue
from aerobee_wire.status import Code, MqError

A, B, C = MessageQueue("t", "a", 0), MessageQueue("t", "b", 0), MessageQueue("gone", "a", 0)


class Brokers:
    """`stored`: (broker, topic) → offset; `refusals`: → why it is not stored. A broker answers
    once its gate, if any, is open."""

    client_id = "c1"

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], int] = {}
        self.calls = 0
        self.gates: dict[str, asyncio.Event] = {}
        self.refusals: dict[tuple[str, str], Code] = {}

    async def call_broker(self, name: str, rpc: Any, request: Any, *, timeout_s: float) -> None:
        self.calls += 1
        if name in self.gates:
            await self.gates[name].wait()
        for offset in request.offsets:
            if (name, offset.topic) in self.refusals:
                raise MqError(self.refusals[name, offset.topic], "refused by this test")
        for offset in request.offsets:
            self.stored[name, offset.topic] = offset.queue_offset


def offsets_at(brokers: Brokers) -> OffsetStore:
    return OffsetStore(cast(Any, brokers), "g")


async def test_a_deleted_topic_does_not_block_other_commits() -> None:
    brokers = Brokers()
    brokers.refusals["a", "gone"] = Code.TOPIC_NOT_EXIST
    offsets = offsets_at(brokers)
    offsets.set(C, 3)
    offsets.set(A, 5)
    deleted: list[MessageQueue] = []
    await offsets.commit(on_topic_deleted=deleted.append)
    assert deleted == [C]
    assert brokers.stored == {("a", "t"): 5}
    calls = brokers.calls
    await offsets.commit([A])
    assert brokers.calls == calls, "it is committed"


async def test_a_hanging_broker_does_not_delay_news_of_a_deleted_topic() -> None:
    brokers = Brokers()
    gate = brokers.gates["b"] = asyncio.Event()
    brokers.refusals["a", "gone"] = Code.TOPIC_NOT_EXIST
    offsets = offsets_at(brokers)
    offsets.set(C, 3)
    offsets.set(B, 5)
    deleted: list[MessageQueue] = []
    committing = asyncio.create_task(offsets.commit(on_topic_deleted=deleted.append))
    await asyncio.sleep(0)
    assert deleted == [C]
    gate.set()
    await committing


async def test_an_unreachable_broker_is_asked_once() -> None:
    brokers = Brokers()
    brokers.refusals["a", "t"] = brokers.refusals["a", "gone"] = Code.BROKER_UNREACHABLE
    offsets = offsets_at(brokers)
    offsets.set(C, 3)
    offsets.set(A, 5)
    await offsets.commit()
    assert brokers.calls == 1


async def test_a_queue_released_meanwhile_is_not_committed() -> None:
    """Its next owner has committed more, while another broker was slow."""
    brokers = Brokers()
    gate = brokers.gates["a"] = asyncio.Event()
    offsets = offsets_at(brokers)
    offsets.set(A, 1)
    offsets.set(B, 10)
    committing = asyncio.create_task(offsets.commit())
    await asyncio.sleep(0)
    await offsets.commit([B])
    offsets.forget(B)
    brokers.stored["b", "t"] = 99
    gate.set()
    await committing
    assert brokers.stored == {("a", "t"): 1, ("b", "t"): 99}


async def test_commits_to_one_broker_do_not_overtake_each_other() -> None:
    brokers = Brokers()
    gate = brokers.gates["a"] = asyncio.Event()
    offsets = offsets_at(brokers)
    offsets.set(A, 1)
    first = asyncio.create_task(offsets.commit())
    await asyncio.sleep(0)
    offsets.advance(A, 2)
    second = asyncio.create_task(offsets.commit([A]))
    await asyncio.sleep(0)
    assert brokers.calls == 1
    gate.set()
    await asyncio.gather(first, second)
    assert brokers.stored == {("a", "t"): 2}
