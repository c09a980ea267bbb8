"""The handlers: protobuf in, one call of the domain, protobuf out. Over real parts, no sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aerobee.broker.v1 import admin_pb2, client_pb2, message_pb2, offset_pb2, pop_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_broker.app import failure_of
from aerobee_chassis.rpc.services import Method
from aerobee_wire import properties as props
from aerobee_wire import recall_handle
from aerobee_wire.record import iter_records
from aerobee_wire.status import Code, MqError, error_from
from support.broker.harness import STORE_HOST, Parts


class FakeCall:
    """`Call` of a client at 10.0.0.7:4711."""

    metadata: Mapping[str, str] = {}
    peer = "10.0.0.7:4711"

    def __init__(self) -> None:
        self.written: asyncio.Queue[Any] = asyncio.Queue()

    def time_remaining_s(self) -> float | None:
        return None

    def cancelled(self) -> bool:
        return False

    async def write(self, message: Any) -> None:
        await self.written.put(message)

    async def write_all(self, messages: Iterable[Any], *, more_follows: bool = False) -> None:
        for message in messages:
            await self.write(message)


class Api:
    """The services by method name, as a caller sees them."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._methods: dict[str, Method] = {
            method.name: method for service in parts.broker.services() for method in service.methods
        }

    async def __call__(self, name: str, request: Any, call: FakeCall | None = None) -> Any:
        method = self._methods[name]
        # As over the wire: what the handler gets was serialised.
        parsed = method.request.FromString(request.SerializeToString())
        return await method.handler(parsed, call or FakeCall())


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    parts = await Parts.begin(tmp_path)
    yield Api(parts)
    await parts.end()


def send(*messages: message_pb2.Message, **fields: Any) -> message_pb2.SendRequest:
    return message_pb2.SendRequest(messages=messages, **fields)


def message(body: bytes = b"x", **fields: Any) -> message_pb2.Message:
    return message_pb2.Message(**{"topic": "t", "queue_id": 0, "body": body, **fields})


async def refused(api: Api, name: str, request: Any) -> MqError:
    with pytest.raises(MqError) as caught:
        await api(name, request)
    return caught.value


# ---- messages ----


async def test_a_message_with_a_time_of_its_own_is_recalled_by_its_handle(api: Api) -> None:
    timed = message(properties={"TIMER_DELAY_SEC": "60", "UNIQ_KEY": "U"})
    results = (await api("Send", send(timed, message()))).results
    assert [bool(one.recall_handle) for one in results] == [True, False]
    request = message_pb2.RecallMessageRequest(topic="t", recall_handle=results[0].recall_handle)
    assert (await api("RecallMessage", request)).unique_message_id == "U"
    again = await refused(api, "RecallMessage", request)
    assert (again.code, again.retryable) == (Code.ILLEGAL_OPERATION, False)


async def test_a_recall_handle_of_elsewhere_is_refused(api: Api) -> None:
    timed = message(properties={"TIMER_DELAY_SEC": "60"})
    handle = (await api("Send", send(timed))).results[0].recall_handle
    other = recall_handle.encode(replace(recall_handle.decode(handle), broker_name="broker-b"))
    for topic, text, says in (
        ("other", handle, "belongs to topic 't', not 'other'"),
        ("t", other, "belongs to broker 'broker-b', not 'broker-a'"),
        ("t", "nonsense", "invalid"),
    ):
        request = message_pb2.RecallMessageRequest(topic=topic, recall_handle=text)
        error = await refused(api, "RecallMessage", request)
        assert error.code is Code.INVALID_PARAMETER
        assert says in error.message


async def test_send_answers_in_order_with_ids(api: Api) -> None:
    request = send(message(b"a", properties={"UNIQ_KEY": "U"}), message(b"b"))
    response = await api("Send", request)
    assert (response.broker_name, response.store_host) == ("broker-a", STORE_HOST)
    first, second = response.results
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    assert first.unique_message_id == "U" and second.unique_message_id
    assert second.offset_message_id == f"0A00000100002A9F{second.physical_offset:016X}"


