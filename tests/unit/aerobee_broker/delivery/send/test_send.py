"""Send: what is refused, what is stored, the topics and retries that a send creates."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee_broker.delivery.send.admission import MAX_PROPERTY_BYTES
from aerobee_broker.disk import RealDisk
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_wire import properties as props
from aerobee_wire.status import Code, MqError
from support.broker.harness import Begin, BrokerHarness, message
from support.broker.tables import rows_in
from support.clock.manual_clock import ManualClock
from support.codes import raises_code

# ---- what is refused ----


@pytest.mark.parametrize(
    ("fields", "code", "about"),
    [
        ({"body": b""}, Code.MESSAGE_ILLEGAL, "body"),
        ({"body": b"x" * 4_097}, Code.MESSAGE_ILLEGAL, "maxMessageSize"),
        ({"properties": {"k": "v" * 31_743}}, Code.MESSAGE_ILLEGAL, "properties"),
        ({"properties": {"a\x01": "b"}}, Code.MESSAGE_ILLEGAL, "properties"),
        ({"properties": {"DELAY": "soon"}}, Code.MESSAGE_ILLEGAL, "DELAY"),
        ({"properties": {"DELAY": "²"}}, Code.MESSAGE_ILLEGAL, "DELAY"),
        ({"properties": {"DELAY": "--1"}}, Code.MESSAGE_ILLEGAL, "DELAY"),
        ({"properties": {"DELAY": "9" * 5_000}}, Code.MESSAGE_ILLEGAL, "DELAY"),
        ({"properties": {"TRAN_MSG": "true"}}, Code.INVALID_PARAMETER, "PGROUP"),
        (
            {"properties": {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "u" * 256}},
            Code.MESSAGE_ILLEGAL,
            "UNIQ_KEY",
        ),
        ({"properties": {"TIMER_DELAY_SEC": "5 s"}}, Code.MESSAGE_ILLEGAL, "TIMER_DELAY_SEC"),
        ({"properties": {"TIMER_DELAY_MS": "259200001"}}, Code.MESSAGE_ILLEGAL, "timerMaxDelaySec"),
        ({"topic": "rmq_sys_wheel_timer"}, Code.NO_PERMISSION, "permission"),
        ({"sys_flag": 4}, Code.INVALID_PARAMETER, "TRAN_MSG"),
        ({"sys_flag": 0x80}, Code.INVALID_PARAMETER, "sys_flag"),
        ({"topic": "a b"}, Code.INVALID_PARAMETER, "topic"),
        ({"topic": ""}, Code.INVALID_PARAMETER, "topic"),
        ({"topic": "x" * 128}, Code.INVALID_PARAMETER, "topic"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, Code.NO_PERMISSION, "topic"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, Code.NO_PERMISSION, "topic"),
        ({"queue_id": 4}, Code.QUEUE_NOT_EXIST, "queue_id"),
        ({"topic": "%RETRY%nobody"}, Code.SUBSCRIPTION_GROUP_NOT_EXIST, "consumer_group"),
    ],
)
async def test_a_refusal_names_what_to_change(
    harness: BrokerHarness, fields: dict[str, Any], code: Code, about: str
) -> None:
    if fields.get("topic") == "%RETRY%nobody":
        await harness.broker.topics.for_group("%RETRY%nobody")
    before = harness.store.end_offset
    with raises_code(code, about) as caught:
        await harness.broker.sending.sender.send(
            [message(**{"topic": "t", "body": b"x", **fields})]
        )
    assert not caught.value.retryable
    assert harness.store.end_offset == before


async def test_one_bad_message_refuses_the_whole_request(harness: BrokerHarness) -> None:
    with pytest.raises(MqError):
        await harness.send("t", b"a", b"", b"c")
    assert await harness.bodies("t") == []


async def test_a_topic_without_write_permission_is_refused(harness: BrokerHarness) -> None:
    await harness.broker.topics.put(TopicConfig("t", 4, 4, permission=4))
    with raises_code(Code.NO_PERMISSION):
        await harness.send("t", b"a")


async def test_a_broker_without_write_permission_is_refused(begin: Begin) -> None:
    harness = await begin(brokerPermission=4)
    with raises_code(Code.NO_PERMISSION):
        await harness.send("t", b"a")


async def test_properties_may_have_31743_bytes(harness: BrokerHarness) -> None:
    own = {"UNIQ_KEY": "1", "MSG_REGION": "r", "TRACE_ON": "t", "CLUSTER": "c"}
    room = MAX_PROPERTY_BYTES - len(props.encode({**own, "k": ""}))
    await harness.send("t", b"a", properties={**own, "k": "v" * room})
    with pytest.raises(MqError):
        await harness.send("t", b"a", properties={**own, "k": "v" * (room + 1)})


# ---- what is stored ----


async def test_results_are_in_the_order_of_the_messages(harness: BrokerHarness) -> None:
    stored = await harness.broker.sending.sender.send(
        [message("t", b"a", 1), message("t", b"b", 2), message("t", b"c", 1)]
    )
    assert [(result.queue_id, result.queue_offset) for result in stored] == [(1, 0), (2, 0), (1, 1)]
    assert await harness.bodies("t", [0, 1, 2]) == [b"a", b"c", b"b"]


async def test_without_a_queue_id_sends_spread_over_writable_queues(harness: BrokerHarness) -> None:
    await harness.broker.topics.put(TopicConfig("wide", 8, 4))
    stored = [(await harness.send("wide", b"x", queue_id=None))[0] for _ in range(60)]
    assert {result.queue_id for result in stored} == {0, 1, 2, 3}


async def test_the_senders_fields_are_stored(harness: BrokerHarness) -> None:
    await harness.send(
        "t",
        b"body",
        properties={"TAGS": "a", "KEYS": "k1 k2", "größe": "ß"},
        flag=-7,
        sys_flag=1,
        born_timestamp_ms=123,
    )
    record = (await harness.read("t"))[0]
    assert (record.flag, record.sys_flag & 1, record.born_timestamp_ms) == (-7, 1, 123)
    assert record.born_host == "10.0.0.7:4711"
    assert record.properties["größe"] == "ß"
    assert harness.store.query("t", "k2")[0].body == b"body"


async def test_the_broker_adds_its_properties_and_a_unique_id(harness: BrokerHarness) -> None:
    stored = await harness.send("t", b"x", properties={"POP_CK": "1"})
    properties = (await harness.read("t"))[0].properties
    assert properties == {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
        "UNIQ_KEY": stored[0].unique_message_id,
    }
    assert len(stored[0].unique_message_id) == 32


async def test_a_senders_own_unique_id_is_kept(harness: BrokerHarness) -> None:
    stored = await harness.send("t", b"x", properties={"UNIQ_KEY": "MINE"})
    assert stored[0].unique_message_id == "MINE"


async def test_wait_false_is_answered_before_the_flush(harness: BrokerHarness) -> None:
    """Property WAIT=false: RocketMQ's waitStoreMsgOK."""
    harness.flusher.hold()
    await harness.send("t", b"x", properties={"WAIT": "false"})
    assert await harness.bodies("t") == []
    harness.flusher.let_go()
    await harness.send("t", b"y")
    assert await harness.bodies("t") == [b"x", b"y"]


