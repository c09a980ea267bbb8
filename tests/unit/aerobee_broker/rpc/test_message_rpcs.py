"""MessageService over a broker without sockets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from aerobee.broker.v1 import message_pb2

from aerobee_wire import properties as props
from aerobee_wire.handles import recall_handle
from aerobee_wire.record import iter_records
from aerobee_wire.status import Code
from support.broker.handlers import Handlers
from support.broker.harness import STORE_HOST


def send(*messages: message_pb2.Message, **fields: Any) -> message_pb2.SendRequest:
    return message_pb2.SendRequest(messages=messages, **fields)


def message(body: bytes = b"x", **fields: Any) -> message_pb2.Message:
    return message_pb2.Message(**{"topic": "t", "queue_id": 0, "body": body, **fields})


# ---- Send, RecallMessage ----


async def test_a_timed_message_is_recalled_by_its_handle(handlers: Handlers) -> None:
    timed = message(properties={"TIMER_DELAY_SEC": "60", "UNIQ_KEY": "U"})
    results = (await handlers("Send", send(timed, message()))).results
    assert [bool(result.recall_handle) for result in results] == [True, False]
    request = message_pb2.RecallMessageRequest(topic="t", recall_handle=results[0].recall_handle)
    assert (await handlers("RecallMessage", request)).unique_message_id == "U"
    again = await handlers.refused("RecallMessage", request)
    assert (again.code, again.retryable) == (Code.ILLEGAL_OPERATION, False)


async def test_a_recall_handle_of_another_topic_or_broker_is_refused(handlers: Handlers) -> None:
    timed = message(properties={"TIMER_DELAY_SEC": "60"})
    handle = (await handlers("Send", send(timed))).results[0].recall_handle
    other = recall_handle.encode(replace(recall_handle.decode(handle), broker_name="broker-b"))
    for topic, text in (("other", handle), ("t", other), ("t", "nonsense")):
        request = message_pb2.RecallMessageRequest(topic=topic, recall_handle=text)
        assert (await handlers.refused("RecallMessage", request)).code is Code.INVALID_PARAMETER


async def test_send_answers_in_order_with_ids(handlers: Handlers) -> None:
    request = send(message(b"a", properties={"UNIQ_KEY": "U"}), message(b"b"))
    response = await handlers("Send", request)
    assert (response.broker_name, response.store_host) == ("broker-a", STORE_HOST)
    first, second = response.results
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    assert first.unique_message_id == "U" and second.unique_message_id
    assert second.offset_message_id == f"0A00000100002A9F{second.physical_offset:016X}"


def encoded(properties: Mapping[str, str], **fields: Any) -> message_pb2.Message:
    return message(encoded_properties=props.encode(properties), **fields)


FIELDS: dict[str, Any] = {"flag": 3, "sys_flag": 1, "born_timestamp_ms": 9, "born_host": "[::1]:5"}


@pytest.mark.parametrize("brief", [False, True])
async def test_encoded_properties_are_stored_as_a_map_is(handlers: Handlers, brief: bool) -> None:
    properties = {"UNIQ_KEY": "U", "TAGS": "größe", "colour": "red"}
    await handlers("Send", send(message(properties=properties, **FIELDS)))
    response = await handlers(
        "Send",
        send(
            encoded(properties, **FIELDS),
            encoded(properties, topic="other", body=b"yy"),
            encoded(properties, **FIELDS),
            brief=brief,
        ),
    )
    queue_offsets = response.queue_offsets or [result.queue_offset for result in response.results]
    assert (list(queue_offsets), len(response.results)) == ([1, 0, 2], 0 if brief else 3)
    first, *others = await handlers.harness.read("t")
    assert len(others) == 2
    for record in others:
        for field in ("properties", "body", *FIELDS):
            assert getattr(record, field) == getattr(first, field)
    [other] = await handlers.harness.read("other")
    assert (other.body, other.properties) == (b"yy", first.properties)
    assert handlers.harness.metrics.messages_in == 4


async def test_the_fast_path_picks_a_queue(handlers: Handlers) -> None:
    await handlers.harness.send("t", b"x")
    anywhere = encoded({"UNIQ_KEY": "U"})
    anywhere.ClearField("queue_id")
    assert list((await handlers("Send", send(*[anywhere] * 40, brief=True))).queue_offsets)
    filled = [len(await handlers.harness.read("t", queue_id)) for queue_id in range(4)]
    assert sum(filled) == 41 and all(filled)


@pytest.mark.parametrize(
    ("properties", "topic"),
    [
        ({}, "t"),
        ({"TAGS": "a"}, "t"),
        ({"UNIQ_KEY": ""}, "t"),
        ({"UNIQ_KEY": "U", "DELAY": "1"}, "SCHEDULE_TOPIC_XXXX"),
        ({"UNIQ_KEY": "U", "TIMER_DELAY_SEC": "60"}, "rmq_sys_wheel_timer"),
        ({"UNIQ_KEY": "U", "TRAN_MSG": "true", "PGROUP": "p"}, "RMQ_SYS_TRANS_HALF_TOPIC"),
        ({"UNIQ_KEY": "U", "POP_CK": "x"}, "t"),
        ({"UNIQ_KEY": "U", "WAIT": "false"}, "t"),
        ({"UNIQ_KEY": "U", "MSG_REGION": "here"}, "t"),
    ],
)
async def test_the_fast_path_declines_what_needs_a_rule(
    handlers: Handlers, properties: dict[str, str], topic: str
) -> None:
    response = await handlers("Send", send(encoded(properties), brief=True))
    assert not response.queue_offsets
    assert response.results[0].unique_message_id
    await handlers.harness.broker.commit.drain()  # flushes what was not waited for
    [stored] = await handlers.harness.read(topic)
    kept = {name: value for name, value in properties.items() if value and name != "POP_CK"}
    for name in ("DELAY", "TIMER_DELAY_SEC"):
        kept.pop(name, None)
    assert kept.items() <= stored.properties.items()
    assert stored.properties["MSG_REGION"] == properties.get("MSG_REGION", "DefaultRegion")
    assert "POP_CK" not in stored.properties


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (encoded({"UNIQ_KEY": "U"}, body=b""), Code.MESSAGE_ILLEGAL),
        (encoded({"UNIQ_KEY": "U"}, queue_id=99), Code.QUEUE_NOT_EXIST),
        (encoded({"UNIQ_KEY": "U"}, sys_flag=4), Code.INVALID_PARAMETER),
        (encoded({"UNIQ_KEY": "U"}, topic="a b"), Code.INVALID_PARAMETER),
        (encoded({"UNIQ_KEY": "U", "big": "x" * 32_000}), Code.MESSAGE_ILLEGAL),
        (message(encoded_properties=b"UNIQ_KEY\1U\2a\1\xff\2"), Code.MESSAGE_ILLEGAL),
        (message(encoded_properties=b"U\1U\2", properties={"a": "b"}), Code.INVALID_PARAMETER),
    ],
)
@pytest.mark.parametrize("brief", [False, True])
async def test_of_encoded_messages_all_or_none_are_stored(
    handlers: Handlers, bad: message_pb2.Message, code: Code, brief: bool
) -> None:
    await handlers.harness.send("t", b"before")
    request = send(encoded({"UNIQ_KEY": "U"}), bad, brief=brief)
    assert (await handlers.refused("Send", request)).code is code
    assert handlers.harness.metrics.messages_in == 1
    assert await handlers.harness.bodies("t") == [b"before"]


async def test_the_born_host_is_the_callers_unless_given(handlers: Handlers) -> None:
    await handlers(
        "Send", send(message(), message(born_host="[::1]:5"), message(born_timestamp_ms=9))
    )
    records = await handlers.harness.read("t")
    assert [record.born_host for record in records] == ["10.0.0.7:4711", "[::1]:5", "10.0.0.7:4711"]
    assert records[2].born_timestamp_ms == 9


@pytest.mark.parametrize(
    "request_",
    [
        message_pb2.SendRequest(),
        message_pb2.SendRequest(
            messages=[message()], batch=message_pb2.MessageBatch(topic="t", bodies=b"a")
        ),
        send(message(born_host="nowhere")),
    ],
)
async def test_a_malformed_send_is_an_invalid_parameter(
    handlers: Handlers, request_: message_pb2.SendRequest
) -> None:
    assert (await handlers.refused("Send", request_)).code is Code.INVALID_PARAMETER


async def test_a_batch_answers_with_physical_offsets(handlers: Handlers) -> None:
    await handlers("Send", send(message()))
    batch = message_pb2.MessageBatch(topic="t", queue_id=0, body_sizes=[1, 2], bodies=b"abb")
    response = await handlers("Send", message_pb2.SendRequest(batch=batch))
    result = response.batch_result
    assert (result.queue_id, result.first_queue_offset) == (0, 1)
    assert [record.physical_offset for record in (await handlers.harness.read("t"))[1:]] == list(
        result.physical_offsets
    )


# ---- Pull, SendBack, GetMessage, QueryMessages ----


async def test_pull_answers_with_records_or_plain_messages(handlers: Handlers) -> None:
    await handlers("Send", send(message(b"a", properties={"TAGS": "x", "UNIQ_KEY": "U"}, flag=3)))
    request = message_pb2.PullRequest(topic="t", browse=True)
    raw = await handlers("Pull", request)
    assert (raw.status, raw.message_count, raw.next_begin_offset) == (message_pb2.FOUND, 1, 1)
    assert [record.body for record in iter_records(raw.records)] == [b"a"]
    assert not raw.messages
    request.plain = True
    plain = await handlers("Pull", request)
    assert not plain.records
    stored = plain.messages[0]
    assert (stored.body, stored.flag, stored.unique_message_id) == (b"a", 3, "U")
    assert stored.properties["TAGS"] == "x"
    assert stored.store_host == STORE_HOST


@pytest.mark.parametrize(
    ("offset", "status"),
    [(0, message_pb2.FOUND), (1, message_pb2.NO_NEW_MESSAGE), (2, message_pb2.OFFSET_MOVED)],
)
async def test_pull_answers_with_a_status(handlers: Handlers, offset: int, status: int) -> None:
    await handlers("Send", send(message()))
    request = message_pb2.PullRequest(topic="t", queue_offset=offset, browse=True)
    assert (await handlers("Pull", request)).status == status


async def test_pull_refuses_a_bad_expression(handlers: Handlers) -> None:
    await handlers("Send", send(message()))
    subscription = message_pb2.Subscription(topic="t", expression="||")
    request = message_pb2.PullRequest(topic="t", consumer_group="g", subscription=subscription)
    assert (await handlers.refused("Pull", request)).code is Code.SUBSCRIPTION_PARSE_FAILED


async def test_send_back_answers_entry_by_entry(handlers: Handlers) -> None:
    await handlers.harness.group("g", retry_max_times=0)
    sent = await handlers("Send", send(message()))
    entry = message_pb2.SendBackEntry(
        physical_offset=sent.results[0].physical_offset,
        failure=message_pb2.Failure(reason="ValueError", description="no"),
    )
    missing = message_pb2.SendBackEntry(physical_offset=999_999)
    response = await handlers(
        "SendBack", message_pb2.SendBackRequest(consumer_group="g", entries=[entry, missing])
    )
    results = [(result.code, result.dead_lettered) for result in response.results]
    assert results == [(0, True), (1, False)]
    dead = (await handlers.harness.read("%DLQ%g"))[0]
    assert dead.properties["DLQ_REASON"] == "ValueError"


async def test_max_reconsume_times_0_is_not_absent(handlers: Handlers) -> None:
    await handlers.harness.group("g", retry_max_times=5, retry_delays_ms=(0,))
    sent = await handlers("Send", send(message()))
    physical_offset = sent.results[0].physical_offset
    for entry, dead in (
        (message_pb2.SendBackEntry(physical_offset=physical_offset), False),
        (message_pb2.SendBackEntry(physical_offset=physical_offset, max_reconsume_times=0), True),
    ):
        request = message_pb2.SendBackRequest(consumer_group="g", entries=[entry])
        assert (await handlers("SendBack", request)).results[0].dead_lettered is dead


async def test_a_message_is_found_by_offset_id_and_key(handlers: Handlers) -> None:
    sent = await handlers(
        "Send", send(message(b"a", properties={"KEYS": "k1 k2", "UNIQ_KEY": "U"}))
    )
    result = sent.results[0]
    for request in (
        message_pb2.GetMessageRequest(physical_offset=result.physical_offset),
        message_pb2.GetMessageRequest(offset_message_id=result.offset_message_id),
    ):
        assert (await handlers("GetMessage", request)).message.body == b"a"
    for query, found in (({"key": "k2"}, 1), ({"key": "U", "unique": True}, 1), ({"key": "k"}, 0)):
        by_key = message_pb2.QueryMessagesRequest(topic="t", **query)
        assert len((await handlers("QueryMessages", by_key)).messages) == found
    log = handlers.harness.store.path / "commitlog" / ("0" * 20)
    data = log.read_bytes()
    log.write_bytes(data.replace(b"\0\1a", b"\0\1b", 1))
    response = await handlers(
        "QueryMessages", message_pb2.QueryMessagesRequest(topic="t", key="k2")
    )
    assert not response.messages
    assert [f"commitlog/{log.name}" in text for text in response.damaged] == [True]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (message_pb2.GetMessageRequest(), Code.INVALID_PARAMETER),
        (message_pb2.GetMessageRequest(offset_message_id="ZZ"), Code.INVALID_PARAMETER),
        (message_pb2.GetMessageRequest(physical_offset=7), Code.QUERY_NOT_FOUND),
        (message_pb2.GetMessageRequest(physical_offset=-7), Code.QUERY_NOT_FOUND),
    ],
)
async def test_a_missing_message_is_not_found(
    handlers: Handlers, request_: message_pb2.GetMessageRequest, code: Code
) -> None:
    assert (await handlers.refused("GetMessage", request_)).code is code
