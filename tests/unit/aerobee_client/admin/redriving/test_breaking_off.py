"""A redrive that is cancelled, or whose journal fails: what is sent, and what the journal says."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import AsyncAdminClient, AsyncProducer, MqError
from aerobee_client.admin.redriving.journal import MAX_IN_FLIGHT, Journal
from aerobee_client.admin.redriving.message_ids import Claim, MessageIds
from aerobee_client.admin.redriving.outcome import Outcome, Status
from aerobee_client.admin.redriving.rules import Target
from aerobee_client.admin.redriving.run import MAX_WINDOW, WINDOWS, Redrive
from aerobee_wire import properties as names
from aerobee_wire.status import Code
from support.client.dead_letters import GROUP, RETRY, add_dead_letter
from support.client.gate import Gate
from support.client.memory import MemoryBroker, MemoryCluster
from support.client.redriving import all_of, claims, redrive_of


async def test_a_journal_goes_on_where_the_redrive_broke_off(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    tmp_path: Path,
) -> None:
    count = MAX_IN_FLIGHT + 500  # more than are sent at once
    for n in range(count):
        add_dead_letter(brokers[0], b"%d" % n, UNIQ_KEY=f"ID{n}")
    path, (first, second) = tmp_path / "journal", (MessageIds(), MessageIds())
    journal = Journal.open(path, GROUP, Target.RETRY, first)
    task = asyncio.create_task(all_of(redrive_of(producer, first, journal=journal), admin))

    def cancel_in_the_second_window(address: str, request: Any) -> None:
        if len(brokers[0].messages(RETRY)) + len(brokers[1].messages(RETRY)) >= MAX_WINDOW:
            task.cancel()

    cluster.answers["Send"] = cancel_in_the_second_window
    with pytest.raises(asyncio.CancelledError):
        await task
    journal.close()
    del cluster.answers["Send"]
    sent_at_first = len(brokers[0].messages(RETRY)) + len(brokers[1].messages(RETRY))
    assert MAX_WINDOW < sent_at_first <= count

    journal = Journal.open(path, GROUP, Target.RETRY, second)
    assert (second.count(Claim.SENT), second.count(Claim.UNKNOWN)) == (sent_at_first, 0)
    redrive = redrive_of(producer, second, journal=journal)
    await all_of(redrive, admin)
    journal.close()
    assert redrive.tally.by_status[Status.SENT] == count - sent_at_first
    assert redrive.tally.by_status[Status.SENT_BEFORE] == sent_at_first
    assert redrive.tally.perhaps_twice == 0
    bodies = [record.body for broker in brokers for record in broker.messages(RETRY)]
    assert sorted(bodies) == sorted(b"%d" % n for n in range(count))


async def test_what_cannot_be_sent_is_in_no_journal(
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    ids: MessageIds,
    tmp_path: Path,
) -> None:
    add_dead_letter(brokers[0], UNIQ_KEY="fails", DLQ_ORIGIN_TOPIC="", RETRY_TOPIC="")
    add_dead_letter(brokers[0], UNIQ_KEY="goes")
    path = tmp_path / "journal"
    journal = Journal.open(path, GROUP, Target.ORIGIN, ids)
    outcomes = await all_of(redrive_of(producer, ids, Target.ORIGIN, journal), admin)
    journal.close()
    assert [outcome.status for outcome in outcomes] == [Status.FAILED, Status.SENT]
    assert b"fails" not in path.read_bytes()
    assert claims(path, Target.ORIGIN) == {Claim.SENT: 1, Claim.UNKNOWN: 0}


async def test_a_second_cancellation_waits_for_nothing(
    *,
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    ids: MessageIds,
    tmp_path: Path,
) -> None:
    for n in range(5):
        add_dead_letter(brokers[0], UNIQ_KEY=f"ID{n}")
    path, held, sending = tmp_path / "journal", asyncio.Event(), asyncio.Event()

    async def hold(_: str, request: Any) -> None:
        sending.set()
        await held.wait()
        raise MqError(Code.SYSTEM_ERROR, "too late", retryable=False)

    cluster.answers["Send"] = hold
    journal = Journal.open(path, GROUP, Target.RETRY, ids)
    task = asyncio.create_task(all_of(redrive_of(producer, ids, journal=journal), admin))
    await sending.wait()
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    held.set()
    journal.close()
    assert claims(path, Target.RETRY)[Claim.UNKNOWN] == 5, "in flight"


async def test_what_may_have_been_stored_is_sent_again_and_counted(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    tmp_path: Path,
) -> None:
    for message_id in ("A", "refused", "B"):
        add_dead_letter(brokers[0], message_id.encode(), UNIQ_KEY=message_id)

    def answer(_: str, request: Any) -> None:
        if any(message.body == b"refused" for message in request.messages):
            raise MqError(Code.MESSAGE_ILLEGAL, "not this one")
        raise MqError(Code.SYSTEM_ERROR, "who knows", retryable=False)

    async def once() -> tuple[list[Outcome], Redrive]:
        ids = MessageIds()
        journal = Journal.open(tmp_path / "journal", GROUP, Target.RETRY, ids)
        redrive = redrive_of(producer, ids, journal=journal)
        outcomes = await all_of(redrive, admin)
        journal.close()
        ids.close()
        return outcomes, redrive

    cluster.answers["Send"] = answer
    outcomes, _ = await once()
    assert {outcome.status for outcome in outcomes} == {"failed"}
    del cluster.answers["Send"]
    outcomes, redrive = await once()
    assert [(each.status, each.perhaps_twice) for each in outcomes] == [
        ("sent", True),
        ("sent", False),
        ("sent", True),
    ]
    assert redrive.tally.perhaps_twice == 2
    outcomes, _ = await once()
    assert {outcome.status for outcome in outcomes} == {"sent before"}


async def test_nothing_is_sent_when_the_journal_cannot_be_written(
    *,
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    ids: MessageIds,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_dead_letter(brokers[0])
    journal = Journal.open(tmp_path / "journal", GROUP, Target.RETRY, ids)

    def full() -> None:
        raise OSError("no space")

    monkeypatch.setattr(journal, "sync", full)
    with pytest.raises(OSError, match="no space"):
        await all_of(redrive_of(producer, ids, journal=journal), admin)
    assert not cluster.requests("Send")


async def test_what_follows_a_journal_that_fails_is_not_sent(
    *,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    ids: MessageIds,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for n in range(3 * MAX_WINDOW):
        add_dead_letter(brokers[0], UNIQ_KEY=f"ID{n}")
    path = tmp_path / "journal"
    journal = Journal.open(path, GROUP, Target.ORIGIN, ids)
    syncs = iter((None, OSError("no space")))  # a third one is not asked for

    def second_fails() -> None:
        if (error := next(syncs)) is not None:
            raise error

    monkeypatch.setattr(journal, "sync", second_fails)
    redrive = redrive_of(producer, ids, Target.ORIGIN, journal)
    with pytest.raises(OSError, match="no space"):
        await all_of(redrive, admin)
    journal.close()
    assert redrive.tally.by_status == {Status.SENT: MAX_WINDOW}
    assert sum(len(broker.messages("orders")) for broker in brokers) == MAX_WINDOW
    assert claims(path, Target.ORIGIN) == {Claim.SENT: MAX_WINDOW, Claim.UNKNOWN: 0}


async def test_cancelled_before_the_journal_is_on_the_disk_nothing_is_sent(
    *,
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    ids: MessageIds,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_dead_letter(brokers[0])
    path, disk = tmp_path / "journal", threading.Event()
    journal = Journal.open(path, GROUP, Target.ORIGIN, ids)
    loop, syncing = asyncio.get_running_loop(), asyncio.Event()

    def sync() -> None:
        loop.call_soon_threadsafe(syncing.set)
        disk.wait()

    monkeypatch.setattr(journal, "sync", sync)
    task = asyncio.create_task(all_of(redrive_of(producer, ids, Target.ORIGIN, journal), admin))
    await syncing.wait()
    task.cancel()
    try:
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        disk.set()
    journal.close()
    assert not cluster.requests("Send")
    assert claims(path, Target.ORIGIN) == {Claim.SENT: 0, Claim.UNKNOWN: 0}


async def test_no_more_windows_than_may_be_in_flight_have_no_outcome(
    *,
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    ids: MessageIds,
    tmp_path: Path,
) -> None:
    """Those are what a kill may send twice."""
    for n in range(2 * WINDOWS * MAX_WINDOW):
        add_dead_letter(brokers[0], UNIQ_KEY=f"ID{n}")
    path, gate = tmp_path / "journal", Gate(cluster)
    journal = Journal.open(path, GROUP, Target.ORIGIN, ids)
    task = asyncio.create_task(all_of(redrive_of(producer, ids, Target.ORIGIN, journal), admin))
    await gate.come(WINDOWS)
    for _ in range(20):  # turns of the loop, in which more could leave
        await asyncio.sleep(0)
    assert path.read_text().count('{"sending": ') == sum(gate.sizes) == MAX_IN_FLIGHT
    gate.open()
    assert len(await task) == 2 * WINDOWS * MAX_WINDOW
    journal.close()


async def test_a_window_is_in_the_journal_before_it_is_sent(
    *,
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    ids: MessageIds,
    tmp_path: Path,
) -> None:
    for n in range(MAX_WINDOW + 5):
        add_dead_letter(brokers[0], UNIQ_KEY=f"ID{n}")
    path = tmp_path / "journal"
    journal = Journal.open(path, GROUP, Target.RETRY, ids)
    sent = 0

    def announced(_: str, request: Any) -> None:
        nonlocal sent
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        known = {line["sending"] for line in lines if "sending" in line}
        sending = {message.properties[names.UNIQUE_KEY] for message in request.messages}
        assert sending and sending <= known
        sent += len(sending)

    cluster.answers["Send"] = announced
    await all_of(redrive_of(producer, ids, journal=journal), admin)
    journal.close()
    assert sent == MAX_WINDOW + 5


async def test_a_dry_run_writes_no_journal(
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    ids: MessageIds,
    tmp_path: Path,
) -> None:
    add_dead_letter(brokers[0])
    journal = Journal.open(tmp_path / "journal", GROUP, Target.RETRY, ids, read_only=True)
    outcomes = await all_of(redrive_of(producer, ids, journal=journal, dry_run=True), admin)
    journal.close()
    assert [outcome.status for outcome in outcomes] == ["would send"]
    assert not (tmp_path / "journal").exists()