def encoded(properties: Mapping[str, str], **fields: Any) -> message_pb2.Message:
    return message(encoded_properties=props.encode(properties), **fields)


FIELDS: dict[str, Any] = {"flag": 3, "sys_flag": 1, "born_timestamp_ms": 9, "born_host": "[::1]:5"}


@pytest.mark.parametrize("brief", [False, True])
async def test_encoded_properties_are_stored_as_a_map_is(api: Api, brief: bool) -> None:
    properties = {"UNIQ_KEY": "U", "TAGS": "größe", "colour": "red"}
    await api("Send", send(message(properties=properties, **FIELDS)))
    response = await api(
        "Send",
        send(
            encoded(properties, **FIELDS),
            encoded(properties, topic="other", body=b"yy"),
            encoded(properties, **FIELDS),
            brief=brief,
        ),
    )
    places = response.queue_offsets or [one.queue_offset for one in response.results]
    assert (list(places), len(response.results)) == ([1, 0, 2], 0 if brief else 3)
    first, *others = await api.parts.read("t")
    assert len(others) == 2
    for one in others:
        assert one.properties == first.properties
        assert (one.flag, one.sys_flag, one.born_timestamp_ms, one.born_host, one.body) == (
            *(first.flag, first.sys_flag, first.born_timestamp_ms, first.born_host, first.body),
        )
    [other] = await api.parts.read("other")
    assert (other.body, other.properties) == (b"yy", first.properties)
    assert api.parts.meters.messages_in == 4


async def test_a_queue_is_picked_for_a_brief_message_too(api: Api) -> None:
    await api.parts.send("t", b"x")
    one = encoded({"UNIQ_KEY": "U"})
    one.ClearField("queue_id")
    assert list((await api("Send", send(*[one] * 40, brief=True))).queue_offsets)
    filled = [len(await api.parts.read("t", number)) for number in range(4)]
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
async def test_a_message_that_asks_for_more_is_answered_in_full(
    api: Api, properties: dict[str, str], topic: str
) -> None:
    response = await api("Send", send(encoded(properties), brief=True))
    assert not response.queue_offsets
    assert response.results[0].unique_message_id
    await api.parts.broker.commit.drain()  # also of what does not wait
    [stored] = await api.parts.read(topic)
    kept = {name: value for name, value in properties.items() if value and name != "POP_CK"}
    for name in ("DELAY", "TIMER_DELAY_SEC"):
        kept.pop(name, None)
    assert kept.items() <= stored.properties.items()
    assert stored.properties["MSG_REGION"] == properties.get("MSG_REGION", "DefaultRegion")
    assert "POP_CK" not in stored.properties


@pytest.mark.parametrize(
    ("one", "code"),
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
    api: Api, one: message_pb2.Message, code: Code, brief: bool
) -> None:
    await api.parts.send("t", b"before")
    request = send(encoded({"UNIQ_KEY": "U"}), one, brief=brief)
    assert (await refused(api, "Send", request)).code is code
    assert api.parts.meters.messages_in == 1
    assert await api.parts.bodies("t") == [b"before"]


async def test_send_takes_the_callers_address_unless_it_gives_another(api: Api) -> None:
    await api("Send", send(message(), message(born_host="[::1]:5"), message(born_timestamp_ms=9)))
    records = await api.parts.read("t")
    assert [one.born_host for one in records] == ["10.0.0.7:4711", "[::1]:5", "10.0.0.7:4711"]
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
    api: Api, request_: message_pb2.SendRequest
) -> None:
    assert (await refused(api, "Send", request_)).code is Code.INVALID_PARAMETER


async def test_a_batch_answers_with_its_places(api: Api) -> None:
    await api("Send", send(message()))
    batch = message_pb2.MessageBatch(topic="t", queue_id=0, body_sizes=[1, 2], bodies=b"abb")
    response = await api("Send", message_pb2.SendRequest(batch=batch))
    result = response.batch_result
    assert (result.queue_id, result.first_queue_offset) == (0, 1)
    assert [one.physical_offset for one in (await api.parts.read("t"))[1:]] == list(
        result.physical_offsets
    )


