"""Send: the checks, the queue that is picked, the properties that are added, creation of topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.delivery.send.batch import SendBatch
from aerobee_broker.delivery.send.checks import MAX_PROPERTY_BYTES
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire import properties as props
from aerobee_wire.status import Code, MqError
from support.broker.harness import BORN_HOST, Parts, message


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    parts = await Parts.begin(tmp_path, maxMessageSize=4_096)
    await parts.broker.topics.put(TopicConfig("t", 4, 4))
    yield parts
    await parts.end()


def columns(*bodies: bytes, topic: str = "t", **fields: Any) -> SendBatch:
    batch: dict[str, Any] = {
        "topic": topic,
        "queue_id": 0,
        "body_sizes": [len(body) for body in bodies],
        "bodies": b"".join(bodies),
        "born_host": BORN_HOST,
    }
    return SendBatch(**{**batch, **fields})


def with_properties(*each: dict[str, str], **fields: Any) -> SendBatch:
    encoded = [props.encode(one) for one in each]
    return columns(
        *[b"body"] * len(each),
        properties_sizes=[len(one) for one in encoded],
        properties=b"".join(encoded),
        **fields,
    )


# ---- what is refused ----


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"body": b""}, Code.MESSAGE_ILLEGAL, "empty"),
        ({"body": b"x" * 4_097}, Code.MESSAGE_ILLEGAL, r"4097 bytes: at most 4096 \(maxMessage"),
        ({"properties": {"k": "v" * 31_743}}, Code.MESSAGE_ILLEGAL, "at most 31743"),
        ({"properties": {"a\x01": "b"}}, Code.MESSAGE_ILLEGAL, "0x01"),
        ({"properties": {"DELAY": "soon"}}, Code.MESSAGE_ILLEGAL, "1 to 18, not 'soon'"),
        ({"properties": {"DELAY": "²"}}, Code.MESSAGE_ILLEGAL, "1 to 18, not '²'"),
        ({"properties": {"DELAY": "--1"}}, Code.MESSAGE_ILLEGAL, "1 to 18, not '--1'"),
        ({"properties": {"DELAY": "9" * 5_000}}, Code.MESSAGE_ILLEGAL, "1 to 18, not '999"),
        ({"properties": {"TRAN_MSG": "true"}}, Code.INVALID_PARAMETER, "no producer group"),
        (
            {"properties": {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "u" * 256}},
            Code.MESSAGE_ILLEGAL,
            "at most 255 bytes",
        ),
        (
            {"properties": {"TIMER_DELAY_SEC": "5 s"}},
            Code.MESSAGE_ILLEGAL,
            "whole number, not '5 s",
        ),
        (
            {"properties": {"TIMER_DELAY_MS": "259200001"}},
            Code.MESSAGE_ILLEGAL,
            r"at most 259200000 \(timerMaxDelaySec\)",
        ),
        ({"topic": "rmq_sys_wheel_timer"}, Code.NO_PERMISSION, "permission 4"),
        ({"sys_flag": 4}, Code.INVALID_PARAMETER, "TRAN_MSG is not true"),
        ({"sys_flag": 0x80}, Code.INVALID_PARAMETER, "0x80"),
        ({"topic": "a b"}, Code.INVALID_PARAMETER, "illegal"),
        ({"topic": ""}, Code.INVALID_PARAMETER, "blank"),
        ({"topic": "x" * 128}, Code.INVALID_PARAMETER, "at most 127"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, Code.NO_PERMISSION, "system topic"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, Code.NO_PERMISSION, "system topic"),
        ({"queue_id": 4}, Code.QUEUE_NOT_EXIST, "queues 0 to 3"),
        ({"topic": "%RETRY%nobody"}, Code.SUBSCRIPTION_GROUP_NOT_EXIST, "group create nobody"),
    ],
)
async def test_a_bad_message_is_refused_with_what_to_do(
    parts: Parts, fields: dict[str, Any], code: Code, says: str
) -> None:
    if fields.get("topic") == "%RETRY%nobody":
        await parts.broker.topics.for_group("%RETRY%nobody")
    before = parts.store.end_offset
    with pytest.raises(MqError, match=says) as caught:
        await parts.broker.sender.send([message(**{"topic": "t", "body": b"x", **fields})])
    assert (caught.value.code, caught.value.retryable) == (code, False)
    assert parts.store.end_offset == before


async def test_one_bad_message_keeps_the_whole_request_out(parts: Parts) -> None:
    with pytest.raises(MqError):
        await parts.send("t", b"a", b"", b"c")
    assert await parts.bodies("t") == []


async def test_a_topic_without_write_permission_is_refused(parts: Parts) -> None:
    await parts.broker.topics.put(TopicConfig("t", 4, 4, permission=4))
    with pytest.raises(MqError, match="permission 4") as caught:
        await parts.send("t", b"a")
    assert caught.value.code is Code.NO_PERMISSION


async def test_a_broker_without_write_permission_is_refused(tmp_path: Path) -> None:
    parts = await Parts.begin(tmp_path / "other", brokerPermission=4)
    with pytest.raises(MqError, match="brokerPermission") as caught:
        await parts.send("t", b"a")
    assert caught.value.code is Code.NO_PERMISSION
    await parts.end()


async def test_properties_may_be_as_long_as_promised(parts: Parts) -> None:
    own = {"UNIQ_KEY": "1", "MSG_REGION": "r", "TRACE_ON": "t", "CLUSTER": "c"}
    room = MAX_PROPERTY_BYTES - len(props.encode({**own, "k": ""}))
    await parts.send("t", b"a", properties={**own, "k": "v" * room})
    with pytest.raises(MqError):
        await parts.send("t", b"a", properties={**own, "k": "v" * (room + 1)})


# ---- what is stored ----


async def test_results_are_in_the_order_of_the_messages(parts: Parts) -> None:
    stored = await parts.broker.sender.send(
        [message("t", b"a", 1), message("t", b"b", 2), message("t", b"c", 1)]
    )
    assert [(one.queue_id, one.queue_offset) for one in stored] == [(1, 0), (2, 0), (1, 1)]
    assert await parts.bodies("t", [0, 1, 2]) == [b"a", b"c", b"b"]


async def test_without_a_queue_the_broker_spreads_over_the_writable_ones(parts: Parts) -> None:
    await parts.broker.topics.put(TopicConfig("wide", 8, 4))
    stored = [(await parts.send("wide", b"x", queue_id=None))[0] for _ in range(60)]
    assert {one.queue_id for one in stored} == {0, 1, 2, 3}


async def test_what_the_sender_gave_is_stored(parts: Parts) -> None:
    await parts.send(
        "t",
        b"body",
        properties={"TAGS": "a", "KEYS": "k1 k2", "größe": "ß"},
        flag=-7,
        sys_flag=1,
        born_timestamp_ms=123,
    )
    record = (await parts.read("t"))[0]
    assert (record.flag, record.sys_flag & 1, record.born_timestamp_ms) == (-7, 1, 123)
    assert record.born_host == "10.0.0.7:4711"
    assert record.properties["größe"] == "ß"
    assert parts.store.query("t", "k2")[0].body == b"body"


async def test_the_broker_adds_region_trace_cluster_and_a_unique_id(parts: Parts) -> None:
    stored = await parts.send("t", b"x", properties={"POP_CK": "1"})
    properties = (await parts.read("t"))[0].properties
    assert properties == {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
        "UNIQ_KEY": stored[0].unique_message_id,
    }
    assert len(stored[0].unique_message_id) == 32


async def test_a_senders_own_id_stays(parts: Parts) -> None:
    stored = await parts.send("t", b"x", properties={"UNIQ_KEY": "MINE"})
    assert stored[0].unique_message_id == "MINE"


async def test_messages_that_need_no_wait_are_answered_before_the_flush(parts: Parts) -> None:
    """Property WAIT=false: RocketMQ's waitStoreMsgOK."""
    parts.flusher.hold()
    await parts.send("t", b"x", properties={"WAIT": "false"})
    assert await parts.bodies("t") == []
    parts.flusher.let_go()
    await parts.send("t", b"y")
    assert await parts.bodies("t") == [b"x", b"y"]


