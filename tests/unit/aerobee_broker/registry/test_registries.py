"""Topics and groups: by hand, by clients, at start; what is refused; what is told to whom."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.disk import RealDisk
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.status import Code, MqError
from support.broker.harness import Parts, message

GOOD = TopicConfig("t", 4, 4)


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    parts = await Parts.begin(tmp_path)
    yield parts
    await parts.end()


# ---- topics ----


async def test_putting_a_topic_says_whether_it_is_new(parts: Parts) -> None:
    put = parts.broker.topics.put
    assert [(await put(GOOD)).created, (await put(GOOD)).created] == [True, False]
    assert not (await put(replace(GOOD, write_queue_count=2))).created
    assert parts.broker.topics.get("t").write_queue_count == 2


async def test_a_topic_that_is_there_stays_as_it_is_for_who_wants_a_new_one(parts: Parts) -> None:
    other = replace(GOOD, write_queue_count=2)
    put = parts.broker.topics.put
    assert [(await put(one, only_new=True)).created for one in (GOOD, other)] == [True, False]
    assert parts.broker.topics.get("t") == GOOD


async def test_a_topic_is_durable_and_announced_before_the_answer(parts: Parts) -> None:
    await parts.broker.topics.put(GOOD)
    stored = parts.tables.saved_topics._file.load() or {}
    assert "t" in stored["topicConfigTable"]
    assert "t" in parts.announced[-1]


async def test_a_change_does_not_count_as_told_with_what_was_under_way(parts: Parts) -> None:
    saved = parts.tables.saved_topics
    writer, gate = saved._writer, asyncio.Event()

    async def slow(function: Callable[[], Any]) -> Any:
        await gate.wait()
        return await writer(function)

    saved._writer = slow
    first = asyncio.create_task(parts.broker.topics.put(GOOD))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(parts.broker.topics.put(replace(GOOD, read_queue_count=9)))
    await asyncio.sleep(0.01)
    gate.set()
    await second
    table = (saved._file.load() or {})["topicConfigTable"]
    assert table["t"]["readQueueNums"] == 9
    await first


async def test_the_answer_names_the_name_servers_that_do_not_know_yet(parts: Parts) -> None:
    parts.unreachable = ["10.0.0.9:9876"]
    put = await parts.broker.topics.put(GOOD)
    assert put.unreachable_namesrvs == ["10.0.0.9:9876"]


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"topic": "a/b"}, Code.INVALID_PARAMETER, "illegal"),
        ({"topic": "TBW102"}, Code.NO_PERMISSION, "system topic"),
        ({"topic": "rmq_sys_x"}, Code.NO_PERMISSION, "system topic"),
        ({"topic": "broker-a"}, Code.NO_PERMISSION, "system topic"),
        ({"topic": "DefaultCluster"}, Code.NO_PERMISSION, "system topic"),
        ({"read_queue_count": 0}, Code.INVALID_PARAMETER, "1 to 65536 queues"),
        ({"write_queue_count": 65_537}, Code.INVALID_PARAMETER, "not 65537"),
        ({"permission": 0}, Code.INVALID_PARAMETER, "6 is both"),
        ({"permission": 16}, Code.INVALID_PARAMETER, "6 is both"),
        ({"attributes": {"message.type": "SLOW"}}, Code.INVALID_PARAMETER, "NORMAL, FIFO"),
        ({"attributes": {"message.type": "MIXED"}}, Code.INVALID_PARAMETER, "enableMixed"),
        ({"attributes": {"cleanup.policy": "COMPACTION"}}, Code.INVALID_PARAMETER, "DELETE"),
        ({"attributes": {"colour": "red"}}, Code.INVALID_PARAMETER, "colour=red"),
        ({"attributes": {"reserve.time": "-2"}}, Code.INVALID_PARAMETER, "reserve.time"),
    ],
)
async def test_a_bad_topic_is_refused_with_what_to_do(
    parts: Parts, fields: dict[str, Any], code: Code, says: str
) -> None:
    before = parts.tables.topics.all()
    with pytest.raises(MqError, match=says) as caught:
        await parts.broker.topics.put(replace(GOOD, **fields))
    assert caught.value.code is code
    assert parts.tables.topics.all() == before


async def test_a_deleted_topic_takes_its_queues_and_offsets_along(parts: Parts) -> None:
    await parts.send("t", b"a", b"b")
    parts.tables.offsets.commit("g", "t", 0, 1)
    assert await parts.broker.administration.delete_topic("t")
    assert not await parts.broker.administration.delete_topic("t")
    assert parts.tables.offsets.get("g", "t", 0) is None
    await parts.send("t", b"new")
    assert await parts.bodies("t") == [b"new"], "a topic of that name starts anew"


async def test_what_a_send_stores_while_its_topic_is_being_deleted_stays(parts: Parts) -> None:
    """The send makes the topic again, before the deletion is saved and told."""
    await parts.send("t", b"old")
    deletion = asyncio.create_task(parts.broker.administration.delete_topic("t"))
    await asyncio.sleep(0)
    assert not deletion.done()
    await parts.send("t", b"new")
    assert await deletion
    assert await parts.bodies("t") == [b"new"]
    assert "t" in parts.announced[-1], "the name servers are told of the new one"


async def test_a_system_topic_stays(parts: Parts) -> None:
    with pytest.raises(MqError) as caught:
        await parts.broker.administration.delete_topic("TBW102")
    assert caught.value.code is Code.NO_PERMISSION


async def test_senders_to_a_topic_that_is_being_made_wait_for_it_too(parts: Parts) -> None:
    gate = asyncio.Event()

    async def slow() -> list[str]:
        await gate.wait()
        return []

    parts.broker.topics._announce = slow
    sends = [asyncio.create_task(parts.send("new", b"x")) for _ in range(3)]
    await asyncio.sleep(1)
    assert not any(send.done() for send in sends)
    gate.set()
    assert [len(await send) for send in sends] == [1, 1, 1]


async def test_a_send_whose_topic_is_deleted_while_it_is_made_stores_nothing(
    parts: Parts,
) -> None:
    """Nobody could read it, and the next start would bring the topic back."""
    gate = asyncio.Event()

    async def slow() -> list[str]:
        await gate.wait()
        return []

    parts.broker.topics._announce = slow
    send = asyncio.create_task(parts.send("new", b"x"))
    await asyncio.sleep(1)
    deletion = asyncio.create_task(parts.broker.administration.delete_topic("new"))
    await asyncio.sleep(1)
    gate.set()
    with pytest.raises(MqError) as caught:
        await send
    assert caught.value.code is Code.TOPIC_NOT_EXIST
    assert await deletion
    assert "new" not in parts.store.topics()


async def test_a_topic_that_only_the_log_knows_is_taken_up(tmp_path: Path) -> None:
    first = await Parts.begin(tmp_path)
    await first.broker.sender.send([message("t", b"a", 3)])
    await first.end()
    for path in (tmp_path / "store" / "config").glob("topics.json*"):
        path.unlink()
    second = await Parts.begin(tmp_path)
    assert await second.bodies("t", [3]) == [b"a"]
    await second.end()


async def test_without_auto_creation_tbw102_goes(tmp_path: Path) -> None:
    first = await Parts.begin(tmp_path)
    assert first.broker.topics.get("TBW102").permission == 7
    await first.end()
    second = await Parts.begin(tmp_path, autoCreateTopicEnable=False)
    assert "TBW102" not in second.tables.topics
    await second.end()


class FullDisk(RealDisk):
    full = False

    def rename(self, source: Path, target: Path) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().rename(source, target)


async def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    disk = FullDisk()
    parts = await Parts.begin(tmp_path, disk=disk)
    disk.full = True
    for _ in range(2):  # the second one finds the topic in the table
        with pytest.raises(MqError, match=r"topics\.json: No space left.*make room") as caught:
            await parts.broker.topics.put(GOOD)
        assert caught.value.code is Code.SYSTEM_ERROR
        with pytest.raises(MqError, match=r"topics\.json: No space left.*make room"):
            await parts.send("t", b"a")
    disk.full = False
    announced = len(parts.announced)
    await parts.broker.topics.put(GOOD)
    assert "t" in (parts.tables.saved_topics._file.load() or {})["topicConfigTable"]
    assert len(parts.announced) == announced + 1
    await parts.end()


async def test_a_kill_in_the_middle_of_a_group_s_deletion_leaves_no_offsets_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await Parts.begin(tmp_path)
    await parts.send("t", b"a")
    await parts.group("g")
    parts.tables.offsets.commit("g", "t", 0, 1)
    await parts.tables.saved_offsets.save()
    seen: list[bool] = []
    save = parts.tables.saved_groups.save

    async def look() -> None:
        offsets = (parts.tables.saved_offsets._file.load() or {})["offsetTable"]
        seen.append("t@g" in offsets)
        await save()

    monkeypatch.setattr(parts.tables.saved_groups, "save", look)
    assert await parts.broker.administration.delete_group("g", remove_offsets=True)
    assert seen == [False]
    await parts.end()


async def test_a_group_whose_deletion_was_not_saved_leaves_nothing_to_its_successor(
    tmp_path: Path,
) -> None:
    disk = FullDisk()
    parts = await Parts.begin(tmp_path, disk=disk)
    await parts.send("t", b"a")
    await parts.group("g")
    parts.tables.offsets.commit("g", "t", 0, 1)
    disk.full = True
    with pytest.raises(MqError, match="No space left"):
        await parts.broker.administration.delete_group("g", remove_offsets=True)
    disk.full = False
    assert not await parts.broker.administration.delete_group("g", remove_offsets=True)
    assert parts.tables.offsets.get("g", "t", 0) is None
    await parts.end()


# ---- groups ----


async def test_putting_a_group_makes_its_retry_topic(parts: Parts) -> None:
    assert await parts.broker.groups.put(SubscriptionGroup("g", retry_queue_count=2))
    assert not await parts.broker.groups.put(SubscriptionGroup("g", retry_max_times=3))
    assert parts.broker.topics.get("%RETRY%g").read_queue_count == 2
    assert parts.broker.groups.get("g").retry_max_times == 3


async def test_whoever_uses_a_group_that_is_being_made_waits_for_it_too(parts: Parts) -> None:
    saved = parts.tables.saved_groups
    writer, gate = saved._writer, asyncio.Event()

    async def slow(function: Callable[[], Any]) -> Any:
        await gate.wait()
        return await writer(function)

    saved._writer = slow
    uses = [asyncio.create_task(parts.broker.groups.for_client("new")) for _ in range(3)]
    await asyncio.sleep(1)
    assert not any(use.done() for use in uses)
    gate.set()
    await asyncio.wait(uses[-1:])
    assert "new" in (saved._file.load() or {})["subscriptionGroupTable"]
    assert [(await use).consumer_group for use in uses] == ["new"] * 3


async def test_a_group_that_could_not_be_saved_is_saved_by_its_next_use(tmp_path: Path) -> None:
    disk = FullDisk()
    parts = await Parts.begin(tmp_path, disk=disk)
    disk.full = True
    for _ in range(2):  # the second one finds the group in the table
        with pytest.raises(MqError, match=r"subscriptionGroup\.json: No space left.*make room"):
            await parts.broker.groups.for_client("new")
    disk.full = False
    await parts.broker.groups.for_client("new")
    stored = parts.tables.saved_groups._file.load() or {}
    assert "new" in stored["subscriptionGroupTable"]
    assert parts.broker.groups.ready("new") is not None
    await parts.end()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"consumer_group": ""}, "blank"),
        ({"consumer_group": "x" * 121}, "at most 120"),
        ({"retry_max_times": -1}, "one attempt"),
        ({"retry_queue_count": -1}, "retry queues"),
        ({"retry_delays_ms": (-1,)}, "retry delay"),
        ({"retry_delays_ms": tuple(range(65))}, "at most 64"),
        ({"retry_delays_ms": (2**40,)}, "40 days"),
    ],
)
async def test_a_bad_group_is_refused_with_what_to_do(
    parts: Parts, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(MqError, match=says) as caught:
        await parts.broker.groups.put(replace(SubscriptionGroup("g"), **fields))
    assert caught.value.code is Code.INVALID_PARAMETER


async def test_a_deleted_group_may_leave_its_offsets(parts: Parts) -> None:
    await parts.send("t", b"a")
    for forget, left in ((False, 1), (True, None)):
        await parts.group("g")
        parts.tables.offsets.commit("g", "t", 0, 1)
        assert await parts.broker.administration.delete_group("g", remove_offsets=forget)
        assert parts.tables.offsets.get("g", "t", 0) == left
    assert not await parts.broker.administration.delete_group("g", remove_offsets=False)


async def test_a_system_group_stays(parts: Parts) -> None:
    with pytest.raises(MqError) as caught:
        await parts.broker.administration.delete_group("CID_RMQ_SYS_TRANS", remove_offsets=False)
    assert caught.value.code is Code.NO_PERMISSION


async def test_topics_and_groups_survive_a_restart(tmp_path: Path) -> None:
    first = await Parts.begin(tmp_path)
    await first.broker.topics.put(replace(GOOD, attributes={"message.type": "FIFO"}))
    await first.group("g", retry_max_times=2, retry_delays_ms=(5, 7))
    await first.send("t", b"a", queue_id=2)
    first.tables.offsets.commit("g", "t", 2, 1)
    await first.end()
    second = await Parts.begin(tmp_path)
    assert second.broker.topics.get("t").attributes == {"message.type": "FIFO"}
    assert second.broker.groups.get("g").retry_delays_ms == (5, 7)
    assert second.tables.offsets.of("g", "t") == {2: 1}
    await second.end()