async def test_pull_gives_records_and_on_request_messages(api: Api) -> None:
    await api("Send", send(message(b"a", properties={"TAGS": "x", "UNIQ_KEY": "U"}, flag=3)))
    request = message_pb2.PullRequest(topic="t", browse=True)
    raw = await api("Pull", request)
    assert (raw.status, raw.message_count, raw.next_begin_offset) == (message_pb2.FOUND, 1, 1)
    assert [one.body for one in iter_records(raw.records)] == [b"a"]
    assert not raw.messages
    request.plain = True
    plain = await api("Pull", request)
    assert not plain.records
    stored = plain.messages[0]
    assert (stored.body, stored.flag, stored.unique_message_id) == (b"a", 3, "U")
    assert stored.properties["TAGS"] == "x"
    assert stored.store_host == STORE_HOST


@pytest.mark.parametrize(
    ("offset", "status"),
    [(0, message_pb2.FOUND), (1, message_pb2.NO_NEW_MESSAGE), (2, message_pb2.OFFSET_MOVED)],
)
async def test_pull_says_what_it_found(api: Api, offset: int, status: int) -> None:
    await api("Send", send(message()))
    request = message_pb2.PullRequest(topic="t", queue_offset=offset, browse=True)
    assert (await api("Pull", request)).status == status


async def test_pull_with_a_bad_expression_is_told_so(api: Api) -> None:
    await api("Send", send(message()))
    subscription = message_pb2.Subscription(topic="t", expression="||")
    request = message_pb2.PullRequest(topic="t", consumer_group="g", subscription=subscription)
    assert (await refused(api, "Pull", request)).code is Code.SUBSCRIPTION_PARSE_FAILED


async def test_send_back_answers_entry_by_entry(api: Api) -> None:
    await api.parts.group("g", retry_max_times=0)
    sent = await api("Send", send(message()))
    entry = message_pb2.SendBackEntry(
        physical_offset=sent.results[0].physical_offset,
        failure=message_pb2.Failure(reason="ValueError", description="no"),
    )
    missing = message_pb2.SendBackEntry(physical_offset=999_999)
    response = await api(
        "SendBack", message_pb2.SendBackRequest(consumer_group="g", entries=[entry, missing])
    )
    assert [(one.code, one.dead_lettered) for one in response.results] == [(0, True), (1, False)]
    assert "no record" in response.results[1].message
    dead = (await api.parts.read("%DLQ%g"))[0]
    assert dead.properties["DLQ_REASON"] == "ValueError"


async def test_max_reconsume_times_0_is_not_the_same_as_none(api: Api) -> None:
    await api.parts.group("g", retry_max_times=5, retry_delays_ms=(0,))
    sent = await api("Send", send(message()))
    place = sent.results[0].physical_offset
    for entry, dead in (
        (message_pb2.SendBackEntry(physical_offset=place), False),
        (message_pb2.SendBackEntry(physical_offset=place, max_reconsume_times=0), True),
    ):
        request = message_pb2.SendBackRequest(consumer_group="g", entries=[entry])
        assert (await api("SendBack", request)).results[0].dead_lettered is dead


