"""A commit whose broker has a replica: what waits for it, what does not, and what is shown."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_broker.delivery.retry.send_back import Entry
from aerobee_broker.delivery.transaction.transactions import End, Resolution
from aerobee_broker.errors import (
    Deposed,
    DiskFull,
    FlushSlaveTimeout,
    FlushTimeout,
    StoreFlushError,
    TooFewReplicas,
    TooMuchUnflushed,
)
from aerobee_broker.store.messages import NewMessage
from aerobee_wire.status import Code, grpc_status_of
from support.broker.harness import BrokerHarness
from support.broker.pop_consumer import PopConsumer
from support.broker.replicas import ScriptedReplicas
from support.broker.transactions import half
from support.clock.virtual_loop import run_ready_tasks
from support.disk.broken_disk import BrokenDisk

PAST_TIMEOUT_S = 5.1  # syncFlushTimeout


@pytest.fixture(params=["SYNC_FLUSH", "ASYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def replicas() -> ScriptedReplicas:
    return ScriptedReplicas()


@pytest.fixture
async def harness(
    tmp_path: Path, disk: BrokenDisk, replicas: ScriptedReplicas, flush: str
) -> AsyncIterator[BrokerHarness]:
    """b"first" is in topic t, on the replica too."""
    replicas.has = 1 << 40
    harness = await BrokerHarness.begin(tmp_path, disk=disk, replicas=replicas, flushDiskType=flush)
    await harness.send("t", b"first")
    await harness.broker.log.flushed()
    replicas.has = harness.store.end_offset
    yield harness
    disk.write_error = disk.sync_error = 0
    replicas.enough = True
    harness.flusher.let_go()
    catch_up(harness, replicas)
    await run_ready_tasks()
    await harness.end()


def catch_up(harness: BrokerHarness, replicas: ScriptedReplicas) -> None:
    replicas.has = 1 << 40
    harness.broker.commit.advance()


async def until_flushed(harness: BrokerHarness) -> None:
    """On this broker's own disk: with asynchronous flush too."""
    await run_ready_tasks()
    for _ in range(25):  # flushCommitLogThoroughInterval is 10 s
        if harness.store.flushed_offset < harness.store.end_offset:
            await asyncio.sleep(0.5)
    await run_ready_tasks()


async def test_a_send_is_answered_and_shown_once_the_replica_has_it(
    harness: BrokerHarness, replicas: ScriptedReplicas
) -> None:
    send = asyncio.create_task(harness.send("t", b"a"))
    await run_ready_tasks()
    assert not send.done()
    assert replicas.reported[-1] == harness.store.written_offset == harness.store.end_offset
    catch_up(harness, replicas)
    assert (await send)[0].queue_offset == 1
    await until_flushed(harness)
    assert await harness.bodies("t") == [b"first", b"a"]


async def test_what_a_failover_may_take_back_is_flushed_and_not_shown(
    harness: BrokerHarness, replicas: ScriptedReplicas
) -> None:
    replicas.shows = False
    catch_up(harness, replicas)
    await harness.send("t", b"a")
    await until_flushed(harness)
    await harness.broker.log.flushed()
    shown = asyncio.create_task(harness.broker.log.visible())
    await run_ready_tasks()
    assert not shown.done()
    assert await harness.bodies("t") == [b"first"]
    replicas.shows = True
    harness.broker.commit.advance()
    await shown
    assert await harness.bodies("t") == [b"first", b"a"]


async def test_nothing_runs_while_only_the_replica_is_waited_for(
    harness: BrokerHarness,
) -> None:
    harness.store.append([NewMessage("t", 0, b"a")])
    waiting = asyncio.create_task(harness.broker.log.flushed())
    await until_flushed(harness)
    calls = harness.flusher.calls
    await asyncio.sleep(1)
    assert harness.flusher.calls == calls and not waiting.done()
    assert harness.store.confirmed_offset < harness.store.flushed_offset
    with pytest.raises(FlushSlaveTimeout):
        await waiting


