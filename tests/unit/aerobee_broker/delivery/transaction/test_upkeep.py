"""Upkeep of transactions: what a start finds, where it begins to read, and copies forward."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.delivery.transaction import half_messages
from aerobee_broker.delivery.transaction.half_messages import GROUP, QUEUE_ID
from aerobee_broker.delivery.transaction.transactions import End, Resolution
from aerobee_broker.disk import RealDisk, Usage
from aerobee_wire import topics as names
from aerobee_wire.status import Code
from support.broker.harness import Parts, message
from support.broker.transactions import end, half, visible

COMMIT, ROLLBACK, UNKNOWN = Resolution.COMMIT, Resolution.ROLLBACK, Resolution.UNKNOWN


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    parts = await Parts.begin(tmp_path)
    yield parts
    await parts.end()


async def again(parts: Parts, path: Path, **options: Any) -> Parts:
    """A clean stop and a start, in the same directory."""
    await parts.end()
    return await Parts.begin(path, clock=parts.clock, **options)


async def test_a_start_restores_the_open_transactions_and_no_other(tmp_path: Path) -> None:
    parts = await Parts.begin(tmp_path)
    stored = [await half(parts, b"%d" % number) for number in range(6)]
    await end(parts, stored[0])
    await end(parts, stored[3], ROLLBACK)
    parts = await again(parts, tmp_path)
    assert len(parts.broker.transactions) == 4
    for number in (0, 3):
        assert await end(parts, stored[number]) is Code.INVALID_TRANSACTION_ID
    for number in (5, 1):
        assert await end(parts, stored[number], group="producers") is Code.SUCCESS
    parts = await again(parts, tmp_path)
    assert await visible(parts) == [b"0", b"5", b"1"]
    assert await end(parts, stored[2]) is Code.SUCCESS
    assert await end(parts, stored[4]) is Code.SUCCESS
    parts = await again(parts, tmp_path)
    assert len(parts.broker.transactions) == 0
    assert await visible(parts) == [b"0", b"5", b"1", b"2", b"4"]
    await parts.end()


async def test_a_start_needs_only_the_log(tmp_path: Path) -> None:
    parts = await Parts.begin(tmp_path)
    stored = [await half(parts, b"%d" % number) for number in range(3)]
    await end(parts, stored[1])
    await parts.end()
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (tmp_path / "store" / "config" / name).unlink(missing_ok=True)
    parts = await Parts.begin(tmp_path, clock=parts.clock)
    assert len(parts.broker.transactions) == 2
    assert await end(parts, stored[1]) is Code.INVALID_TRANSACTION_ID
    await parts.end()


def saved(parts: Parts) -> list[int | None]:
    """The offsets of the half and of the op topic from which a start would read."""
    return [
        parts.tables.offsets.get(GROUP, topic, QUEUE_ID)
        for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC)
    ]


async def test_a_start_reads_from_the_first_open_half_message(parts: Parts) -> None:
    upkeep = parts.broker.transaction_upkeep
    await upkeep.round()
    assert saved(parts) == [0, 0]
    stored = [await half(parts, b"%d" % number) for number in range(5)]
    await end(parts, stored[0])
    await end(parts, stored[2])
    await upkeep.round()
    assert saved(parts) == [1, 0], "half message 1 is open, and older than every op record"
    late = await half(parts, b"late")
    for number in (1, 3, 4):
        await end(parts, stored[number])
    await upkeep.round()
    assert saved(parts) == [5, 2]
    await end(parts, late)
    await upkeep.round()
    assert saved(parts) == [6, 6]


async def test_an_end_not_yet_durable_does_not_move_the_offsets(parts: Parts) -> None:
    stored = await half(parts, b"a")
    parts.flusher.hold()
    ending = asyncio.create_task(end(parts, stored))
    await asyncio.sleep(1)
    await parts.broker.transaction_upkeep.round()
    assert saved(parts) == [0, 0]
    parts.flusher.let_go()
    await ending


async def test_entries_of_ended_transactions_are_removed_from_the_heap(parts: Parts) -> None:
    first = await half(parts, b"stays")
    for _ in range(30):
        halves = [
            message("t", b"x", 1, properties={"TRAN_MSG": "true", "PGROUP": "p"})
            for _ in range(100)
        ]
        stored = await parts.broker.sender.send(halves)
        ends = [End(each.transaction_id, each.queue_offset, COMMIT) for each in stored]
        assert await parts.broker.transactions.end(ends) == [None] * 100
    await asyncio.sleep(0.01)
    assert len(parts.broker.transactions._table._order) < 1_200
    await parts.broker.transaction_upkeep.round()
    assert saved(parts) == [first.queue_offset, 0]


@pytest.mark.parametrize("properties", [{}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "1500"}])
async def test_a_start_mends_a_torn_commit(tmp_path: Path, properties: dict[str, str]) -> None:
    parts = await Parts.begin(tmp_path)
    stored = await half(parts, b"a", **properties)
    transaction = parts.broker.transactions.get(stored.queue_offset)
    assert transaction is not None
    torn, decoded = half_messages.committed(
        parts.broker.transactions.record(transaction), transaction.name
    )
    parts.store.append([parts.broker.delay_router.route(torn, decoded) or torn])
    await parts.broker.log.durable()
    for _ in range(2):  # the second start finds nothing to mend
        parts = await again(parts, tmp_path)
        assert await end(parts, stored) is Code.INVALID_TRANSACTION_ID
    await asyncio.sleep(5)
    assert await visible(parts) == [b"a"]
    assert len(await parts.read(names.OP_HALF_TOPIC)) == 1
    await parts.end()


async def test_an_unmended_torn_commit_cannot_be_committed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await Parts.begin(tmp_path)
    stored = await half(parts, b"a")
    transaction = parts.broker.transactions.get(stored.queue_offset)
    assert transaction is not None
    torn, _ = half_messages.committed(
        parts.broker.transactions.record(transaction), transaction.name
    )
    parts.store.append([torn])
    await parts.end()
    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "usage", lambda *_: Usage(used=99, free=1))
        parts = await Parts.begin(tmp_path, clock=parts.clock, cleanResourceInterval=1_000)
        assert await end(parts, stored) is Code.INVALID_TRANSACTION_ID
        await parts.broker.transaction_upkeep.round()
    await asyncio.sleep(2)
    parts.store.maintain(parts.clock.now_ms())
    await parts.broker.transaction_upkeep.round()
    await asyncio.sleep(0.01)
    assert len(parts.broker.transactions) == 0
    parts = await again(parts, tmp_path)
    assert await end(parts, stored) is Code.INVALID_TRANSACTION_ID
    assert await visible(parts) == [b"a"]
    await parts.end()


async def fill(parts: Parts, megabytes: int) -> None:
    for _ in range(megabytes):
        await parts.send("filler", b"f" * (1 << 20))


async def test_retention_deletes_no_open_half_message(tmp_path: Path) -> None:
    options: dict[str, Any] = {"mappedFileSizeCommitLog": 4 << 20, "retainBytes": 4 << 20}
    parts = await Parts.begin(tmp_path, **options)
    kept, gone = await half(parts, b"kept", KEYS="k"), await half(parts, b"gone")
    await end(parts, gone)
    await fill(parts, 14)
    parts.store.maintain(parts.clock.now_ms())
    assert parts.store.min_physical_offset == 0, "an open half message is in the file"
    await parts.broker.transaction_upkeep.round()
    await asyncio.sleep(11)
    parts.store.maintain(parts.clock.now_ms())
    assert parts.store.min_physical_offset > 0
    assert await visible(parts) == [], "its copy is invisible too"
    parts = await again(parts, tmp_path, **options)
    assert len(parts.broker.transactions) == 1
    assert await end(parts, kept) is Code.SUCCESS
    record = (await parts.read("t", 1, parts.store.min_offset("t", 1)))[-1]
    assert (record.body, record.properties["TRAN_PREPARED_QUEUE_OFFSET"]) == (b"kept", "0")
    assert "HALF_STORED_MS" not in record.properties
    parts = await again(parts, tmp_path, **options)
    assert len(parts.broker.transactions) == 0
    assert await end(parts, kept) is Code.INVALID_TRANSACTION_ID
    await parts.end()


async def test_a_half_message_far_behind_is_copied_forward_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee_broker.delivery.transaction.upkeep.COPY_BEHIND_BYTES", 2 << 20)
    parts = await Parts.begin(tmp_path)
    stored = await half(parts, b"a")
    await fill(parts, 3)
    for _ in range(3):
        await parts.broker.transaction_upkeep.round()
    assert len(await parts.read(names.HALF_TOPIC)) == 2
    assert saved(parts) == [1, 0]
    parts = await again(parts, tmp_path)
    assert len(parts.broker.transactions) == 1
    assert await end(parts, stored) is Code.SUCCESS
    await parts.end()


async def test_half_messages_are_not_copied_forward_over_and_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee_broker.delivery.transaction.upkeep.COPY_BEHIND_BYTES", 1 << 20)
    parts = await Parts.begin(tmp_path, mappedFileSizeCommitLog=64 << 20)
    for _ in range(3):
        await half(parts, b"h" * (1 << 20))
    await fill(parts, 14)
    for _ in range(5):
        await parts.broker.transaction_upkeep.round()
    assert len(await parts.read(names.HALF_TOPIC, max_bytes=64 << 20)) <= 6
    await parts.end()


async def test_checks_are_written_in_records_of_bounded_size(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee_broker.delivery.transaction.upkeep.CHECKS_A_RECORD", 2)
    stored = [await half(parts, b"a") for _ in range(5)]
    transactions = parts.broker.transactions
    for each in stored:
        transactions.checked(each.queue_offset)
    await parts.broker.transaction_upkeep.round()
    await asyncio.sleep(0.01)
    ops = await parts.read(names.OP_HALF_TOPIC)
    assert [record.body for record in ops] == [b"0:1,1:1,", b"2:1,3:1,", b"4:1,"]
