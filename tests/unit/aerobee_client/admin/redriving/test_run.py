"""Redrive over a cluster in memory: what is sent, where to, at which pace."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import AsyncAdminClient, AsyncProducer, MqError
from aerobee_client.admin.dead_letters import DeadLetters
from aerobee_client.admin.redriving.journal import MAX_IN_FLIGHT, Journal
from aerobee_client.admin.redriving.message_ids import Claim, MessageIds
from aerobee_client.admin.redriving.outcome import Outcome, Status
from aerobee_client.admin.redriving.rules import Target
from aerobee_client.admin.redriving.run import (
    MAX_FAILED_IN_A_ROW,
    MAX_WINDOW,
    Redrive,
    Settings,
)
from aerobee_wire import properties as names
from aerobee_wire.status import Code
from support.client.dead_letters import GROUP, PROPERTIES, RETRY, add_dead_letter, read_all
from support.client.gate import Gate
from support.client.memory.cluster import MemoryBroker, MemoryCluster
from support.clock.manual_clock import ManualClock
from support.codes import raises_code

NOW_MS = 1_700_000_000_000


@pytest.fixture
def ids() -> Iterator[MessageIds]:
    ids = MessageIds()
    yield ids
    ids.close()


def redrive_of(
    producer: AsyncProducer | None,
    ids: MessageIds,
    target: Target = Target.RETRY,
    journal: Journal | None = None,
    **settings: Any,
) -> Redrive:
    given = Settings(consumer_group=GROUP, target=target, **settings)
    return Redrive(given, producer, clock=ManualClock(NOW_MS), ids=ids, journal=journal)


async def all_of(redrive: Redrive, admin: AsyncAdminClient) -> list[Outcome]:
    windows = redrive.run(DeadLetters(admin, GROUP).pages())
    return [outcome async for window in windows for outcome in window]


async def run(
    admin: AsyncAdminClient, producer: AsyncProducer | None, target: Target = Target.RETRY
) -> list[Outcome]:
    ids = MessageIds()
    try:
        return await all_of(redrive_of(producer, ids, target), admin)
    finally:
        ids.close()


async def test_a_redriven_message_is_what_its_producer_sent(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
) -> None:
    add_dead_letter(brokers[0], b"the body")
    (outcome,) = await run(admin, producer)
    assert (outcome.status, outcome.topic, outcome.error) == ("sent", RETRY, "")
    (again,) = [*brokers[0].messages(RETRY), *brokers[1].messages(RETRY)]
    assert (again.body, again.reconsume_times) == (b"the body", 0)
    (request,) = cluster.requests("Send")
    assert request.messages[0].flag == 5
    assert again.properties == {
        names.UNIQUE_KEY: PROPERTIES[names.UNIQUE_KEY],
        names.TAGS: "paid",
        names.KEYS: "order-7 customer-3",
        "currency": "EUR",
        names.RETRY_TOPIC: "orders",
        names.ORIGIN_MESSAGE_ID: PROPERTIES[names.ORIGIN_MESSAGE_ID],
        names.REDRIVE_TIMES: "1",
        names.REDRIVE_TIMESTAMP: str(NOW_MS),
    }
    assert not any(broker.messages("orders") for broker in brokers), "other groups see it"
    assert len(await read_all(admin)) == 1, "the dead letter stays in its topic"


async def test_the_origin_topic_is_the_other_target(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    add_dead_letter(brokers[0])
    await run(admin, producer, Target.ORIGIN)
    (again,) = [*brokers[0].messages("orders"), *brokers[1].messages("orders")]
    assert names.RETRY_TOPIC not in again.properties
    assert again.properties[names.UNIQUE_KEY] == PROPERTIES[names.UNIQUE_KEY]
    assert not any(broker.messages(RETRY) for broker in brokers)


async def test_a_dry_run_sends_nothing(
    cluster: MemoryCluster, brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    add_dead_letter(brokers[0])
    (outcome,) = await run(admin, None)
    assert (outcome.status, outcome.topic) == ("would send", RETRY)
    assert not cluster.requests("Send")


async def test_a_failed_send_has_its_error_and_the_others_go_on(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
) -> None:
    for body in (b"good", b"bad", b"good too"):
        add_dead_letter(brokers[0], body, UNIQ_KEY=body.decode())

    def refuse(_: str, request: Any) -> None:
        if any(message.body == b"bad" for message in request.messages):
            raise MqError(Code.MESSAGE_ILLEGAL, "not this one")

    cluster.answers["Send"] = refuse
    outcomes = await run(admin, producer)
    results = [(outcome.status, outcome.error) for outcome in outcomes]
    assert results == [("sent", ""), ("failed", "not this one"), ("sent", "")]
    stored = [message.body for broker in brokers for message in broker.messages(RETRY)]
    assert sorted(stored) == [b"good", b"good too"]


async def test_a_message_dead_lettered_twice_is_sent_once(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    """After a redrive, or because a broker died."""
    add_dead_letter(brokers[0], b"x")
    add_dead_letter(brokers[0], b"other", UNIQ_KEY="B")
    add_dead_letter(brokers[1], b"x")
    outcomes = await run(admin, producer)
    assert [outcome.status for outcome in outcomes] == ["sent", "sent", "skipped"]
    assert outcomes[2].error
    bodies = [record.body for broker in brokers for record in broker.messages(RETRY)]
    assert sorted(bodies) == [b"other", b"x"]


async def test_more_than_a_window_is_sent(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    for n in range(150):
        add_dead_letter(brokers[0], b"%d" % n, UNIQ_KEY=f"ID{n}")
    outcomes = await run(admin, producer)
    assert [outcome.status for outcome in outcomes] == ["sent"] * 150
    stored = {message.body for broker in brokers for message in broker.messages(RETRY)}
    assert stored == {b"%d" % n for n in range(150)}


async def test_a_window_is_in_flight_at_once_and_no_more(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    ids: MessageIds,
) -> None:
    for n in range(2 * MAX_WINDOW + 7):
        add_dead_letter(brokers[0], b"%d" % n, UNIQ_KEY=f"ID{n}")
    windows = [
        len(window)
        async for window in redrive_of(producer, ids).run(DeadLetters(admin, GROUP).pages())
    ]
    assert windows == [MAX_WINDOW, MAX_WINDOW, 7]
    assert len(cluster.requests("Send")) < 20, "sends travel together"


async def test_large_bodies_make_small_windows(
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    ids: MessageIds,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aerobee_client.admin.redriving.run.WINDOW_BYTES", 3_000)
    for n in range(10):
        add_dead_letter(brokers[0], bytes(1_000), UNIQ_KEY=f"ID{n}")
    windows = redrive_of(producer, ids).run(DeadLetters(admin, GROUP).pages())
    assert [len(window) async for window in windows] == [3, 3, 3, 1]


@pytest.mark.parametrize(
    ("rate", "window"), [(None, MAX_WINDOW), (0.5, 1), (40, 10), (1e6, MAX_WINDOW)]
)
def test_a_rate_makes_windows_of_a_quarter_of_a_second(rate: float | None, window: int) -> None:
    assert Settings(consumer_group=GROUP, target=Target.RETRY, rate=rate).window == window


async def test_a_limit_counts_what_is_sent(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer, ids: MessageIds
) -> None:
    for message_id in ("A", "A", "B", "C", "D"):
        add_dead_letter(brokers[0], UNIQ_KEY=message_id)
    outcomes = await all_of(redrive_of(producer, ids, limit=3), admin)
    assert [outcome.status for outcome in outcomes] == ["sent", "skipped", "sent", "sent"]


@pytest.mark.parametrize("key", [names.SHARDING_KEY, names.LITE_TOPIC])
async def test_a_message_keeps_the_queue_of_its_message_group_or_lite_topic(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer, key: str
) -> None:
    for n in range(60):
        properties: dict[str, Any] = {"UNIQ_KEY": f"ID{n}", key: f"line-{n % 3}"}
        add_dead_letter(brokers[n % 2], **properties)
    outcomes = await run(admin, producer, Target.ORIGIN)
    assert {outcome.status for outcome in outcomes} == {"sent"}
    queues: dict[str, set[tuple[str, int]]] = {}
    for broker in brokers:
        for record in broker.messages("orders"):
            group = record.properties[key]
            queues.setdefault(group, set()).add((broker.name, record.queue_id))
    assert [len(queues[f"line-{n}"]) for n in range(3)] == [1, 1, 1]


async def test_redriven_twice_is_counted_twice(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    add_dead_letter(brokers[0], REDRIVE_TIMES="1", REDRIVE_TIMESTAMP="5")
    await run(admin, producer, Target.ORIGIN)
    (again,) = [*brokers[0].messages("orders"), *brokers[1].messages("orders")]
    assert again.properties[names.REDRIVE_TIMES] == "2"
    assert again.properties[names.REDRIVE_TIMESTAMP] == str(NOW_MS)


async def test_sends_that_all_fail_end_the_redrive(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    ids: MessageIds,
) -> None:
    for n in range(3 * MAX_FAILED_IN_A_ROW):
        add_dead_letter(brokers[0], UNIQ_KEY=f"ID{n}")
    cluster.answers["Send"] = MqError(Code.NO_PERMISSION, "closed", retryable=False)
    redrive = redrive_of(producer, ids)
    with raises_code(Code.SYSTEM_ERROR):
        await all_of(redrive, admin)
    failed = redrive.tally.by_status[Status.FAILED]
    assert redrive.tally.by_status == {Status.FAILED: failed}
    assert MAX_FAILED_IN_A_ROW <= failed <= MAX_FAILED_IN_A_ROW + MAX_WINDOW


async def test_a_journal_goes_on_where_the_redrive_broke_off(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    tmp_path: Path,
) -> None:
    count = MAX_WINDOW + 500
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
    later = MessageIds()
    Journal.open(path, GROUP, Target.RETRY, later).close()
    assert later.count(Claim.UNKNOWN) == 5, "in flight"
    later.close()


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
    later = MessageIds()
    Journal.open(path, GROUP, Target.ORIGIN, later, read_only=True).close()
    assert (later.count(Claim.SENT), later.count(Claim.UNKNOWN)) == (MAX_WINDOW, 0)
    later.close()


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
    later = MessageIds()
    Journal.open(path, GROUP, Target.ORIGIN, later, read_only=True).close()
    assert (later.count(Claim.SENT), later.count(Claim.UNKNOWN)) == (0, 0)
    later.close()


async def test_at_most_two_windows_have_no_outcome(
    *,
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    ids: MessageIds,
    tmp_path: Path,
) -> None:
    """Those are what a kill may send twice."""
    for n in range(4 * MAX_WINDOW):
        add_dead_letter(brokers[0], UNIQ_KEY=f"ID{n}")
    path, gate = tmp_path / "journal", Gate(cluster)
    journal = Journal.open(path, GROUP, Target.ORIGIN, ids)
    task = asyncio.create_task(all_of(redrive_of(producer, ids, Target.ORIGIN, journal), admin))
    await gate.come(2)
    for _ in range(20):  # turns of the loop, in which more could leave
        await asyncio.sleep(0)
    assert path.read_text().count('{"sending": ') == sum(gate.sizes) == MAX_IN_FLIGHT
    gate.open()
    assert len(await task) == 4 * MAX_WINDOW
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
    brokers: list[MemoryBroker], admin: AsyncAdminClient, ids: MessageIds, tmp_path: Path
) -> None:
    add_dead_letter(brokers[0])
    journal = Journal.open(tmp_path / "journal", GROUP, Target.RETRY, ids, read_only=True)
    outcomes = await all_of(redrive_of(None, ids, journal=journal), admin)
    journal.close()
    assert [outcome.status for outcome in outcomes] == ["would send"]
    assert not (tmp_path / "journal").exists()