async def test_one_report_ends_the_waits_of_several_groups_and_no_others(
    harness: BrokerHarness, replicas: ScriptedReplicas
) -> None:
    sends = []
    ends = []
    for body in (b"a", b"b", b"c"):
        sends.append(asyncio.create_task(harness.send("t", body)))
        await run_ready_tasks()
        ends.append(harness.store.end_offset)
    replicas.has = ends[1]
    harness.broker.commit.advance()
    await run_ready_tasks()
    assert [send.done() for send in sends] == [True, True, False]
    catch_up(harness, replicas)
    await sends[2]


async def test_a_send_that_the_replica_does_not_get_ends_with_its_own_code(
    harness: BrokerHarness, replicas: ScriptedReplicas
) -> None:
    with pytest.raises(FlushSlaveTimeout) as caught:
        await harness.send("t", b"a")
    assert (caught.value.code, caught.value.retryable) == (Code.FLUSH_SLAVE_TIMEOUT, False)
    assert grpc_status_of(caught.value.code) == "DEADLINE_EXCEEDED"
    catch_up(harness, replicas)
    await until_flushed(harness)
    assert await harness.bodies("t") == [b"first", b"a"], "it is stored"


@pytest.mark.parametrize("flush", ["SYNC_FLUSH"], indirect=True)
async def test_a_disk_that_hangs_is_distinguished_from_a_replica_that_does(
    harness: BrokerHarness,
) -> None:
    harness.flusher.hold()
    with pytest.raises(FlushTimeout) as caught:
        await harness.send("t", b"a")
    assert caught.value.code is Code.FLUSH_DISK_TIMEOUT


async def test_with_asynchronous_replication_only_what_is_shown_waits(
    harness: BrokerHarness, replicas: ScriptedReplicas
) -> None:
    replicas.waits = False
    assert (await harness.send("t", b"a"))[0].queue_offset == 1
    await until_flushed(harness)
    assert await harness.bodies("t") == [b"first"]
    catch_up(harness, replicas)
    assert await harness.bodies("t") == [b"first", b"a"]


async def test_with_too_few_replicas_sends_store_nothing_and_settlements_go_on(
    harness: BrokerHarness, replicas: ScriptedReplicas
) -> None:
    await harness.group("billing")
    catch_up(harness, replicas)
    [stored] = await harness.send("t", b"a")
    await harness.broker.log.flushed()
    open_half = await half(harness)
    await harness.broker.log.flushed()
    consumer = PopConsumer(harness, "billing", "t")
    got = await consumer.pop(2, start="earliest")
    replicas.enough = False
    before = harness.store.end_offset
    with pytest.raises(TooFewReplicas) as caught:
        await harness.send("t", b"b")
    assert (caught.value.code, caught.value.retryable) == (Code.SLAVE_NOT_AVAILABLE, True)
    assert "broker-a/1" in caught.value.message
    with pytest.raises(TooFewReplicas):
        await half(harness)
    with pytest.raises(TooFewReplicas):
        await harness.broker.sending.send_back.send_back("billing", [Entry(stored.physical_offset)])
    commit = End(open_half.transaction_id, open_half.queue_offset, Resolution.COMMIT)
    [outcome] = await harness.broker.transactions.end([commit])
    assert isinstance(outcome, TooFewReplicas)
    assert harness.store.end_offset == before, "nothing was stored"
    assert await consumer.ack(*got) == [Code.SUCCESS] * 2
    back = End(open_half.transaction_id, open_half.queue_offset, Resolution.ROLLBACK)
    assert await harness.broker.transactions.end([back]) == [None]


async def test_sends_under_way_are_not_acknowledged_by_too_few_replicas(
    harness: BrokerHarness, replicas: ScriptedReplicas
) -> None:
    send = asyncio.create_task(harness.send("t", b"a"))
    await run_ready_tasks()
    replicas.enough = False
    catch_up(harness, replicas)
    await run_ready_tasks()
    assert not send.done()
    replicas.enough = True
    harness.broker.commit.advance()
    await send


