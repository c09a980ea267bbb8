"""The TTL of lite topics: those without a message for so long are gone, also after a restart."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from aerobee.broker.v1 import lite_pb2 as pb

from aerobee_broker.delivery.lite import ttl
from aerobee_broker.errors import StoreReadOnly
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.status import Code
from support.broker.handlers import Handlers
from support.broker.harness import Begin, BrokerHarness
from support.clock.virtual_loop import LoopClock
from support.codes import raises_code
from support.disk.damage import lose_derived_files
from support.disk.simulated_disk import SimulatedDisk
from support.lite.broker_client import (
    ADD,
    GROUP,
    PARENT,
    REPLACE,
    LiteConsumer,
    bind,
    bodies,
    make_parent,
    send_lite,
)
from support.observing.series import series_value

MINUTE_S = 60


async def broker_with_ttl(begin: Begin, minutes: int = 1) -> BrokerHarness:
    harness = await begin()
    await make_parent(harness, lite_topic_expiration=str(minutes))
    await bind(harness)
    return harness


async def expire(harness: BrokerHarness) -> None:
    await harness.broker.lite.ttl.round()


async def listed(harness: BrokerHarness, group: str = GROUP) -> dict[str, tuple[int, int]]:
    """Lite topic → messages, lag."""
    request = pb.ListLiteTopicsRequest(parent=PARENT, consumer_group=group)
    answer = await Handlers(harness)("ListLiteTopics", request)
    return {each.lite_topic: (each.messages, each.lag) for each in answer.lite_topics}


def unsettled(harness: BrokerHarness, group: str = GROUP) -> float:
    value = series_value(
        harness.metrics.registry,
        "aerobee_lite_messages_expired_unsettled_total",
        {"topic": PARENT, "consumer_group": group},
    )
    assert value is None or isinstance(value, int)
    return value or 0


async def test_what_has_no_message_for_so_long_is_gone(begin: Begin) -> None:
    """With all of its messages; a message just before keeps every other one."""
    harness = await broker_with_ttl(begin)
    await send_lite(harness, "old", b"0", b"1")
    await send_lite(harness, "kept", b"0")
    await asyncio.sleep(MINUTE_S - 1)
    await send_lite(harness, "kept", b"1")
    await expire(harness)
    assert await listed(harness) == {"old": (2, 2), "kept": (2, 2)}
    await asyncio.sleep(2)
    await expire(harness)
    assert await listed(harness) == {"kept": (2, 2)}
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "old", "kept", first=True)
    assert bodies(await consumer.pop()) == [b"0", b"1"]
    assert unsettled(harness) == 2


async def test_a_subscriber_gets_what_comes_later(begin: Begin) -> None:
    """And nothing of before, without subscribing again; the parent still has all of it."""
    harness = await broker_with_ttl(begin)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a")
    await send_lite(harness, "a", b"0", b"1")
    await consumer.ack(await consumer.pop(1))
    await asyncio.sleep(MINUTE_S + 1)
    await expire(harness)
    waiting = asyncio.create_task(consumer.pop(poll_ms=20_000))
    await asyncio.sleep(1)
    assert not waiting.done()
    await send_lite(harness, "a", b"2")
    got = await waiting
    assert [(each.body, each.attempt) for each in got] == [(b"2", 1)]
    assert await consumer.ack(got) == [0]
    assert await listed(harness) == {"a": (1, 0)}
    assert unsettled(harness) == 1
    assert await harness.bodies(PARENT) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    "lost", [(), ("lite",), ("liteOffsets",), ("lite", "liteOffsets")], ids=str
)
async def test_it_stays_gone(begin: Begin, tmp_path: Path, lost: tuple[str, ...]) -> None:
    """After a restart, also without what is derived: no head, no link, no offset."""
    harness = await broker_with_ttl(begin)
    await send_lite(harness, "a", b"0", b"1")
    await send_lite(harness, "b", b"0", queue_id=1)
    await asyncio.sleep(MINUTE_S + 1)
    await expire(harness)
    await send_lite(harness, "a", b"2")
    await harness.end()
    for name in lost:
        path = tmp_path / "store" / name
        assert path.exists()
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    harness = await begin()
    assert await listed(harness) == {"a": (1, 1)}
    consumer = LiteConsumer(harness)
    await consumer.sync(REPLACE, "a", "b")
    assert bodies(await consumer.pop()) == [b"2"]


async def test_what_expires_while_the_broker_is_down_is_gone_when_it_is_back(begin: Begin) -> None:
    harness = await broker_with_ttl(begin)
    await send_lite(harness, "a", b"0")
    await harness.end()
    await asyncio.sleep(MINUTE_S + 1)
    harness = await begin()
    assert await listed(harness) == {}
    assert unsettled(harness) == 1


async def test_messages_on_lease_may_still_be_acknowledged(begin: Begin) -> None:
    """They do not come again, and hold up nothing that follows; nor do they after a restart."""
    harness = await broker_with_ttl(begin)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a", "b")
    await send_lite(harness, "a", b"0", b"1")
    await send_lite(harness, "b", b"0")
    held = await consumer.pop(invisible_ms=300_000)
    assert len(held) == 3
    await asyncio.sleep(MINUTE_S + 1)
    await expire(harness)
    assert unsettled(harness) == 3
    assert not any(each.in_flight for each in harness.broker.lite.leases.table.queues())
    await send_lite(harness, "a", b"2")
    (new,) = await consumer.pop()
    assert new.body == b"2"
    assert await consumer.ack([*(each for each in held if each.lite_topic == "a"), new]) == [0] * 3
    harness = await begin()
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a", "b")
    await asyncio.sleep(300)
    await send_lite(harness, "b", b"1")
    assert bodies(await consumer.pop(poll_ms=1_000)) == [b"1"]
    assert harness.metrics.dead_letters == 0


async def test_what_a_group_had_not_settled_is_counted_for_each(begin: Begin) -> None:
    harness = await broker_with_ttl(begin)
    await bind(harness, "others")
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a", "b")
    await send_lite(harness, "a", b"0", b"1", b"2")
    await send_lite(harness, "b", b"0")
    await consumer.ack(await consumer.pop(2))
    await asyncio.sleep(MINUTE_S + 1)
    await expire(harness)
    assert (unsettled(harness), unsettled(harness, "others")) == (2, 4)


async def test_what_is_gone_takes_no_memory(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """In slices of a few; one that begins anew between them keeps what is new."""
    monkeypatch.setattr(ttl, "SLICE", 5)
    harness = await broker_with_ttl(begin)
    names = [f"n{number}" for number in range(23)]
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, *names)
    for name in names:
        await send_lite(harness, name, b"0")
    await consumer.ack(await consumer.pop(10))
    await asyncio.sleep(MINUTE_S + 1)
    rounds = asyncio.create_task(expire(harness))
    await asyncio.sleep(0)
    await send_lite(harness, "n22", b"1")
    await rounds
    (queue,) = [queue for _, queue in harness.broker.lite.dispatch.lines.lite_queues(PARENT)]
    assert len(queue) == 1
    assert len(harness.broker.lite.positions) <= 2  # the expiration, and perhaps that one
    assert bodies(await consumer.pop()) == [b"1"]
    assert await consumer.pop() == []
    assert unsettled(harness) == 13


async def test_the_setting_may_be_changed(begin: Begin) -> None:
    harness = await begin()
    await make_parent(harness)
    await send_lite(harness, "a", b"0")
    await asyncio.sleep(100 * MINUTE_S)
    await expire(harness)
    for minutes, left in (("-1", 1), ("0", 1), ("101", 1), ("100", 0)):
        await make_parent(harness, lite_topic_expiration=minutes)
        await asyncio.sleep(1 if minutes == "100" else 0)
        await expire(harness)
        assert len(await listed(harness, "")) == left


async def test_only_a_parent_has_one(begin: Begin) -> None:
    harness = await begin()
    for attributes in (
        {"lite.topic.expiration": "5"},
        {"lite.topic.expiration": "43201", "message.type": "LITE"},
    ):
        with raises_code(Code.INVALID_PARAMETER):
            await harness.broker.topics.put(TopicConfig("t", 1, 1, attributes=attributes))


async def test_a_parent_that_is_made_again_has_all_of_its_messages(begin: Begin) -> None:
    """Expirations of the one before do not concern them; also after a restart."""
    harness = await broker_with_ttl(begin)
    for number in range(5):
        await send_lite(harness, f"n{number}", b"0")
    await asyncio.sleep(MINUTE_S + 1)
    await expire(harness)
    await harness.broker.administration.delete_topic(PARENT)
    await make_parent(harness, lite_topic_expiration="1")
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a")
    for number in range(8):
        await send_lite(harness, "a", b"%d" % number)
    harness = await begin()
    assert await listed(harness) == {"a": (8, 8)}


@pytest.mark.parametrize("seed", range(4))
async def test_a_kill_right_after_a_deletion_hides_no_later_message(seed: int) -> None:
    """What the journal has of the parent before is forgotten at the start, for good."""
    disk, path = SimulatedDisk(seed), Path("/data")
    harness = await BrokerHarness.begin(path, disk=disk)
    await make_parent(harness, lite_topic_expiration="1")
    await bind(harness)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a", "b")
    for name in ("a", "b", "b"):
        await send_lite(harness, name, b"old")
    await consumer.ack(await consumer.pop())
    await asyncio.sleep(MINUTE_S + 1)
    await expire(harness)
    await send_lite(harness, "a", b"old")
    await consumer.ack(await consumer.pop())
    await harness.broker.lite.state.save(everything=True)
    harness.store.delete_topic(PARENT)  # and no further: the journal does not know it
    left = disk.after_power_cut(seed)
    await harness.end()
    harness = await BrokerHarness.begin(path, disk=left, clock=harness.clock)
    assert harness.store.max_offset(PARENT, 0) == 0
    for number in range(8):
        await send_lite(harness, "a", b"%d" % number)
    await harness.end()
    left.remove(path / "store" / "liteOffsets")
    left.remove_tree(path / "store" / "lite")
    harness = await BrokerHarness.begin(path, disk=left, clock=harness.clock)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a", "b")
    assert bodies(await consumer.pop()) == [b"%d" % number for number in range(8)]
    await harness.end()


async def test_a_store_that_takes_nothing_keeps_them(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would not be durable does not happen."""
    harness = await broker_with_ttl(begin)
    await send_lite(harness, "a", b"0")
    await asyncio.sleep(MINUTE_S + 1)

    def refuse(*, reserve: bool = False) -> None:
        raise StoreReadOnly("a flush failed")

    with monkeypatch.context() as patch:
        patch.setattr(harness.store, "check_open_to_appends", refuse)
        await expire(harness)
    assert await listed(harness) == {"a": (1, 1)}
    await expire(harness)
    assert await listed(harness) == {}