# ---- topics that a send creates ----


async def test_an_unknown_topic_inherits_from_tbw102(harness: BrokerHarness) -> None:
    await harness.broker.sending.sender.send([message("new", b"x")], 6)
    created = TopicConfig("new", 6, 6, attributes={"message.type": "UNSPECIFIED"})
    assert harness.broker.topics.get("new") == created
    assert "new" in harness.announced[-1], "the name servers know before the send is answered"
    assert harness.spread == [created], "and so do the other brokers"
    topics = harness.store.path / "config" / "topics.json"
    assert rows_in(Topics(ManualClock()), RealDisk(), topics)["new"]["perm"] == 6


@pytest.mark.parametrize(("asked", "made"), [(0, 4), (2, 2), (100, 8)])
async def test_the_sender_and_tbw102_limit_the_queues_of_a_new_topic(
    harness: BrokerHarness, asked: int, made: int
) -> None:
    await harness.broker.sending.sender.send([message("new", b"x", None)], asked)
    assert harness.broker.topics.get("new").write_queue_count == made


async def test_without_auto_creation_an_unknown_topic_is_refused(begin: Begin) -> None:
    harness = await begin(autoCreateTopicEnable=False)
    with raises_code(Code.TOPIC_NOT_EXIST):
        await harness.send("new", b"x")


# ---- a consumer's own retries ----


async def test_an_own_retry_past_its_limit_is_a_dead_letter(harness: BrokerHarness) -> None:
    """When exactly: test_policy."""
    await harness.group("g", retry_max_times=2)
    origin = {"RETRY_TOPIC": "t", "ORIGIN_MESSAGE_ID": "AA", "UNIQ_KEY": "ID"}
    await harness.send("%RETRY%g", b"x", properties=origin, reconsume_times=3)
    [record] = await harness.read("%DLQ%g")
    assert record.reconsume_times == 3
    assert record.properties["DLQ_ORIGIN_TOPIC"] == "t"
    assert record.properties["DLQ_ORIGIN_MESSAGE_ID"] == "ID"


async def test_an_own_retry_may_be_delayed(harness: BrokerHarness) -> None:
    await harness.group("g")
    await harness.send("%RETRY%g", b"x", properties={"DELAY": "3"})
    assert await harness.bodies("%RETRY%g") == []
    assert harness.broker.delay.levels.undelivered() == {"level 3 (10 s)": 1}