async def test_a_message_is_found_by_place_id_and_key(api: Api) -> None:
    sent = await api("Send", send(message(b"a", properties={"KEYS": "k1 k2", "UNIQ_KEY": "U"})))
    result = sent.results[0]
    for request in (
        message_pb2.GetMessageRequest(physical_offset=result.physical_offset),
        message_pb2.GetMessageRequest(offset_message_id=result.offset_message_id),
    ):
        assert (await api("GetMessage", request)).message.body == b"a"
    for query, found in (({"key": "k2"}, 1), ({"key": "U", "unique": True}, 1), ({"key": "k"}, 0)):
        by_key = message_pb2.QueryMessagesRequest(topic="t", **query)
        assert len((await api("QueryMessages", by_key)).messages) == found
    log = api.parts.store.path / "commitlog" / ("0" * 20)
    data = log.read_bytes()
    log.write_bytes(data.replace(b"\0\1a", b"\0\1b", 1))
    response = await api("QueryMessages", message_pb2.QueryMessagesRequest(topic="t", key="k2"))
    assert not response.messages
    assert f"physical offset {result.physical_offset} in {log}" in response.damaged[0]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (message_pb2.GetMessageRequest(), Code.INVALID_PARAMETER),
        (message_pb2.GetMessageRequest(offset_message_id="ZZ"), Code.INVALID_PARAMETER),
        (message_pb2.GetMessageRequest(physical_offset=7), Code.QUERY_NOT_FOUND),
        (message_pb2.GetMessageRequest(physical_offset=-7), Code.QUERY_NOT_FOUND),
    ],
)
async def test_a_message_that_is_not_there_is_told_so(
    api: Api, request_: message_pb2.GetMessageRequest, code: Code
) -> None:
    assert (await refused(api, "GetMessage", request_)).code is code


# ---- offsets ----


async def test_offsets_are_stored_looked_up_and_moved(api: Api) -> None:
    await api.parts.group("g")
    await api("Send", send(message(b"a"), message(b"b")))
    update = offset_pb2.UpdateConsumerOffsetsRequest(
        consumer_group="g", offsets=[offset_pb2.QueueOffset(topic="t", queue_offset=2)]
    )
    await api("UpdateConsumerOffsets", update)
    query = offset_pb2.QueryConsumerOffsetsRequest(consumer_group="g")
    assert [one.queue_offset for one in (await api("QueryConsumerOffsets", query)).offsets] == [2]
    bounds = await api("GetQueueOffsets", offset_pb2.GetQueueOffsetsRequest(topic="t"))
    assert [one.max_offset for one in bounds.queues] == [2, 0, 0, 0]
    reset = offset_pb2.ResetConsumerOffsetsRequest(consumer_group="g", topic="t", timestamp_ms=-1)
    moved = await api("ResetConsumerOffsets", reset)
    assert [one.queue_offset for one in moved.offsets] == [2, 0, 0, 0]
    stats = await api("GetConsumeStats", offset_pb2.GetConsumeStatsRequest(consumer_group="g"))
    read = next(one for one in stats.queues if one.topic == "t" and one.queue_id == 0)
    assert (read.consumer_offset, read.max_offset) == (2, 2)
    unread = next(one for one in stats.queues if one.topic == "%RETRY%g")
    assert not unread.HasField("consumer_offset")


async def test_a_reset_to_nowhere_is_refused(api: Api) -> None:
    await api.parts.group("g")
    await api("Send", send(message()))
    request = offset_pb2.ResetConsumerOffsetsRequest(consumer_group="g", topic="t")
    assert (await refused(api, "ResetConsumerOffsets", request)).code is Code.INVALID_PARAMETER


async def test_offset_0_can_be_reset_to(api: Api) -> None:
    await api.parts.group("g")
    await api("Send", send(message()))
    request = offset_pb2.ResetConsumerOffsetsRequest(
        consumer_group="g", topic="t", queue_offset=0, queue_ids=[0]
    )
    moved = await api("ResetConsumerOffsets", request)
    assert [(one.queue_id, one.queue_offset) for one in moved.offsets] == [(0, 0)]


# ---- clients ----


def heartbeat(client_id: str = "c1", group: str = "g", expression: str = "*") -> Any:
    subscription = message_pb2.Subscription(topic="t", expression=expression, version=1)
    consumer = client_pb2.ConsumerData(
        consumer_group=group, consume_type=client_pb2.PUSH, subscriptions=[subscription]
    )
    return client_pb2.HeartbeatRequest(
        client_id=client_id, producer_groups=["p"], consumers=[consumer], language="python"
    )


