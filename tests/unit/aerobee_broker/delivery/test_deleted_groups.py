"""A deleted consumer group, and a later one of its name: its retries, leases and redrives."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.delivery.letters.journal_records import JobState
from aerobee_broker.delivery.retry.send_back import Entry
from aerobee_broker.errors import DiskFull, StoreWriteError
from aerobee_wire.status import Code
from support.broker.harness import Begin, BrokerHarness
from support.broker.letters import DLQ, GROUP, fill, spec
from support.codes import raises_code

RETRY = f"%RETRY%{GROUP}"


async def delete(harness: BrokerHarness, *, remove_offsets: bool = True) -> bool:
    return await harness.broker.administration.delete_group(GROUP, remove_offsets=remove_offsets)


async def fail(harness: BrokerHarness, body: bytes, *, delay_ms: int) -> None:
    """Store a message, and send it back with this delay."""
    (stored,) = await harness.send("orders", body)
    entry = Entry(stored.physical_offset, delay_ms=delay_ms)
    (outcome,) = await harness.broker.sending.send_back.send_back(GROUP, [entry])
    assert outcome.error is None


async def test_a_recreated_group_gets_no_retry_of_the_deleted_one(harness: BrokerHarness) -> None:
    await harness.group(GROUP)
    await fail(harness, b"stored", delay_ms=0)
    await fail(harness, b"waits", delay_ms=20_000)
    assert await harness.bodies(RETRY) == [b"stored"]
    assert await delete(harness)
    assert RETRY not in harness.tables.topics
    assert RETRY not in harness.announced[-1]
    await harness.group(GROUP)
    assert await harness.bodies(RETRY) == []
    await asyncio.sleep(60)
    await fail(harness, b"new", delay_ms=0)
    assert await harness.bodies(RETRY) == [b"new"]


async def test_a_recreated_group_gets_no_old_retry_after_a_restart(begin: Begin) -> None:
    harness = await begin()
    await harness.group(GROUP)
    await fail(harness, b"stored", delay_ms=0)
    assert await delete(harness)
    harness = await begin()
    assert RETRY not in harness.tables.topics
    await harness.group(GROUP)
    assert await harness.bodies(RETRY) == []


async def test_a_group_that_keeps_its_offsets_keeps_its_retries(harness: BrokerHarness) -> None:
    await harness.group(GROUP)
    await fail(harness, b"stored", delay_ms=0)
    assert await delete(harness, remove_offsets=False)
    await harness.group(GROUP)
    assert await harness.bodies(RETRY) == [b"stored"]


async def test_a_group_recreated_during_its_deletion_gets_new_retries_only(
    harness: BrokerHarness,
) -> None:
    await harness.group(GROUP)
    await fail(harness, b"old", delay_ms=0)
    deletion = asyncio.create_task(delete(harness))
    await asyncio.sleep(0)
    await harness.group(GROUP)
    await fail(harness, b"new", delay_ms=0)
    assert await deletion
    assert await harness.bodies(RETRY) == [b"new"]
    assert harness.tables.groups.get(GROUP) is not None


async def test_dead_letters_of_a_deleted_group_stay(harness: BrokerHarness) -> None:
    await fill(harness, 3)
    assert await delete(harness)
    assert len(await harness.bodies(DLQ)) == 3


async def test_a_redrive_to_a_deleted_group_is_cancelled(
    harness: BrokerHarness, begin: Begin
) -> None:
    await fill(harness, 500)
    job, _ = await harness.broker.letters.start_job("job", spec(target="retry", rate=1))
    await asyncio.sleep(5)
    assert await delete(harness)
    sent = job.sent
    await harness.group(GROUP)
    await asyncio.sleep(60)
    assert (job.state, job.sent) == (JobState.CANCELLED, sent)
    assert await harness.bodies(RETRY) == []
    harness = await begin()
    assert harness.broker.letters.get("job").state is JobState.CANCELLED


async def test_a_redrive_to_a_topic_outlives_the_group(harness: BrokerHarness) -> None:
    await fill(harness, 20)
    job, _ = await harness.broker.letters.start_job("job", spec(rate=1))
    await asyncio.sleep(2)
    assert await delete(harness)
    await asyncio.sleep(60)
    assert (job.state, job.sent) == (JobState.DONE, 20)


async def test_a_full_disk_refuses_the_deletion_of_a_group_with_retries(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.group(GROUP)
    await fail(harness, b"stored", delay_ms=0)

    def add(*_: object) -> None:
        raise OSError(28, "injected")

    with monkeypatch.context() as patched:
        patched.setattr(harness.store._deleted_topics, "add", add)
        with pytest.raises(StoreWriteError):
            await delete(harness)
    assert harness.tables.groups.get(GROUP) is not None
    assert await harness.bodies(RETRY) == [b"stored"]
    assert await delete(harness)


async def test_a_full_disk_refuses_a_deletion_that_cancels_a_redrive(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(harness, 500)
    job, _ = await harness.broker.letters.start_job("job", spec(target="retry", rate=1))
    await asyncio.sleep(5)
    sent = len(await harness.bodies(RETRY))
    monkeypatch.setattr(harness.store._retention, "stop", "the disk is at its stop mark")
    with pytest.raises(DiskFull):
        await delete(harness)
    assert harness.tables.groups.get(GROUP) is not None
    assert len(await harness.bodies(RETRY)) >= sent > 0
    monkeypatch.setattr(harness.store._retention, "stop", "")
    assert job.is_running
    assert await delete(harness)


async def test_a_send_back_stores_nothing_once_its_group_is_deleted(
    harness: BrokerHarness,
) -> None:
    """The creation of the dead-letter topic waits, and the group is deleted meanwhile."""
    await harness.group(GROUP)
    (stored,) = await harness.send("orders", b"a")
    entry = Entry(stored.physical_offset, delay_ms=0)
    failing = asyncio.create_task(harness.broker.sending.send_back.send_back(GROUP, [entry]))
    await asyncio.sleep(0)
    assert await delete(harness)
    with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
        await failing
    assert harness.store.queues(RETRY) == []


async def test_a_send_back_creates_a_retry_topic_that_is_deleted_meanwhile(
    harness: BrokerHarness,
) -> None:
    """The creation of the dead-letter topic waits, and an operator drops the retries."""
    await harness.group(GROUP)
    (stored,) = await harness.send("orders", b"a")
    entry = Entry(stored.physical_offset, delay_ms=0)
    failing = asyncio.create_task(harness.broker.sending.send_back.send_back(GROUP, [entry]))
    await asyncio.sleep(0)
    assert DLQ in harness.tables.topics
    assert await harness.broker.administration.delete_topic(RETRY)
    assert (await failing)[0].error is None
    assert RETRY in harness.tables.topics
    assert await harness.bodies(RETRY) == [b"a"]