class World:
    """`left`: lite topic → its messages that are neither settled nor expired; `last_ms`: when its
    last one was stored."""

    def __init__(self) -> None:
        self.left: dict[str, list[bytes]] = defaultdict(list)
        self.last_ms: dict[str, int] = {}
        self.sent = 0

    async def send(self, harness: BrokerHarness, name: str) -> None:
        body = b"%d" % self.sent
        self.sent += 1
        await send_lite(harness, name, body, queue_id=int(name[1:]) % 2)
        self.left[name].append(body)
        self.last_ms[name] = harness.clock.now_ms()

    def expire(self, now_ms: int) -> None:
        for name, last_ms in self.last_ms.items():
            if last_ms < now_ms - MINUTE_S * 1_000:
                self.left[name].clear()

    async def consume(self, consumer: LiteConsumer, count: int) -> int:
        got = await consumer.pop(count)
        for each in got:
            assert self.left[each.lite_topic].pop(0) == each.body
        assert set(await consumer.ack(got)) <= {0}
        return len(got)


@pytest.mark.parametrize("ending", ["power cut", "kill"])
@pytest.mark.parametrize("seed", range(12))
async def test_through_kills_and_power_cuts(seed: int, ending: str) -> None:
    """Each message is delivered in its order, or has expired; none comes back. With any of the
    derived files lost or damaged."""
    rng, disk, world = random.Random(seed), SimulatedDisk(seed), World()
    names = [f"n{number}" for number in range(8)]
    path = Path("/data")
    harness = await BrokerHarness.begin(path, disk=disk)
    await make_parent(harness, lite_topic_expiration="1")
    await bind(harness)
    for _ in range(4):
        consumer = LiteConsumer(harness)
        await consumer.sync(REPLACE, *names)
        for _ in range(rng.randrange(40)):
            match rng.randrange(8):
                case 0 | 1 | 2 | 3:
                    await world.send(harness, rng.choice(names))
                case 4:
                    await world.consume(consumer, rng.randrange(1, 5))
                case 5:
                    await asyncio.sleep(rng.randrange(40))
                    await consumer.sync(REPLACE, *names)
                case 6:
                    await expire(harness)
                    world.expire(harness.clock.now_ms())
                case 7:
                    state = harness.broker.lite.state
                    state.maintain()
                    await state.save(everything=rng.random() < 0.5)
        left = disk.after_power_cut(seed) if ending == "power cut" else disk.copy()
        await harness.end()
        disk = left
        lose_derived_files(disk, rng)
        harness = await BrokerHarness.begin(path, disk=disk, clock=harness.clock)
        world.expire(harness.clock.now_ms())
    consumer = LiteConsumer(harness)
    await consumer.sync(REPLACE, *names)
    while await world.consume(consumer, 32):
        pass
    assert not any(world.left.values())
    await harness.end()


async def test_a_spell_with_the_clock_in_the_past_expires_no_young_lite_topic(
    begin: Begin,
) -> None:
    harness = await broker_with_ttl(begin)
    clock = harness.clock
    assert isinstance(clock, LoopClock)
    await send_lite(harness, "old", b"0")
    await asyncio.sleep(MINUTE_S + 1)
    await send_lite(harness, "young", b"0")
    clock.jump(-3_600_000)
    for number in range(9):
        await send_lite(harness, f"past{number}", b"0")
    clock.jump(3_600_000)
    await send_lite(harness, "new", b"0")
    await expire(harness)
    found = await listed(harness)
    assert "old" not in found
    assert {"young", "new"} <= set(found)
    await asyncio.sleep(MINUTE_S + 1)
    await expire(harness)
    assert await listed(harness) == {}
