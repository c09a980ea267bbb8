"""Who is sent to a slave, and what a slave answers to a pull."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.delivery.pull.pull import SlavePull
from aerobee_broker.delivery.pull.reading import PullRequest, QueueReading, SlowReaders
from aerobee_broker.errors import NoPermission, NotServed, SubscriptionNotExist, TopicNotExist
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.store.messages import Arrival, ReadResult, ReadStatus
from aerobee_wire.record import iter_records
from support.broker.harness import Begin, BrokerHarness
from support.broker.replicas import ScriptedReplicas

ALL = compile_filter("TAG", "*")
BODIES = [b"%d" % number for number in range(10)]


def bodies(result: ReadResult) -> list[bytes]:
    return [record.body for record in iter_records(result.records)]


# ---- who is sent to a slave ----


class Replicas(ScriptedReplicas):
    """One that has everything."""

    def __init__(self, *slaves: int) -> None:
        super().__init__()
        self.has = 1 << 40
        self.slaves = slaves


async def suggested(begin: Begin, *slaves: int, **options: Any) -> list[int]:
    """By the master, to a group that reads the first of ten messages, and to one that reads all."""
    harness = await begin(replicas=Replicas(*slaves), slaveReadEnable=True, **options)
    await harness.broker.topics.put(TopicConfig("t", 1, 1))
    await harness.group("g", which_broker_when_consume_slowly=options.pop("slow", 2))
    await harness.send("t", *BODIES)
    found = []
    for count in (1, 10):
        request = PullRequest("g", "t", 0, 0, max_messages=count, filter=ALL)
        found.append((await harness.broker.consuming.pull.pull(request))[1])
    return found


async def test_a_reader_that_is_far_behind_is_sent_to_the_slave_that_its_group_names(
    begin: Begin,
) -> None:
    assert await suggested(begin, 1, 2, accessMessageInMemoryMaxRatio=0) == [2, 0]


async def test_or_to_the_lowest_that_has_the_messages(begin: Begin) -> None:
    assert await suggested(begin, 3, 1, accessMessageInMemoryMaxRatio=0) == [1, 0]


async def test_a_reader_within_the_share_of_memory_stays_at_the_master(begin: Begin) -> None:
    assert await suggested(begin, 1, 2, accessMessageInMemoryMaxRatio=40) == [0, 0]


async def test_without_a_slave_that_has_them_or_with_slave_reads_off_the_master_is_read(
    begin: Begin,
) -> None:
    assert await suggested(begin, accessMessageInMemoryMaxRatio=0) == [0, 0]
    harness = await begin(replicas=Replicas(1), accessMessageInMemoryMaxRatio=0)
    await harness.broker.topics.put(TopicConfig("u", 1, 1))
    await harness.send("u", *BODIES)
    request = PullRequest("", "u", 0, 0, max_messages=1, browse=True)
    assert (await harness.broker.consuming.pull.pull(request))[1] == 0


# ---- what a slave answers ----


class Slave:
    """A pull of the slave's kind over the store of a broker."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.harness = harness
        self.has_master = False
        self.readable = True
        self.polls = LongPolls()
        consuming = harness.broker.consuming
        self.pulls = SlavePull(
            reading=QueueReading(harness.store, self.polls, harness.options),
            slow_readers=SlowReaders(harness.store, lambda _: (1,), 0),
            access=consuming.pull.access,
            groups=harness.tables.groups,
            metrics=harness.metrics,
            check=self._check,
            refuse=self._refuse,
            has_master=lambda: self.has_master,
        )

    async def pull(self, queue_offset: int, **fields: Any) -> tuple[ReadResult, int]:
        given = {"consumer_group": "g", "filter": ALL, **fields}
        return await self.pulls.pull(
            PullRequest(topic="t", queue_id=0, queue_offset=queue_offset, **given)
        )

    def _check(self) -> None:
        if not self.readable:
            raise self._refuse()

    def _refuse(self) -> NotServed:
        return NotServed("a slave", "10.0.0.1:10911")


