"""Transactions: half messages are invisible, and end once."""

from __future__ import annotations

import asyncio
import errno

import pytest

from aerobee_broker.delivery.send.send import SendResult
from aerobee_broker.delivery.transaction.transactions import End, Resolution
from aerobee_broker.errors import (
    DiskFull,
    FlushTimeout,
    NoPermission,
    StoreWriteError,
    TransientReadError,
)
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.record import TRANSACTION_COMMIT, TRANSACTION_MASK
from aerobee_wire.status import Code
from support.broker.harness import BORN_HOST, Begin, BrokerHarness, message
from support.broker.pop_restarts import failing_disk
from support.broker.transactions import end, half, visible
from support.codes import raises_code

COMMIT, ROLLBACK, UNKNOWN = Resolution.COMMIT, Resolution.ROLLBACK, Resolution.UNKNOWN


async def test_a_half_message_is_invisible_until_its_commit(harness: BrokerHarness) -> None:
    stored = await half(harness, b"a", UNIQ_KEY="U1", KEYS="k", TAGS="red")
    assert stored.transaction_id == "U1"
    assert await visible(harness) == []
    assert harness.store.query("t", "k") == []
    assert await end(harness, stored) is Code.SUCCESS
    assert await visible(harness) == [b"a"]


async def test_who_may_not_publish_to_the_topic_ends_nothing(harness: BrokerHarness) -> None:
    stored = await half(harness, b"a")
    ends = [End(stored.transaction_id, stored.queue_offset, each) for each in (COMMIT, ROLLBACK)]
    for outcome in await harness.broker.transactions.end(ends, may_end=lambda topic: topic != "t"):
        assert outcome is not None and outcome.code is Code.NO_PERMISSION
    assert await visible(harness) == []
    assert await end(harness, stored) is Code.SUCCESS


async def test_an_op_record_may_exceed_maxMessageSize(begin: Begin) -> None:
    """The op record of 20 ends has more bytes than a body may have."""
    harness = await begin(maxMessageSize=1)
    halves = [await half(harness, b"a") for _ in range(20)]
    ends = [End(stored.transaction_id, stored.queue_offset, COMMIT) for stored in halves]
    assert await harness.broker.transactions.end(ends) == [None] * 20
    assert await visible(harness) == [b"a"] * 20


