"""Upkeep of transactions: what a start finds, where it begins to read, and copies forward."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee_broker.delivery.transaction import half_messages, recovery
from aerobee_broker.delivery.transaction.half_messages import GROUP, QUEUE_ID
from aerobee_broker.delivery.transaction.transactions import End, Resolution
from aerobee_broker.disk import RealDisk, Usage
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire import topics as names
from aerobee_wire.status import Code
from support.broker.harness import Begin, BrokerHarness, message
from support.broker.transactions import end, half, visible

COMMIT, ROLLBACK, UNKNOWN = Resolution.COMMIT, Resolution.ROLLBACK, Resolution.UNKNOWN


async def test_a_start_restores_the_open_transactions_and_no_other(
    harness: BrokerHarness, begin: Begin
) -> None:
    stored = [await half(harness, b"%d" % number) for number in range(6)]
    await end(harness, stored[0])
    await end(harness, stored[3], ROLLBACK)
    harness = await begin()
    assert len(harness.broker.transactions) == 4
    for number in (0, 3):
        assert await end(harness, stored[number]) is Code.INVALID_TRANSACTION_ID
    for number in (5, 1):
        assert await end(harness, stored[number], group="producers") is Code.SUCCESS
    harness = await begin()
    assert await visible(harness) == [b"0", b"5", b"1"]
    assert await end(harness, stored[2]) is Code.SUCCESS
    assert await end(harness, stored[4]) is Code.SUCCESS
    harness = await begin()
    assert len(harness.broker.transactions) == 0
    assert await visible(harness) == [b"0", b"5", b"1", b"2", b"4"]


async def test_a_start_reads_the_log_in_slices(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five half messages and two op records, of which one slice has two."""
    stored = [await half(harness, b"%d" % number) for number in range(5)]
    await end(harness, stored[0])
    await end(harness, stored[2])
    monkeypatch.setattr(recovery, "SLICE_RECORDS", 2)
    found = list(recovery.find_open(harness.store, harness.tables.offsets))
    assert [each and each.half.name for each in found] == [None, None, 1, None, 3, 4]


async def test_a_start_needs_only_the_log(harness: BrokerHarness, begin: Begin) -> None:
    stored = [await half(harness, b"%d" % number) for number in range(3)]
    await end(harness, stored[1])
    await harness.end()
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (harness.store.path / "config" / name).unlink(missing_ok=True)
    harness = await begin()
    assert len(harness.broker.transactions) == 2
    assert await end(harness, stored[1]) is Code.INVALID_TRANSACTION_ID


def saved(harness: BrokerHarness) -> list[int | None]:
    """The offsets of the half and of the op topic from which a start would read."""
    return [
        harness.tables.offsets.get(GROUP, topic, QUEUE_ID)
        for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC)
    ]


async def test_a_start_reads_from_the_first_open_half_message(harness: BrokerHarness) -> None:
    upkeep = harness.broker.transaction_upkeep
    await upkeep.round()
    assert saved(harness) == [0, 0]
    stored = [await half(harness, b"%d" % number) for number in range(5)]
    await end(harness, stored[0])
    await end(harness, stored[2])
    await upkeep.round()
    assert saved(harness) == [1, 0], "half message 1 is open, and older than every op record"
    late = await half(harness, b"late")
    for number in (1, 3, 4):
        await end(harness, stored[number])
    await upkeep.round()
    assert saved(harness) == [5, 2]
    await end(harness, late)
    await upkeep.round()
    assert saved(harness) == [6, 6]


async def test_an_end_not_yet_durable_does_not_move_the_offsets(harness: BrokerHarness) -> None:
    stored = await half(harness, b"a")
    harness.flusher.hold()
    ending = asyncio.create_task(end(harness, stored))
    await asyncio.sleep(1)
    await harness.broker.transaction_upkeep.round()
    assert saved(harness) == [0, 0]
    harness.flusher.let_go()
    await ending


async def test_entries_of_ended_transactions_are_removed_from_the_heap(
    harness: BrokerHarness,
) -> None:
    first = await half(harness, b"stays")
    for _ in range(30):
        halves = [
            message("t", b"x", 1, properties={"TRAN_MSG": "true", "PGROUP": "p"})
            for _ in range(100)
        ]
        stored = await harness.broker.sending.sender.send(halves)
        ends = [End(each.transaction_id, each.queue_offset, COMMIT) for each in stored]
        assert await harness.broker.transactions.end(ends) == [None] * 100
    await asyncio.sleep(0.01)
    assert len(harness.broker.transactions.table._order) < 1_200
    await harness.broker.transaction_upkeep.round()
    assert saved(harness) == [first.queue_offset, 0]


@pytest.mark.parametrize("properties", [{}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "1500"}])
async def test_a_start_mends_a_torn_commit(
    harness: BrokerHarness, begin: Begin, properties: dict[str, str]
) -> None:
    stored = await half(harness, b"a", **properties)
    transaction = harness.broker.transactions.get(stored.queue_offset)
    assert transaction is not None
    torn, decoded = half_messages.committed(
        harness.broker.transactions.record(transaction), transaction.name
    )
    harness.store.append([harness.broker.delay.router.route(torn, decoded) or torn])
    await harness.broker.log.sent()
    for _ in range(2):  # the second start finds nothing to mend
        harness = await begin()
        assert await end(harness, stored) is Code.INVALID_TRANSACTION_ID
    await asyncio.sleep(5)
    assert await visible(harness) == [b"a"]
    assert len(await harness.read(names.OP_HALF_TOPIC)) == 1