async def test_what_waits_for_replicas_counts_against_the_room(
    harness: BrokerHarness, replicas: ScriptedReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas.waits = False
    monkeypatch.setattr("aerobee_broker.commit.durable_log.MAX_UNFLUSHED_BYTES", 1_000)
    await harness.send("t", b"x" * 2_000)
    await until_flushed(harness)
    with pytest.raises(TooMuchUnflushed):
        await harness.send("t", b"y")
    catch_up(harness, replicas)
    await harness.send("t", b"y")


async def test_a_failed_write_leaves_the_waits_for_what_is_flushed(
    harness: BrokerHarness, replicas: ScriptedReplicas, disk: BrokenDisk
) -> None:
    first = asyncio.create_task(harness.send("t", b"a"))
    await run_ready_tasks()
    reported = list(replicas.reported)
    disk.write_error = errno.ENOSPC
    with pytest.raises(DiskFull):
        await harness.send("t", b"b")
    assert replicas.reported == reported, "a replica hears of nothing that is rolled back"
    assert not first.done()
    catch_up(harness, replicas)
    assert (await first)[0].queue_offset == 1


async def test_a_replica_that_gathers_hears_of_a_write_too(
    harness: BrokerHarness, replicas: ScriptedReplicas
) -> None:
    replicas.ship_at_once = False
    send = asyncio.create_task(harness.send("t", b"a"))
    await run_ready_tasks()
    assert replicas.reported[-1] == harness.store.written_offset == harness.store.end_offset
    catch_up(harness, replicas)
    assert (await send)[0].queue_offset == 1


@pytest.mark.parametrize("flush", ["SYNC_FLUSH"], indirect=True)
async def test_a_replica_that_gathers_hears_of_a_write_once_it_is_synced(
    harness: BrokerHarness, replicas: ScriptedReplicas, disk: BrokenDisk
) -> None:
    replicas.ship_at_once = False
    reported = list(replicas.reported)
    disk.sync_error = errno.EIO
    with pytest.raises(StoreFlushError):
        await harness.send("t", b"a")
    assert replicas.reported == reported


@pytest.mark.parametrize("flush", ["SYNC_FLUSH"], indirect=True)
async def test_a_replica_gets_what_is_written_while_the_disk_syncs(
    harness: BrokerHarness, replicas: ScriptedReplicas, disk: BrokenDisk
) -> None:
    disk.sync_error = errno.EIO
    send = asyncio.create_task(harness.send("t", b"a"))
    await run_ready_tasks()
    assert replicas.reported[-1] == harness.store.written_offset > harness.store.flushed_offset
    catch_up(harness, replicas)
    with pytest.raises(StoreFlushError):
        await send
    assert await harness.bodies("t") == [b"first"], "not durable here: not shown"


async def test_leases_are_saved_only_when_the_replica_has_their_records(
    harness: BrokerHarness, replicas: ScriptedReplicas
) -> None:
    await harness.group("billing")
    replicas.waits = False
    consumer = PopConsumer(harness, "billing", "t")
    [got] = await consumer.pop(1, start="earliest")
    assert got is not None
    snapshot = harness.options.store_path_root_dir / "config" / "popLeases.json"
    saving = asyncio.create_task(harness.broker.consuming.leases.journal.save_snapshot())
    await until_flushed(harness)
    assert not snapshot.exists() and not saving.done()
    catch_up(harness, replicas)
    await saving
    assert snapshot.exists()


async def test_a_master_that_was_deposed_ends_every_wait(harness: BrokerHarness) -> None:
    """Another broker decides what becomes of it: nobody waits for replicas that follow elsewhere,
    nor begins to."""
    send = asyncio.create_task(harness.send("t", b"a"))
    await run_ready_tasks()
    flushed = asyncio.create_task(harness.broker.log.flushed())
    await run_ready_tasks()

    harness.broker.commit.give_up(Deposed())

    sent, confirmed = await asyncio.gather(send, flushed, return_exceptions=True)
    assert isinstance(confirmed, Deposed)
    assert isinstance(sent, Deposed), "the replica does not have it"
    with pytest.raises(Deposed):
        await harness.broker.log.flushed()