async def test_the_committed_message_has_the_fields_of_the_half(harness: BrokerHarness) -> None:
    sent = message(
        "t",
        b"x",
        1,
        properties={"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "U", "a": "b"},
        flag=9,
        sys_flag=1 | 4,
        born_timestamp_ms=55,
    )
    stored = (await harness.broker.sending.sender.send([sent]))[0]
    await end(harness, stored)
    record = (await harness.read("t", 1))[0]
    assert (record.queue_id, record.flag, record.sys_flag & 1) == (1, 9, 1)
    assert record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    assert (record.born_timestamp_ms, record.born_host_packed) == (55, BORN_HOST)
    assert record.prepared_transaction_offset == stored.physical_offset
    properties = record.properties
    assert (properties["UNIQ_KEY"], properties["__transactionId__"]) == ("U", "U")
    assert (properties["a"], properties["TRAN_PREPARED_QUEUE_OFFSET"]) == ("b", "0")
    assert not {"REAL_TOPIC", "REAL_QID", "TRANSACTION_CHECK_TIMES"} & properties.keys()


@pytest.mark.parametrize(("first", "left"), [(COMMIT, [b"a"]), (ROLLBACK, [])])
@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
async def test_a_transaction_ends_once(
    harness: BrokerHarness, first: Resolution, left: list[bytes], second: Resolution
) -> None:
    stored = await half(harness, b"a")
    assert await end(harness, stored, first) is Code.SUCCESS
    assert await visible(harness) == left
    assert await end(harness, stored, second) is Code.INVALID_TRANSACTION_ID
    assert await visible(harness) == left


async def test_of_two_ends_in_one_request_the_first_counts(harness: BrokerHarness) -> None:
    stored = await half(harness, b"a")
    commit = End(stored.transaction_id, stored.queue_offset, COMMIT)
    outcomes = await harness.broker.transactions.end([commit, commit])
    codes = [outcome.code if outcome else None for outcome in outcomes]
    assert codes == [None, Code.INVALID_TRANSACTION_ID]
    assert await visible(harness) == [b"a"]


async def test_an_end_names_offset_transaction_id_and_group(harness: BrokerHarness) -> None:
    stored = await half(harness, b"a")
    wrong = SendResult(0, 7, 0, "", "x"), SendResult(0, stored.queue_offset, 0, "", "x")
    for other in wrong:
        assert await end(harness, other) is Code.INVALID_TRANSACTION_ID
    assert await end(harness, stored, group="others") is Code.INVALID_TRANSACTION_ID
    assert await visible(harness) == []
    assert await end(harness, stored, group="producers") is Code.SUCCESS


async def test_an_unknown_resolution_leaves_the_transaction_open(harness: BrokerHarness) -> None:
    stored = await half(harness, b"a")
    assert await end(harness, stored, UNKNOWN) is Code.SUCCESS
    assert len(harness.broker.transactions) == 1
    assert await end(harness, stored) is Code.SUCCESS


@pytest.mark.parametrize(
    ("wait", "delay_s"), [({"DELAY": "1"}, 1.0), ({"TIMER_DELAY_MS": "1500"}, 1.5)]
)
async def test_a_committed_message_may_be_delayed(
    harness: BrokerHarness, wait: dict[str, str], delay_s: float
) -> None:
    stored = await half(harness, b"a", **wait)
    await asyncio.sleep(5)
    assert await end(harness, stored) is Code.SUCCESS
    await asyncio.sleep(delay_s - 0.01)
    assert await visible(harness) == []
    await asyncio.sleep(0.02)
    assert await visible(harness) == [b"a"]
    record = (await harness.read("t", 1))[0]
    assert record.prepared_transaction_offset == stored.physical_offset


async def test_a_half_message_with_an_invalid_time_is_refused(harness: BrokerHarness) -> None:
    for wrong in ("soon", "259201000"):
        with raises_code(Code.MESSAGE_ILLEGAL):
            await half(harness, b"a", TIMER_DELAY_MS=wrong)
    assert len(harness.broker.transactions) == 0


async def test_a_commit_returns_when_it_is_durable(harness: BrokerHarness) -> None:
    stored = await half(harness, b"a")
    harness.flusher.hold()
    ending = asyncio.create_task(end(harness, stored))
    await asyncio.sleep(1)
    assert not ending.done()
    assert await visible(harness) == []
    assert await end(harness, stored) is Code.INVALID_TRANSACTION_ID, "the commit is under way"
    harness.flusher.let_go()
    assert await ending is Code.SUCCESS
    assert await visible(harness) == [b"a"]


async def test_a_commit_rolled_back_leaves_the_transaction_open(harness: BrokerHarness) -> None:
    stored = await half(harness, b"a")

    with failing_disk(harness), pytest.raises(StoreWriteError):
        await end(harness, stored)
    await asyncio.sleep(0.01)
    assert await visible(harness) == []
    assert await end(harness, stored) is Code.SUCCESS
    assert await visible(harness) == [b"a"]


async def test_a_half_message_rolled_back_is_not_open(harness: BrokerHarness) -> None:
    with failing_disk(harness), pytest.raises(StoreWriteError):
        await half(harness, b"a")
    assert len(harness.broker.transactions) == 0


@pytest.mark.parametrize("how", ["its sender goes away", "its sender has waited long enough"])
async def test_a_half_message_is_dropped_if_rolled_back_after_the_wait(
    harness: BrokerHarness, how: str
) -> None:

    with failing_disk(harness, DiskFull("there is no room")):
        harness.flusher.hold()
        sending = asyncio.create_task(half(harness, b"a"))
        await asyncio.sleep(0.1)
        if how == "its sender goes away":
            sending.cancel()
            await asyncio.wait([sending])
        else:
            with pytest.raises(FlushTimeout):
                await sending
        harness.flusher.let_go()
        await asyncio.sleep(0.1)
    assert len(harness.broker.transactions) == 0


async def test_a_half_message_unreadable_for_a_while_stays_open(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await half(harness, b"a")
    transactions = harness.broker.transactions
    transaction = transactions.get(stored.queue_offset)
    assert transaction is not None

    def refuse(place: int, size: int) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(harness.store._log, "read", refuse)
        with pytest.raises(TransientReadError):
            await transactions.give_up([transaction])
        patch.setattr(harness.broker.transaction_upkeep, "_behind", lambda: [transaction])
        await harness.broker.transaction_upkeep.round()
        assert harness.broker.transaction_checks.check(transaction.name) is None
    assert transaction.half.checks == 0
    assert await end(harness, stored) is Code.SUCCESS
    assert await visible(harness) == [b"a"]


async def test_give_up_waits_for_the_flush_of_the_half_message(harness: BrokerHarness) -> None:
    await harness.send("t", b"x")
    harness.flusher.hold()
    sending = asyncio.create_task(half(harness, b"a"))
    await asyncio.sleep(0.1)
    transaction = harness.broker.transactions.get(0)
    assert transaction is not None
    giving_up = asyncio.create_task(harness.broker.transactions.give_up([transaction]))
    await asyncio.sleep(0.1)
    harness.flusher.let_go()
    await asyncio.gather(sending, giving_up)
    assert await harness.bodies("TRANS_CHECK_MAX_TIME_TOPIC") == [b"a"]


async def test_a_later_failed_write_undoes_no_written_end(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await begin(flushDiskType="ASYNC_FLUSH")
    stored = await half(harness, b"a")
    await asyncio.sleep(20)
    assert await end(harness, stored) is Code.SUCCESS
    assert harness.store.flushed_offset < harness.store.written_offset

    def fail() -> int:
        harness.store.flush.roll_back()
        raise DiskFull("there is no room")

    with monkeypatch.context() as patch:
        patch.setattr(harness.store.flush, "write", fail)
        with pytest.raises(DiskFull):
            await harness.send("t", b"b")
    await asyncio.sleep(0.01)
    assert await end(harness, stored) is Code.INVALID_TRANSACTION_ID
    await asyncio.sleep(20)
    assert len(harness.broker.transactions) == 0
    assert await visible(harness) == [b"a"]


async def test_a_deleted_topic_refuses_commits_and_takes_rollbacks(harness: BrokerHarness) -> None:
    stored = await half(harness, b"a")
    await harness.broker.administration.delete_topic("t")
    assert await end(harness, stored) is Code.TOPIC_NOT_EXIST
    assert await end(harness, stored, ROLLBACK) is Code.SUCCESS


@pytest.mark.parametrize("properties", [{}, {"DELAY": "1"}], ids=str)
async def test_a_commit_after_its_queue_was_removed_is_stored_in_another(
    harness: BrokerHarness, properties: dict[str, str]
) -> None:
    """The queue was empty, so the topic could be shrunk."""
    stored = await half(harness, b"a", **properties)
    await harness.broker.administration.update_topic(
        TopicConfig("t", 1, 1),
        ["read_queue_count", "write_queue_count"],
        dry_run=False,
        force=False,
    )
    assert await end(harness, stored) is Code.SUCCESS
    await asyncio.sleep(2)
    assert await harness.bodies("t") == [b"a"]


@pytest.mark.parametrize("moved", [False, True])
async def test_a_recreated_topic_refuses_half_messages_sent_before(
    harness: BrokerHarness, moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.send("t", b"x")
    stored = await half(harness, b"a")
    await harness.broker.administration.delete_topic("t")
    await harness.send("t", b"new")
    if moved:
        monkeypatch.setattr(harness.store.cleaning, "wanted_below", harness.store.end_offset)
        await harness.broker.transaction_upkeep.round()
    code = await end(harness, stored)
    assert code is (Code.INVALID_TRANSACTION_ID if moved else Code.TOPIC_NOT_EXIST)
    assert await visible(harness) == [b"new"]
    assert len(await harness.read("TRANS_CHECK_MAX_TIME_TOPIC")) == moved


async def test_a_half_message_with_WAIT_false_waits_for_the_disk(harness: BrokerHarness) -> None:
    harness.flusher.hold()
    sending = asyncio.create_task(half(harness, b"a", WAIT="false"))
    await asyncio.sleep(1)
    assert not sending.done()
    harness.flusher.let_go()
    await sending


async def test_a_commit_waits_for_the_flush_of_its_half_message(begin: Begin) -> None:
    harness = await begin(flushDiskType="ASYNC_FLUSH")
    stored = await half(harness, b"a")
    assert harness.store.confirmed_offset <= stored.physical_offset
    assert await end(harness, stored) is Code.SUCCESS
    await asyncio.sleep(20)
    assert await visible(harness) == [b"a"]


async def test_a_transactional_message_sent_to_a_retry_topic_is_normal(
    harness: BrokerHarness,
) -> None:
    await harness.group("g")
    properties = {"TRAN_MSG": "true", "PGROUP": "p"}
    await harness.broker.sending.sender.send([message("%RETRY%g", b"a", properties=properties)])
    assert len(harness.broker.transactions) == 0
    assert await harness.bodies("%RETRY%g") == [b"a"]


async def test_rejectTransactionMessage_refuses_half_messages(begin: Begin) -> None:
    harness = await begin(rejectTransactionMessage=True)
    with pytest.raises(NoPermission):
        await half(harness, b"a")


async def test_a_sender_cannot_set_properties_of_the_broker(harness: BrokerHarness) -> None:
    first = await half(harness, b"a")
    second = await half(harness, b"b", TRAN_PREPARED_QUEUE_OFFSET="0", HALF_STORED_MS="1")
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    assert await end(harness, second) is Code.SUCCESS
    assert await visible(harness) == [b"b"]
