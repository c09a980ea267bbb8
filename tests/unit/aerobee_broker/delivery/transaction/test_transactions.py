"""Transactions: half messages nobody sees, ends that happen once, and what a start finds."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.delivery.send.send import SendResult
from aerobee_broker.delivery.transaction import half_messages
from aerobee_broker.delivery.transaction.half_messages import GROUP, QUEUE_ID
from aerobee_broker.delivery.transaction.transactions import End, Resolution
from aerobee_broker.disk import RealDisk, Usage
from aerobee_broker.errors import DiskFull, FlushTimeout, StoreShort, StoreWriteError
from aerobee_wire import topics as names
from aerobee_wire.record import TRANSACTION_COMMIT, TRANSACTION_MASK
from aerobee_wire.status import Code, MqError
from support.broker.harness import BORN_HOST, Parts, message

MOVE_BEHIND = "aerobee_broker.delivery.transaction.upkeep.COPY_BEHIND_BYTES"

COMMIT, ROLLBACK, UNKNOWN = Resolution.COMMIT, Resolution.ROLLBACK, Resolution.UNKNOWN


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    parts = await Parts.begin(tmp_path)
    yield parts
    await parts.end()


async def half(parts: Parts, body: bytes, topic: str = "t", **properties: str) -> SendResult:
    given = {"TRAN_MSG": "true", "PGROUP": "producers", **properties}
    return (await parts.broker.sender.send([message(topic, body, 1, properties=given)]))[0]


async def end(
    parts: Parts, stored: SendResult, resolution: Resolution = COMMIT, group: str = ""
) -> Code:
    one = End(stored.transaction_id, stored.queue_offset, resolution, group)
    outcome = (await parts.broker.transactions.end([one]))[0]
    return Code.SUCCESS if outcome is None else outcome.code


async def visible(parts: Parts, topic: str = "t") -> list[bytes]:
    return await parts.bodies(topic, (0, 1))


async def test_a_half_message_is_seen_only_after_its_commit(parts: Parts) -> None:
    stored = await half(parts, b"a", UNIQ_KEY="U1", KEYS="k", TAGS="red")
    assert stored.transaction_id == "U1"
    assert await visible(parts) == []
    assert parts.store.query("t", "k") == []
    assert await end(parts, stored) is Code.SUCCESS
    assert await visible(parts) == [b"a"]


async def test_transactions_end_however_small_bodies_must_be(tmp_path: Path) -> None:
    """The op record of many ends is larger than any body may be."""
    parts = await Parts.begin(tmp_path, maxMessageSize=1)
    halves = [await half(parts, b"a") for _ in range(20)]
    ends = [End(one.transaction_id, one.queue_offset, COMMIT) for one in halves]
    assert await parts.broker.transactions.end(ends) == [None] * 20
    assert await visible(parts) == [b"a"] * 20
    await parts.end()


async def test_what_is_committed_is_the_message(parts: Parts) -> None:
    sent = message(
        "t",
        b"x",
        1,
        properties={"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "U", "a": "b"},
        flag=9,
        sys_flag=1 | 4,
        born_timestamp_ms=55,
    )
    stored = (await parts.broker.sender.send([sent]))[0]
    await end(parts, stored)
    record = (await parts.read("t", 1))[0]
    assert (record.queue_id, record.flag, record.sys_flag & 1) == (1, 9, 1)
    assert record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    assert (record.born_timestamp_ms, record.born_host_packed) == (55, BORN_HOST)
    assert record.prepared_transaction_offset == stored.physical_offset
    properties = record.properties
    assert (properties["UNIQ_KEY"], properties["__transactionId__"]) == ("U", "U")
    assert (properties["a"], properties["TRAN_PREPARED_QUEUE_OFFSET"]) == ("b", "0")
    assert not {"REAL_TOPIC", "REAL_QID", "TRANSACTION_CHECK_TIMES"} & properties.keys()


async def test_a_rolled_back_message_is_never_seen(parts: Parts) -> None:
    stored = await half(parts, b"a")
    assert await end(parts, stored, ROLLBACK) is Code.SUCCESS
    assert await visible(parts) == []
    assert await end(parts, stored, COMMIT) is Code.INVALID_TRANSACTION_ID
    assert await visible(parts) == []


@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
async def test_a_transaction_ends_once(parts: Parts, second: Resolution) -> None:
    stored = await half(parts, b"a")
    assert await end(parts, stored) is Code.SUCCESS
    assert await end(parts, stored, second) is Code.INVALID_TRANSACTION_ID
    assert await visible(parts) == [b"a"]


async def test_of_two_ends_at_once_one_counts(parts: Parts) -> None:
    stored = await half(parts, b"a")
    one = End(stored.transaction_id, stored.queue_offset, COMMIT)
    outcomes = await parts.broker.transactions.end([one, one])
    assert [outcome.code if outcome else None for outcome in outcomes] == [
        None,
        Code.INVALID_TRANSACTION_ID,
    ]
    assert await visible(parts) == [b"a"]


async def test_an_end_must_name_the_transaction(parts: Parts) -> None:
    stored = await half(parts, b"a")
    made_up = SendResult(0, 7, 0, "", "x"), SendResult(0, stored.queue_offset, 0, "", "x")
    for other in made_up:
        assert await end(parts, other) is Code.INVALID_TRANSACTION_ID
    assert await end(parts, stored, group="others") is Code.INVALID_TRANSACTION_ID
    assert await visible(parts) == []
    assert await end(parts, stored, group="producers") is Code.SUCCESS


async def test_an_unknown_end_leaves_the_transaction_open(parts: Parts) -> None:
    stored = await half(parts, b"a")
    assert await end(parts, stored, UNKNOWN) is Code.SUCCESS
    assert len(parts.broker.transactions) == 1
    assert await end(parts, stored) is Code.SUCCESS


async def test_a_committed_message_may_be_delayed(parts: Parts) -> None:
    stored = await half(parts, b"a", DELAY="1")
    await asyncio.sleep(5)
    assert await end(parts, stored) is Code.SUCCESS
    assert await visible(parts) == []
    await asyncio.sleep(1.1)
    assert await visible(parts) == [b"a"]
    record = (await parts.read("t", 1))[0]
    assert record.prepared_transaction_offset == stored.physical_offset


async def test_a_committed_message_may_have_a_time_of_its_own(parts: Parts) -> None:
    stored = await half(parts, b"a", TIMER_DELAY_MS="1500")
    await asyncio.sleep(5)
    assert await end(parts, stored) is Code.SUCCESS
    await asyncio.sleep(1.49)
    assert await visible(parts) == []
    await asyncio.sleep(0.02)
    assert await visible(parts) == [b"a"]
    record = (await parts.read("t", 1))[0]
    assert record.prepared_transaction_offset == stored.physical_offset


async def test_a_time_that_no_commit_could_keep_is_refused_when_it_is_sent(parts: Parts) -> None:
    for wrong in ("soon", "259201000"):
        with pytest.raises(MqError) as caught:
            await half(parts, b"a", TIMER_DELAY_MS=wrong)
        assert caught.value.code is Code.MESSAGE_ILLEGAL
    assert len(parts.broker.transactions) == 0


async def test_a_commit_counts_once_it_is_durable(parts: Parts) -> None:
    stored = await half(parts, b"a")
    parts.flusher.hold()
    ending = asyncio.create_task(end(parts, stored))
    await asyncio.sleep(1)
    assert not ending.done()
    assert await visible(parts) == []
    assert await end(parts, stored) is Code.INVALID_TRANSACTION_ID, "it is under way"
    parts.flusher.let_go()
    assert await ending is Code.SUCCESS
    assert await visible(parts) == [b"a"]


async def test_a_commit_that_fails_leaves_the_transaction_open(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await half(parts, b"a")

    def fail() -> int:
        raise StoreWriteError("the disk is out")

    with monkeypatch.context() as patch:
        patch.setattr(parts.store.flush, "write_and_sync", fail)
        with pytest.raises(MqError, match="the disk is out"):
            await end(parts, stored)
    await asyncio.sleep(0.01)
    assert await visible(parts) == []
    assert await end(parts, stored) is Code.SUCCESS
    assert await visible(parts) == [b"a"]


async def test_a_half_message_that_is_not_stored_is_not_open(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise StoreWriteError("the disk is out")

    with monkeypatch.context() as patch:
        patch.setattr(parts.store.flush, "write_and_sync", fail)
        with pytest.raises(MqError, match="the disk is out"):
            await half(parts, b"a")
    assert len(parts.broker.transactions) == 0


@pytest.mark.parametrize("how", ["its sender goes away", "its sender has waited long enough"])
async def test_a_half_message_that_is_not_stored_is_not_open_though_nobody_waits(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await Parts.begin(tmp_path)

    def fail() -> int:
        raise DiskFull("there is no room")

    with monkeypatch.context() as patch:
        patch.setattr(parts.store.flush, "write_and_sync", fail)
        parts.flusher.hold()
        sending = asyncio.create_task(half(parts, b"a"))
        await asyncio.sleep(0.1)
        if how == "its sender goes away":
            sending.cancel()
            await asyncio.wait([sending])
        else:
            with pytest.raises(FlushTimeout):
                await sending
        parts.flusher.let_go()
        await asyncio.sleep(0.1)
    assert len(parts.broker.transactions) == 0
    await parts.end()


async def test_a_half_message_that_cannot_be_read_for_a_while_is_not_given_up(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await half(parts, b"a")
    transactions = parts.broker.transactions
    one = transactions.get(stored.queue_offset)
    assert one is not None

    def refuse(place: int, size: int) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(parts.store._log, "read", refuse)
        with pytest.raises(StoreShort):
            await transactions.give_up([one])
        patch.setattr(parts.broker.transaction_upkeep, "_behind", lambda: [one])
        await parts.broker.transaction_upkeep.round()
        assert parts.broker.checks.check(one.name) is None
    assert one.half.checks == 0
    assert await end(parts, stored) is Code.SUCCESS
    assert await visible(parts) == [b"a"]


async def test_a_half_message_that_is_not_flushed_yet_is_given_up_whole(parts: Parts) -> None:
    await parts.send("t", b"x")
    parts.flusher.hold()
    sending = asyncio.create_task(half(parts, b"a"))
    await asyncio.sleep(0.1)
    one = parts.broker.transactions.get(0)
    assert one is not None
    giving_up = asyncio.create_task(parts.broker.transactions.give_up([one]))
    await asyncio.sleep(0.1)
    parts.flusher.let_go()
    await asyncio.gather(sending, giving_up)
    assert await parts.bodies("TRANS_CHECK_MAX_TIME_TOPIC") == [b"a"]


async def test_a_write_that_fails_later_undoes_no_end_that_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await Parts.begin(tmp_path, flushDiskType="ASYNC_FLUSH")
    stored = await half(parts, b"a")
    await asyncio.sleep(20)
    assert await end(parts, stored) is Code.SUCCESS
    assert parts.store.flushed_offset < parts.store.written_offset

    def fail() -> int:
        parts.store.flush.roll_back()
        raise DiskFull("there is no room")

    with monkeypatch.context() as patch:
        patch.setattr(parts.store.flush, "write", fail)
        with pytest.raises(MqError, match="there is no room"):
            await parts.send("t", b"b")
    await asyncio.sleep(0.01)
    assert await end(parts, stored) is Code.INVALID_TRANSACTION_ID
    await asyncio.sleep(20)
    assert len(parts.broker.transactions) == 0
    assert await visible(parts) == [b"a"]
    await parts.end()


async def test_a_commit_to_a_deleted_topic_is_refused_and_a_rollback_is_not(parts: Parts) -> None:
    stored = await half(parts, b"a")
    await parts.broker.administration.delete_topic("t")
    assert await end(parts, stored) is Code.TOPIC_NOT_EXIST
    assert await end(parts, stored, ROLLBACK) is Code.SUCCESS


@pytest.mark.parametrize("moved", [False, True])
async def test_a_half_message_of_a_deleted_topic_is_not_committed_to_the_topic_that_is_made_again(
    parts: Parts, moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await parts.send("t", b"x")
    stored = await half(parts, b"a")
    await parts.broker.administration.delete_topic("t")
    await parts.send("t", b"new")
    if moved:
        monkeypatch.setattr(parts.store.cleaning, "wanted_below", parts.store.end_offset)
        await parts.broker.transaction_upkeep.round()
    code = await end(parts, stored)
    assert code is (Code.INVALID_TRANSACTION_ID if moved else Code.TOPIC_NOT_EXIST)
    assert await visible(parts) == [b"new"]
    assert len(await parts.read("TRANS_CHECK_MAX_TIME_TOPIC")) == moved


async def test_who_was_asked_is_written_down_however_many_they_are(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee_broker.delivery.transaction.upkeep.CHECKS_A_RECORD", 2)
    stored = [await half(parts, b"a") for _ in range(5)]
    transactions = parts.broker.transactions
    for one in stored:
        transactions.checked(one.queue_offset)
    await parts.broker.transaction_upkeep.round()
    await asyncio.sleep(0.01)
    ops = await parts.read(names.OP_HALF_TOPIC)
    assert [one.body for one in ops] == [b"0:1,1:1,", b"2:1,3:1,", b"4:1,"]


async def test_a_half_message_waits_for_the_disk_whatever_it_says(parts: Parts) -> None:
    parts.flusher.hold()
    sending = asyncio.create_task(half(parts, b"a", WAIT="false"))
    await asyncio.sleep(1)
    assert not sending.done()
    parts.flusher.let_go()
    await sending


async def test_a_commit_before_the_half_message_is_flushed_waits_for_it(tmp_path: Path) -> None:
    parts = await Parts.begin(tmp_path, flushDiskType="ASYNC_FLUSH")
    stored = await half(parts, b"a")
    assert parts.store.confirmed_offset <= stored.physical_offset
    assert await end(parts, stored) is Code.SUCCESS
    await asyncio.sleep(20)
    assert await visible(parts) == [b"a"]
    await parts.end()


async def test_a_transactional_message_given_back_by_its_consumer_is_a_normal_one(
    parts: Parts,
) -> None:
    await parts.group("g")
    properties = {"TRAN_MSG": "true", "PGROUP": "p"}
    await parts.broker.sender.send([message("%RETRY%g", b"a", properties=properties)])
    assert len(parts.broker.transactions) == 0
    assert await parts.bodies("%RETRY%g") == [b"a"]


async def test_a_broker_may_refuse_transactions(tmp_path: Path) -> None:
    parts = await Parts.begin(tmp_path, rejectTransactionMessage=True)
    with pytest.raises(MqError, match="rejectTransactionMessage") as caught:
        await half(parts, b"a")
    assert caught.value.code is Code.NO_PERMISSION
    await parts.end()


async def test_a_sender_cannot_write_what_the_broker_writes(parts: Parts) -> None:
    first = await half(parts, b"a")
    second = await half(parts, b"b", TRAN_PREPARED_QUEUE_OFFSET="0", HALF_STORED_MS="1")
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    assert await end(parts, second) is Code.SUCCESS
    assert await visible(parts) == [b"b"]


# ---- starts ----


async def again(parts: Parts, path: Path, **options: Any) -> Parts:
    """A clean stop and a start, in the same directory."""
    await parts.end()
    return await Parts.begin(path, clock=parts.clock, **options)


async def test_a_start_finds_what_is_open_and_nothing_else(tmp_path: Path) -> None:
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
    """From which offset of the half and of the op topic on a start will read."""
    return [
        parts.tables.offsets.get(GROUP, topic, QUEUE_ID)
        for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC)
    ]


async def test_a_start_reads_from_the_first_open_half_message_on(parts: Parts) -> None:
    upkeep = parts.broker.transaction_upkeep
    await upkeep.round()
    assert saved(parts) == [0, 0]
    stored = [await half(parts, b"%d" % number) for number in range(5)]
    await end(parts, stored[0])
    await end(parts, stored[2])
    await upkeep.round()
    assert saved(parts) == [1, 0], "1 is open, and was sent before the first op record"
    late = await half(parts, b"late")
    for number in (1, 3, 4):
        await end(parts, stored[number])
    await upkeep.round()
    assert saved(parts) == [5, 2]
    await end(parts, late)
    await upkeep.round()
    assert saved(parts) == [6, 6]


async def test_an_end_that_is_not_durable_yet_is_not_passed_over(parts: Parts) -> None:
    stored = await half(parts, b"a")
    parts.flusher.hold()
    ending = asyncio.create_task(end(parts, stored))
    await asyncio.sleep(1)
    await parts.broker.transaction_upkeep.round()
    assert saved(parts) == [0, 0]
    parts.flusher.let_go()
    await ending


async def test_the_order_of_many_is_kept_small(parts: Parts) -> None:
    first = await half(parts, b"stays")
    for _ in range(30):
        halves = [
            message("t", b"x", 1, properties={"TRAN_MSG": "true", "PGROUP": "p"})
            for _ in range(100)
        ]
        stored = await parts.broker.sender.send(halves)
        ends = [End(one.transaction_id, one.queue_offset, COMMIT) for one in stored]
        assert await parts.broker.transactions.end(ends) == [None] * 100
    await asyncio.sleep(0.01)
    assert len(parts.broker.transactions._table._order) < 1_200
    await parts.broker.transaction_upkeep.round()
    assert saved(parts) == [first.queue_offset, 0]


@pytest.mark.parametrize("properties", [{}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "1500"}])
async def test_a_start_mends_a_commit_whose_op_record_is_missing(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    parts = await Parts.begin(tmp_path)
    stored = await half(parts, b"a", **properties)
    one = parts.broker.transactions.get(stored.queue_offset)
    assert one is not None
    torn, decoded = half_messages.committed(parts.broker.transactions.record(one), one.name)
    parts.store.append([parts.broker.router.route(torn, decoded) or torn])
    await parts.broker.log.durable()
    for _ in range(2):  # mended, and mended for good
        parts = await again(parts, tmp_path)
        assert await end(parts, stored) is Code.INVALID_TRANSACTION_ID
    await asyncio.sleep(5)
    assert await visible(parts) == [b"a"]
    assert len(await parts.read(names.OP_HALF_TOPIC)) == 1
    await parts.end()


async def test_a_torn_commit_that_cannot_be_mended_at_once_is_not_committed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await Parts.begin(tmp_path)
    stored = await half(parts, b"a")
    one = parts.broker.transactions.get(stored.queue_offset)
    assert one is not None
    torn, _ = half_messages.committed(parts.broker.transactions.record(one), one.name)
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


# ---- retention, and halves that lie far behind ----


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
    assert parts.store.min_physical_offset == 0, "its file is still needed"
    await parts.broker.transaction_upkeep.round()
    await asyncio.sleep(11)
    parts.store.maintain(parts.clock.now_ms())
    assert parts.store.min_physical_offset > 0
    assert await visible(parts) == [], "the copy is as invisible"
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


async def test_a_half_message_that_lies_far_behind_is_copied_once(
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


async def test_half_messages_without_end_are_not_copied_without_end(
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