async def test_a_heartbeat_makes_the_group_and_its_retry_topic(api: Api) -> None:
    await api("Heartbeat", heartbeat())
    assert api.parts.broker.groups.get("g").retry_max_times == 16
    assert api.parts.broker.topics.get("%RETRY%g").permission == 6
    members = client_pb2.ListGroupMembersRequest(consumer_group="g")
    assert list((await api("ListGroupMembers", members)).client_ids) == ["c1"]
    listed = (await api("ListClients", client_pb2.ListClientsRequest(group="g"))).clients
    assert [(one.client_id, one.address, one.language) for one in listed] == [
        ("c1", "10.0.0.7:4711", "python")
    ]
    consumer = listed[0].consumers[0]
    assert (consumer.consume_type, consumer.message_model) == (
        client_pb2.PUSH,
        client_pb2.CLUSTERING,
    )
    assert consumer.subscriptions[0].expression == "*"
    nobody = client_pb2.ListClientsRequest(group="nobody")
    assert not (await api("ListClients", nobody)).clients


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (heartbeat(client_id=""), Code.INVALID_PARAMETER),
        (heartbeat(expression="||"), Code.SUBSCRIPTION_PARSE_FAILED),
        (heartbeat(group="a b"), Code.INVALID_PARAMETER),
    ],
)
async def test_a_bad_heartbeat_is_refused_and_registers_nobody(
    api: Api, request_: Any, code: Code
) -> None:
    assert (await refused(api, "Heartbeat", request_)).code is code
    assert api.parts.broker.clients.all() == []


async def test_an_enum_value_of_a_newer_client_is_refused(api: Api) -> None:
    request = heartbeat()
    request.consumers[0].consume_type = 77
    assert (await refused(api, "Heartbeat", request)).code is Code.INVALID_PARAMETER


async def test_a_watch_begins_with_watching_and_carries_notices(api: Api) -> None:
    call = FakeCall()
    watch = asyncio.create_task(
        api("WatchClient", client_pb2.WatchClientRequest(client_id="c1"), call)
    )
    assert (await call.written.get()).WhichOneof("notice") == "watching"
    await api("Heartbeat", heartbeat())
    notice = await call.written.get()
    assert notice.group_members_changed.consumer_group == "g"
    watch.cancel()
    await asyncio.wait([watch])
    assert api.parts.broker.clients.all() == []


async def test_a_broker_that_stops_ends_the_watches(api: Api) -> None:
    request = client_pb2.WatchClientRequest(client_id="c1")
    watch = asyncio.create_task(api("WatchClient", request))
    await asyncio.sleep(1)
    api.parts.broker.clients.close()
    assert await watch is None


async def test_unregistering_forgets_at_once(api: Api) -> None:
    await api("Heartbeat", heartbeat())
    await api("UnregisterClient", client_pb2.UnregisterClientRequest(client_id="c1"))
    assert api.parts.broker.clients.all() == []


# ---- administration ----


async def test_topics_are_put_listed_and_deleted(api: Api) -> None:
    config = namesrv_pb2.TopicConfig(
        topic="t",
        read_queue_count=2,
        write_queue_count=2,
        permission=6,
        attributes={"message.type": "FIFO"},
    )
    put = admin_pb2.PutTopicRequest(topic=config)
    api.parts.unreachable = ["n:1"]
    response = await api("PutTopic", put)
    assert (response.created, list(response.unreachable_namesrvs)) == (True, ["n:1"])
    assert (await api("GetTopic", admin_pb2.GetTopicRequest(topic="t"))).topic == config
    listed = await api("ListTopics", admin_pb2.ListTopicsRequest())
    assert [one.topic for one in listed.topics] == ["t"]
    everything = await api("ListTopics", admin_pb2.ListTopicsRequest(include_system=True))
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX"} <= {one.topic for one in everything.topics}
    delete = admin_pb2.DeleteTopicRequest(topic="t")
    assert [(await api("DeleteTopic", delete)).deleted for _ in range(2)] == [True, False]
    assert (await refused(api, "GetTopic", admin_pb2.GetTopicRequest(topic="t"))).code is (
        Code.TOPIC_NOT_EXIST
    )