async def test_a_start_mends_a_torn_commit_whose_queue_was_removed(
    harness: BrokerHarness, begin: Begin
) -> None:
    """The commit was stored in queue 0, because the topic has no queue 1 any more."""
    stored = await half(harness, b"a")
    await harness.broker.administration.update_topic(
        TopicConfig("t", 1, 1),
        ["read_queue_count", "write_queue_count"],
        dry_run=False,
        force=False,
    )
    transaction = harness.broker.transactions.get(stored.queue_offset)
    assert transaction is not None
    record = harness.broker.transactions.record(transaction)
    torn, _ = half_messages.committed(record, transaction.name)
    torn.queue_id = 0
    harness.store.append([torn])
    await harness.broker.log.sent()
    harness = await begin()
    assert await end(harness, stored) is Code.INVALID_TRANSACTION_ID
    assert await harness.bodies("t") == [b"a"]


async def test_an_unmended_torn_commit_cannot_be_committed_again(
    harness: BrokerHarness, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await half(harness, b"a")
    transaction = harness.broker.transactions.get(stored.queue_offset)
    assert transaction is not None
    torn, _ = half_messages.committed(
        harness.broker.transactions.record(transaction), transaction.name
    )
    harness.store.append([torn])
    await harness.end()
    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "usage", lambda *_: Usage(used=99, free=1))
        harness = await begin(cleanResourceInterval=1_000)
        assert await end(harness, stored) is Code.INVALID_TRANSACTION_ID
        await harness.broker.transaction_upkeep.round()
    await asyncio.sleep(2)
    harness.store.maintain(harness.clock.now_ms())
    await harness.broker.transaction_upkeep.round()
    await asyncio.sleep(0.01)
    assert len(harness.broker.transactions) == 0
    harness = await begin()
    assert await end(harness, stored) is Code.INVALID_TRANSACTION_ID
    assert await visible(harness) == [b"a"]


async def fill(harness: BrokerHarness, megabytes: int) -> None:
    for _ in range(megabytes):
        await harness.send("filler", b"f" * (1 << 20))


async def test_retention_deletes_no_open_half_message(begin: Begin) -> None:
    options: dict[str, Any] = {"mappedFileSizeCommitLog": 4 << 20, "retainBytes": 4 << 20}
    harness = await begin(**options)
    kept, gone = await half(harness, b"kept", KEYS="k"), await half(harness, b"gone")
    await end(harness, gone)
    await fill(harness, 14)
    harness.store.maintain(harness.clock.now_ms())
    assert harness.store.min_physical_offset == 0, "an open half message is in the file"
    await harness.broker.transaction_upkeep.round()
    await asyncio.sleep(11)
    harness.store.maintain(harness.clock.now_ms())
    assert harness.store.min_physical_offset > 0
    assert await visible(harness) == [], "its copy is invisible too"
    harness = await begin(**options)
    assert len(harness.broker.transactions) == 1
    assert await end(harness, kept) is Code.SUCCESS
    record = (await harness.read("t", 1, harness.store.min_offset("t", 1)))[-1]
    assert (record.body, record.properties["TRAN_PREPARED_QUEUE_OFFSET"]) == (b"kept", "0")
    assert "HALF_STORED_MS" not in record.properties
    harness = await begin(**options)
    assert len(harness.broker.transactions) == 0
    assert await end(harness, kept) is Code.INVALID_TRANSACTION_ID


async def test_a_half_message_far_behind_is_copied_forward_once(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee_broker.delivery.transaction.upkeep.COPY_BEHIND_BYTES", 2 << 20)
    harness = await begin()
    stored = await half(harness, b"a")
    await fill(harness, 3)
    for _ in range(3):
        await harness.broker.transaction_upkeep.round()
    assert len(await harness.read(names.HALF_TOPIC)) == 2
    assert saved(harness) == [1, 0]
    harness = await begin()
    assert len(harness.broker.transactions) == 1
    assert await end(harness, stored) is Code.SUCCESS


async def test_half_messages_are_not_copied_forward_over_and_over(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee_broker.delivery.transaction.upkeep.COPY_BEHIND_BYTES", 1 << 20)
    harness = await begin(mappedFileSizeCommitLog=64 << 20)
    for _ in range(3):
        await half(harness, b"h" * (1 << 20))
    await fill(harness, 14)
    for _ in range(5):
        await harness.broker.transaction_upkeep.round()
    assert len(await harness.read(names.HALF_TOPIC, max_bytes=64 << 20)) <= 6


async def test_checks_are_written_in_records_of_bounded_size(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee_broker.delivery.transaction.upkeep.CHECKS_A_RECORD", 2)
    stored = [await half(harness, b"a") for _ in range(5)]
    transactions = harness.broker.transactions
    for each in stored:
        transactions.checked(each.queue_offset)
    await harness.broker.transaction_upkeep.round()
    await asyncio.sleep(0.01)
    ops = await harness.read(names.OP_HALF_TOPIC)
    assert [record.body for record in ops] == [b"0:1,1:1,", b"2:1,3:1,", b"4:1,"]