# ---- the columnar form ----


async def test_a_batch_is_stored_in_order_with_its_columns(parts: Parts) -> None:
    stored = await parts.broker.batch_sender.send(columns(b"a", b"bb", b"ccc", flags=[1, -2, 3]))
    records = await parts.read("t")
    assert [(one.body, one.flag) for one in records] == [(b"a", 1), (b"bb", -2), (b"ccc", 3)]
    assert stored.physical_offsets == [one.physical_offset for one in records]
    assert (stored.queue_id, stored.first_queue_offset) == (0, 0)


async def test_properties_of_a_batch_are_stored_as_they_came(parts: Parts) -> None:
    given = {"UNIQ_KEY": "1", "TAGS": "a", "x": "y"}
    await parts.broker.batch_sender.send(with_properties(given, {"TAGS": "b", "UNIQ_KEY": "2"}))
    records = await parts.read("t")
    assert records[0].raw_properties == props.encode(given)
    assert records[1].unique_message_id == "2"


async def test_a_batch_gets_unique_ids_where_they_are_missing(parts: Parts) -> None:
    # "NOT_UNIQ_KEY" ends like the name, and a value holds it.
    given = [{"TAGS": "a"}, {"NOT_UNIQ_KEY": "x"}, {}, {"a": "UNIQ_KEY"}]
    await parts.broker.batch_sender.send(with_properties(*given))
    records = await parts.read("t")
    assert len({one.unique_message_id for one in records}) == 4
    assert all(len(one.unique_message_id) == 32 for one in records)
    assert [
        {name: value for name, value in one.properties.items() if name != "UNIQ_KEY"}
        for one in records
    ] == given