@pytest.fixture
async def slave(begin: Begin) -> Slave:
    harness = await begin()
    await harness.broker.topics.put(TopicConfig("t", 1, 1))
    await harness.group("g")
    await harness.send("t", *BODIES)
    return Slave(harness)


async def test_messages_come_with_the_id_to_read_on_from(slave: Slave) -> None:
    result, suggested_id = await slave.pull(0, max_messages=4)
    assert (bodies(result), result.next_begin_offset, suggested_id) == (BODIES[:4], 4, 1)
    result, suggested_id = await slave.pull(4)
    assert (bodies(result), suggested_id) == (BODIES[4:], 0), "near the end: back to the master"


@pytest.mark.parametrize("queue_offset", [11, 1_000])
async def test_a_slave_that_has_not_got_that_far_answers_that_there_is_nothing_new(
    slave: Slave, queue_offset: int
) -> None:
    slave.has_master = True
    result, suggested_id = await slave.pull(queue_offset, suspend_timeout_ms=15_000)
    assert (result.status, result.next_begin_offset) == (ReadStatus.NO_NEW, queue_offset)
    assert suggested_id == 0


async def test_below_its_first_message_too_for_its_log_may_begin_later(
    slave: Slave, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_small(*_: Any, **__: Any) -> ReadResult:
        return ReadResult(ReadStatus.OFFSET_TOO_SMALL, 5, 5, 10)

    monkeypatch.setattr(slave.harness.store, "read", too_small)
    result, _ = await slave.pull(3)
    assert (result.status, result.next_begin_offset) == (ReadStatus.NO_NEW, 3)


async def test_what_is_damaged_here_is_left_to_the_master(
    slave: Slave, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: Any, **__: Any) -> ReadResult:
        return ReadResult(ReadStatus.FOUND, 3, 0, 10, b"", 0, corrupted_count=1)

    monkeypatch.setattr(slave.harness.store, "read", damaged)
    result, suggested_id = await slave.pull(2)
    assert (result.status, result.next_begin_offset, suggested_id) == (ReadStatus.NO_NEW, 2, 0)


async def test_a_pull_waits_only_where_no_master_has_what_comes(slave: Slave) -> None:
    waiting = asyncio.create_task(slave.pull(10, suspend_timeout_ms=15_000))
    await asyncio.sleep(1)
    assert not waiting.done()
    await slave.harness.send("t", b"more")
    slave.polls.arrived([Arrival("t", 0, 10, 11, b"")])
    result, _ = await waiting
    assert bodies(result) == [b"more"]
    slave.has_master = True
    began = slave.harness.clock.monotonic_ms()
    result, _ = await slave.pull(11, suspend_timeout_ms=15_000)
    assert (result.status, slave.harness.clock.monotonic_ms()) == (ReadStatus.NO_NEW, began)


async def test_a_slave_whose_store_is_changed_meanwhile_does_not_read_it(slave: Slave) -> None:
    waiting = asyncio.create_task(slave.pull(10, suspend_timeout_ms=15_000))
    await asyncio.sleep(1)
    slave.readable = False
    slave.polls.close()
    with pytest.raises(NotServed):
        await waiting
    with pytest.raises(NotServed):
        await slave.pull(0)


async def test_it_keeps_no_offset_and_creates_no_group(slave: Slave) -> None:
    await slave.pull(4, commit_offset=4)
    assert slave.harness.tables.offsets.get("g", "t", 0) is None
    with pytest.raises(NotServed):
        await slave.pull(0, consumer_group="new")
    assert slave.harness.tables.groups.get("new") is None


async def test_what_only_the_master_knows_is_not_decided_here(slave: Slave) -> None:
    with pytest.raises(NotServed):
        await slave.pull(0, locked=True)
    with pytest.raises(SubscriptionNotExist):
        await slave.pull(0, filter=None)
    with pytest.raises(TopicNotExist):
        await slave.pulls.pull(PullRequest("g", "unknown", 0, 0, filter=ALL))
    await slave.harness.group("closed", consume_enable=False)
    with pytest.raises(NoPermission):
        await slave.pull(0, consumer_group="closed")