async def test_groups_are_put_listed_and_deleted(api: Api) -> None:
    config = admin_pb2.GroupConfig(
        consumer_group="g",
        consume_enable=True,
        retry_queue_count=1,
        retry_max_times=2,
        retry_delays_ms=[100, 200],
        consume_timeout_minutes=15,
        attributes={"team": "blue"},
    )
    assert (await api("PutGroup", admin_pb2.PutGroupRequest(group=config))).created
    get = admin_pb2.GetGroupRequest(consumer_group="g")
    assert (await api("GetGroup", get)).group == config
    listed = await api("ListGroups", admin_pb2.ListGroupsRequest())
    assert [one.consumer_group for one in listed.groups] == ["g"]
    everything = await api("ListGroups", admin_pb2.ListGroupsRequest(include_system=True))
    assert "TOOLS_CONSUMER" in {one.consumer_group for one in everything.groups}
    delete = admin_pb2.DeleteGroupRequest(consumer_group="g", remove_offsets=True)
    assert [(await api("DeleteGroup", delete)).deleted for _ in range(2)] == [True, False]
    assert (await refused(api, "GetGroup", get)).code is Code.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_the_status_counts_what_went_in_and_out(api: Api) -> None:
    await api.parts.group("g")
    await api("Send", send(message(), message(), message(properties={"DELAY": "18"})))
    subscription = message_pb2.Subscription(topic="t", expression="*")
    pull = message_pb2.PullRequest(topic="t", consumer_group="g", subscription=subscription)
    await api("Pull", pull)
    status = await api("GetBrokerStatus", admin_pb2.GetBrokerStatusRequest())
    assert (status.messages_in_total, status.messages_out_total) == (3, 2)
    assert status.delayed_messages == {"level 18 (7200 s)": 1}
    assert status.flushed_physical_offset == status.max_physical_offset > 0


# ---- errors ----


def test_an_error_of_the_domain_crosses_with_its_code_and_advice() -> None:
    failure = failure_of(MqError(Code.SYSTEM_BUSY, "later", retry_after_ms=100))
    assert failure is not None
    assert (failure.status, failure.message) == ("RESOURCE_EXHAUSTED", "later")
    told = error_from(failure.message, failure.trailers)
    assert told is not None
    assert (told.code, told.retryable, told.retry_after_ms) == (Code.SYSTEM_BUSY, True, 100)


def test_a_defect_crosses_without_details() -> None:
    assert failure_of(ZeroDivisionError("secret")) is None


async def test_leases_and_sets_of_leases_are_acknowledged_in_one_request(api: Api) -> None:
    await api.parts.group("g")
    await api("Send", send(*[message()] * 4))
    request = pop_pb2.PopRequest(consumer_group="g", topic="t", invisible_duration_ms=60_000)
    popped = await api("Pop", request)
    assert popped.message_count == 4
    queue = {"consumer_group": "g", "topic": "t", "lease_id": popped.lease_id}
    leases = [pop_pb2.Lease(**queue, queue_offset=offset) for offset in (7, 0)]
    sets = [
        pop_pb2.LeaseSet(**queue, queue_offsets=[1]),
        pop_pb2.LeaseSet(**queue, queue_offsets=[2, 8, 3, 9]),
    ]
    answer = await api("Ack", pop_pb2.AckRequest(leases=leases, lease_sets=sets))
    over = int(Code.INVALID_RECEIPT_HANDLE)
    assert [one.code for one in answer.results] == [over, 0]
    failures = [(one.lease_set, one.place, one.result.code) for one in answer.failures]
    assert failures == [(1, 1, over), (1, 3, over)]
    assert answer.lease_sets == 2, "a broker that does not know them says nothing of them"
    assert "message 8 of t queue 0" in answer.failures[0].result.message
    assert api.parts.tables.offsets.get("g", "t", 0) == 4


async def test_an_acknowledgement_of_too_much_is_refused_before_it_costs_anything(api: Api) -> None:
    lease_set = pop_pb2.LeaseSet(consumer_group="g", topic="t", queue_offsets=[0] * 200_001)
    with pytest.raises(MqError, match="400002 leases are too many") as caught:
        await api("Ack", pop_pb2.AckRequest(lease_sets=[lease_set] * 2))
    assert caught.value.code is Code.INVALID_PARAMETER