@pytest.mark.parametrize(
    ("batch", "code", "says"),
    [
        (columns(), Code.INVALID_PARAMETER, "1 to 65536 messages, not 0"),
        (columns(b"a", b""), Code.MESSAGE_ILLEGAL, "empty"),
        (columns(b"a", b"b" * 4_097), Code.MESSAGE_ILLEGAL, "at most 4096"),
        (columns(b"ab", body_sizes=[1]), Code.INVALID_PARAMETER, "add up to 1, but 2 bytes came"),
        (columns(b"a", flags=[1, 2]), Code.INVALID_PARAMETER, "flags has 2 entries for 1"),
        (
            columns(b"a", properties_sizes=[2], properties=b"x"),
            Code.INVALID_PARAMETER,
            "properties_sizes add up to 2",
        ),
        (
            columns(b"a", properties_sizes=[2], properties=b"\xff\x01"),
            Code.MESSAGE_ILLEGAL,
            "not UTF-8 from byte 0",
        ),
        (columns(b"a", topic="%RETRY%g"), Code.MESSAGE_ILLEGAL, "retry topic"),
        (columns(b"a", sys_flag=8), Code.NO_PERMISSION, "transactional"),
        (columns(b"a", queue_id=9), Code.QUEUE_NOT_EXIST, "queues 0 to 3"),
        (with_properties({"TRAN_MSG": "true"}), Code.NO_PERMISSION, "transactional"),
        (
            with_properties({"a": "b"}, {"TIMER_DELAY_MS": "x"}),
            Code.MESSAGE_ILLEGAL,
            "whole number",
        ),
    ],
)
async def test_a_bad_batch_is_refused_as_a_whole(
    parts: Parts, batch: SendBatch, code: Code, says: str
) -> None:
    with pytest.raises(MqError, match=says) as caught:
        await parts.broker.batch_sender.send(batch)
    assert caught.value.code is code
    assert await parts.bodies("t") == []


async def test_a_delayed_message_of_a_batch_waits_and_the_others_do_not(parts: Parts) -> None:
    await parts.broker.batch_sender.send(with_properties({"a": "1"}, {"DELAY": "1"}, {"a": "2"}))
    assert len(await parts.bodies("t")) == 2
    assert parts.broker.level_delivery.undelivered() == {"level 1 (1 s)": 1}


async def test_a_message_of_a_batch_waits_for_a_time_of_its_own(parts: Parts) -> None:
    batch = with_properties({"a": "1"}, {"TIMER_DELAY_MS": "1500", "a": "2"})
    await parts.broker.batch_sender.send(batch)
    assert len(await parts.bodies("t")) == 1
    await asyncio.sleep(1.501)
    assert [one.properties["a"] for one in await parts.read("t")] == ["1", "2"]


# ---- topics that come to be by sending ----


async def test_an_unknown_topic_inherits_from_tbw102(parts: Parts) -> None:
    await parts.broker.sender.send([message("new", b"x")], 6)
    assert parts.broker.topics.get("new") == TopicConfig("new", 6, 6, permission=6)
    assert "new" in parts.announced[-1], "the name servers know before the send is answered"
    assert parts.spread == [TopicConfig("new", 6, 6)], "and so do the other brokers"
    assert parts.tables.saved_topics._file.load()["topicConfigTable"]["new"]["perm"] == 6  # type: ignore[index]


@pytest.mark.parametrize(("asked", "made"), [(0, 4), (2, 2), (100, 8)])
async def test_a_new_topic_has_as_many_queues_as_the_sender_and_tbw102_allow(
    parts: Parts, asked: int, made: int
) -> None:
    await parts.broker.sender.send([message("new", b"x", None)], asked)
    assert parts.broker.topics.get("new").write_queue_count == made


async def test_without_auto_creation_an_unknown_topic_is_refused(tmp_path: Path) -> None:
    parts = await Parts.begin(tmp_path / "other", autoCreateTopicEnable=False)
    with pytest.raises(MqError, match="aerobee topic create new") as caught:
        await parts.send("new", b"x")
    assert caught.value.code is Code.TOPIC_NOT_EXIST
    await parts.end()


# ---- what a consumer sends to its retry topic itself ----


async def test_an_own_retry_past_its_limit_is_a_dead_letter_with_its_origin(parts: Parts) -> None:
    """When exactly: test_policy."""
    await parts.group("g", retry_max_times=2)
    origin = {"RETRY_TOPIC": "t", "ORIGIN_MESSAGE_ID": "AA", "UNIQ_KEY": "ID"}
    await parts.send("%RETRY%g", b"x", properties=origin, reconsume_times=3)
    [record] = await parts.read("%DLQ%g")
    assert record.reconsume_times == 3
    assert record.properties["DLQ_ORIGIN_TOPIC"] == "t"
    assert record.properties["DLQ_ORIGIN_MESSAGE_ID"] == "ID"


async def test_a_retry_message_may_be_delayed(parts: Parts) -> None:
    await parts.group("g")
    await parts.broker.sender.send([message("%RETRY%g", b"x", properties={"DELAY": "3"})])
    assert await parts.bodies("%RETRY%g") == []
    assert parts.broker.level_delivery.undelivered() == {"level 3 (10 s)": 1}
