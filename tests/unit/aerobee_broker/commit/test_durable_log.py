"""DurableLog: a flush timeout is no failure, a rollback is, and the backlog is bounded."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from aerobee_broker.delivery.retry.send_back import Entry
from aerobee_broker.errors import DiskFull, FlushTimeout, TooMuchUnflushed
from aerobee_broker.store.messages import NewMessage
from aerobee_wire.status import Code
from support.broker.harness import Begin, BrokerHarness, PromptWorker
from support.broker.pop_consumer import PopConsumer
from support.clock.virtual_loop import run_ready_tasks
from support.disk.broken_disk import BrokenDisk

TIMEOUT_S = 5  # syncFlushTimeout
PAST_TIMEOUT_S = TIMEOUT_S + 0.1


# ---- put_accepted ----


async def test_put_accepted_waits_beyond_flush_timeouts(harness: BrokerHarness) -> None:
    """To store the messages again after a timeout would deliver them twice."""
    harness.flusher.hold()
    with capture_logs() as logs:
        put = asyncio.create_task(harness.broker.log.put_accepted([NewMessage("t", 0, b"a")]))
        await asyncio.sleep(3 * PAST_TIMEOUT_S)
    assert not put.done()
    assert [line["event"] for line in logs] == ["flush_slow"] * 3
    harness.flusher.let_go()
    assert [place.queue_offset for place in await put] == [1]
    assert await harness.bodies("t") == [b"first", b"a"]


async def test_put_accepted_fails_when_it_is_rolled_back(
    harness: BrokerHarness, disk: BrokenDisk
) -> None:
    harness.flusher.hold()
    put = asyncio.create_task(harness.broker.log.put_accepted([NewMessage("t", 0, b"a")]))
    await asyncio.sleep(PAST_TIMEOUT_S)
    disk.write_error = errno.ENOSPC
    harness.flusher.let_go()
    with pytest.raises(DiskFull):
        await put
    assert await harness.bodies("t") == [b"first"]


# ---- when_flushed ----


async def test_when_flushed_calls_once_after_flush_timeouts(harness: BrokerHarness) -> None:
    outcomes: list[BaseException | None] = []
    harness.flusher.hold()
    harness.store.append([NewMessage("t", 0, b"a")])
    first = harness.broker.log.when_flushed(outcomes.append)
    await asyncio.sleep(2 * PAST_TIMEOUT_S)
    assert outcomes == []
    assert isinstance(first.exception(), FlushTimeout)
    harness.flusher.let_go()
    await run_ready_tasks()
    assert outcomes == [None]


async def test_when_flushed_reports_a_rollback_before_the_next_append(
    harness: BrokerHarness, disk: BrokenDisk
) -> None:
    ends: list[int] = []
    disk.write_error = errno.ENOSPC
    before = harness.store.end_offset
    harness.store.append([NewMessage("t", 0, b"a")])
    harness.broker.log.when_flushed(
        lambda error: ends.append(harness.store.end_offset if isinstance(error, DiskFull) else -1)
    )
    send = asyncio.create_task(harness.send("t", b"b"))
    await run_ready_tasks()
    assert ends == [before]
    assert isinstance(send.exception(), DiskFull)


@pytest.mark.parametrize("rollback_first", [True, False])
async def test_a_rollback_in_the_turn_of_a_flush_timeout_is_reported_once(
    begin: Begin, disk: BrokenDisk, rollback_first: bool
) -> None:
    """To wait again would be to wait for the next append with these offsets."""
    harness = await begin(disk=disk, flusher=PromptWorker())
    await harness.send("t", b"first")
    outcomes: list[BaseException | None] = []
    loop = asyncio.get_running_loop()
    await asyncio.sleep(PAST_TIMEOUT_S)  # the timer of the first send is over
    harness.flusher.hold()
    disk.write_error = errno.ENOSPC
    harness.store.append([NewMessage("t", 0, b"a")])
    if rollback_first:
        loop.call_later(TIMEOUT_S, harness.flusher.let_go)
    harness.broker.log.when_flushed(outcomes.append)
    if not rollback_first:
        loop.call_later(TIMEOUT_S, harness.flusher.let_go)
    await asyncio.sleep(PAST_TIMEOUT_S)
    assert [type(error) for error in outcomes] == [FlushTimeout if rollback_first else DiskFull]
    disk.write_error = 0
    await harness.send("t", b"b")
    assert len(outcomes) == 1


# ---- the backlog ----


@asynccontextmanager
async def full_backlog(harness: BrokerHarness) -> AsyncIterator[None]:
    """A send waits for the disk, with more bytes than may wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aerobee_broker.commit.durable_log.MAX_UNFLUSHED_BYTES", 1_000)
        harness.flusher.hold()
        send = asyncio.create_task(harness.send("t", b"x" * 2_000))
        await run_ready_tasks()
        yield
        harness.flusher.let_go()
        await send


async def test_a_full_backlog_refuses_sends(harness: BrokerHarness) -> None:
    async with full_backlog(harness):
        with pytest.raises(TooMuchUnflushed) as caught:
            await harness.send("t", b"y")
    assert (caught.value.code, caught.value.retryable) == (Code.SYSTEM_BUSY, True)
    assert caught.value.retry_after_ms


async def test_a_full_backlog_refuses_pops_and_send_backs_but_no_acks(
    harness: BrokerHarness,
) -> None:
    await harness.group("billing")
    [stored] = await harness.send("t", b"a")
    consumer = PopConsumer(harness, "billing", "t")
    [got] = await consumer.pop(1, start="earliest")
    async with full_backlog(harness):
        with pytest.raises(TooMuchUnflushed):
            await consumer.pop(1)
        with pytest.raises(TooMuchUnflushed):
            await harness.broker.sending.send_back.send_back(
                "billing", [Entry(stored.physical_offset)]
            )
        ack = asyncio.create_task(consumer.ack(got))
        await run_ready_tasks()
    assert await ack == [Code.SUCCESS]
    assert len(await consumer.pop()) == 2, "the refused pop leased nothing"
