"""Reading and sending again what a group could not consume, over a cluster in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aerobee.broker.v1 import admin_pb2, message_pb2

from aerobee_cli.commands.dlq import Choice
from aerobee_cli.messages import head, whole
from aerobee_client import AsyncAdminClient, AsyncProducer, MqError, ReceivedMessage
from aerobee_client.admin.dead_letters import DeadLetters
from aerobee_client.admin.descriptions import ClientDescription
from aerobee_client.admin.redrive import Outcome, Pace, reads_retries, redrive
from aerobee_client.admin.redrive_target import Target
from aerobee_wire import properties as names
from aerobee_wire import record
from aerobee_wire.status import Code
from support.client.memory_cluster import MemoryBroker, MemoryCluster

NAMESRV = "10.0.0.1:9876"
GROUP = "billing"
DEAD = "%DLQ%billing"
RETRY = "%RETRY%billing"

PROPERTIES = {
    names.UNIQUE_KEY: "0A0000010000000000000000000000AB",
    names.TAGS: "paid",
    names.KEYS: "order-7 customer-3",
    "currency": "EUR",
    names.RETRY_TOPIC: "orders",
    names.ORIGIN_MESSAGE_ID: "0A00000B00002A9F0000000000000040",
    names.DLQ_ORIGIN_TOPIC: "orders",
    names.DLQ_ORIGIN_MESSAGE_ID: "0A0000010000000000000000000000AB",
    names.DLQ_REASON: "ValueError",
    names.DLQ_REASON_DESCRIPTION: "no such order",
    names.DELAY: "3",
    names.REAL_TOPIC: RETRY,
}


@pytest.fixture
def brokers() -> list[MemoryBroker]:
    brokers = [MemoryBroker("a", "10.0.0.11:10911"), MemoryBroker("b", "10.0.0.12:10911")]
    for broker in brokers:
        broker.create(DEAD, 1)
        broker.create(RETRY, 1)
        broker.create("orders", 4)
    return brokers


@pytest.fixture
def cluster(brokers: list[MemoryBroker]) -> MemoryCluster:
    return MemoryCluster(*brokers)


@pytest.fixture
async def admin(cluster: MemoryCluster) -> AsyncIterator[AsyncAdminClient]:
    async with AsyncAdminClient(NAMESRV, transport=cluster) as admin:
        yield admin


@pytest.fixture
async def producer(cluster: MemoryCluster) -> AsyncIterator[AsyncProducer]:
    async with AsyncProducer(namesrv=NAMESRV, transport=cluster) as producer:
        yield producer


def bury(broker: MemoryBroker, body: bytes = b"{}", **changes: str) -> None:
    """Puts a dead letter there."""
    encoded = names.encode({**PROPERTIES, **changes})
    broker.append(DEAD, 0, body, encoded, flag=5, born_ms=1_000, reconsume_times=3)


async def letters_of(admin: AsyncAdminClient) -> list[ReceivedMessage]:
    return [letter async for letter in DeadLetters(admin, GROUP).read()]


async def run(
    admin: AsyncAdminClient, producer: AsyncProducer | None, target: Target = Target.RETRY
) -> list[Outcome]:
    letters = DeadLetters(admin, GROUP).read()
    return [outcome async for outcome in redrive(letters, producer, GROUP, target)]


def sent(broker: MemoryBroker, topic: str) -> list[record.Record]:
    return broker.messages(topic)


# ---- reading ----


async def test_a_topic_that_is_deleted_and_made_again_ends_the_reading(
    brokers: list[MemoryBroker], cluster: MemoryCluster, admin: AsyncAdminClient
) -> None:
    for _ in range(3):
        bury(brokers[0])
    letters = DeadLetters(admin, GROUP)
    assert len([letter async for letter in letters.read()]) == 3
    for _ in range(3):
        bury(brokers[0])

    def sent_back(address: str, request: Any) -> message_pb2.PullResponse:
        assert request.queue_offset == 3
        return message_pb2.PullResponse(
            status=message_pb2.OFFSET_MOVED, next_begin_offset=1, max_offset=1
        )

    cluster.answers["Pull"] = sent_back
    assert [letter async for letter in letters.read()] == []


async def test_dead_letters_of_every_broker_are_read(
    brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    for count, broker in enumerate(brokers, 2):
        for n in range(count):
            bury(broker, b"%d" % n)
    found = await letters_of(admin)
    assert [(letter.broker_name, letter.queue_offset) for letter in found] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
        ("b", 2),
    ]


async def test_more_than_one_page_is_read_completely(
    brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    for n in range(2_500):
        bury(brokers[0], b"%d" % n)
    assert [letter.body for letter in await letters_of(admin)] == [b"%d" % n for n in range(2_500)]


async def test_a_second_reading_gives_what_came_since(
    brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    letters = DeadLetters(admin, GROUP)
    bury(brokers[0], b"old")
    assert [letter.body async for letter in letters.read()] == [b"old"]
    bury(brokers[0], b"new")
    bury(brokers[1], b"other")
    assert [letter.body async for letter in letters.read()] == [b"new", b"other"]
    assert [letter.body async for letter in letters.read()] == []


async def test_what_comes_during_a_reading_is_left_for_the_next_one(
    cluster: MemoryCluster, brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    bury(brokers[0], b"0")
    seen: list[bytes] = []
    letters = DeadLetters(admin, GROUP)

    def bury_one_more(_: str, __: Any) -> None:
        bury(brokers[0], b"%d" % (len(seen) + 1))

    cluster.answers["Pull"] = bury_one_more
    for _ in range(3):
        seen += [letter.body async for letter in letters.read()]
    del cluster.answers["Pull"]
    seen += [letter.body async for letter in letters.read()]
    assert seen == [b"%d" % n for n in range(len(seen))]
    assert len(seen) == len(brokers[0].messages(DEAD))


async def test_reading_consumes_nothing(
    cluster: MemoryCluster, brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    bury(brokers[0])
    await letters_of(admin)
    pulls = cluster.requests("Pull")
    assert pulls and all(pull.browse and not pull.consumer_group for pull in pulls)
    assert not any(pull.HasField("commit_offset") for pull in pulls)
    assert not brokers[0].offsets


async def test_what_could_not_be_read_is_counted(
    cluster: MemoryCluster, brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    for n in range(3):
        bury(brokers[0], b"%d" % n)

    def first_is_gone_and_second_corrupt(_: str, request: Any) -> Any:
        if request.queue_offset == 0:
            return message_pb2.PullResponse(
                status=message_pb2.OFFSET_MOVED, next_begin_offset=1, min_offset=1, max_offset=3
            )
        if request.queue_offset == 1:
            return message_pb2.PullResponse(
                status=message_pb2.FOUND,
                next_begin_offset=3,
                min_offset=1,
                max_offset=3,
                records=brokers[0].queues[DEAD, 0][2],
                message_count=1,
                corrupted_count=1,
            )
        return None

    cluster.answers["Pull"] = first_is_gone_and_second_corrupt
    letters = DeadLetters(admin, GROUP)
    assert [letter.body async for letter in letters.read()] == [b"2"]
    assert (letters.expired, letters.corrupted) == (1, 1)


async def test_a_group_without_dead_letters_has_none(cluster: MemoryCluster) -> None:
    def known(_: str, __: Any) -> Any:
        config = admin_pb2.GroupConfig(consumer_group="young")
        return admin_pb2.GetGroupResponse(group=config)

    cluster.answers["GetGroup"] = known
    async with AsyncAdminClient(NAMESRV, transport=cluster) as admin:
        assert await DeadLetters(admin, "young").queues() == []


async def test_an_unknown_group_is_an_error(cluster: MemoryCluster) -> None:
    def unknown(_: str, request: Any) -> Any:
        raise MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, f"no group {request.consumer_group}")

    cluster.answers["GetGroup"] = unknown
    async with AsyncAdminClient(NAMESRV, transport=cluster) as admin:
        with pytest.raises(MqError) as raised:
            await DeadLetters(admin, "nobody").queues()
    assert raised.value.code is Code.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_what_is_shown_tells_where_a_dead_letter_comes_from_and_why_it_failed(
    brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    bury(brokers[1])
    (letter,) = await letters_of(admin)
    shown = head(letter)
    assert shown == {
        "message_id": PROPERTIES[names.UNIQUE_KEY],
        "offset_message_id": letter.offset_message_id,
        "topic": DEAD,
        "origin_topic": "orders",
        "origin_message_id": PROPERTIES[names.ORIGIN_MESSAGE_ID],
        "tag": "paid",
        "keys": ["order-7", "customer-3"],
        "reconsume_times": 3,
        "born_timestamp_ms": 1_000,
        "store_timestamp_ms": letter.store_timestamp_ms,
        "reason": "ValueError",
        "description": "no such order",
        "broker_name": "b",
        "queue_id": 0,
        "queue_offset": 0,
        "body_size": 2,
    }
    assert whole(letter)["body"] == "{}"
    assert whole(letter)["properties"]["currency"] == "EUR"


async def test_a_body_that_is_no_text_is_shown_in_base64(
    brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    bury(brokers[0], b"\xff\x00")
    (letter,) = await letters_of(admin)
    shown = whole(letter)
    assert shown["body_base64"] == "/wA=" and "body" not in shown


@pytest.mark.parametrize(
    ("choice", "taken"),
    [
        (Choice(), True),
        (Choice(ids=frozenset({PROPERTIES[names.UNIQUE_KEY]})), True),
        (Choice(ids=frozenset({"other"})), False),
        (Choice(tag="paid", reason="ValueError"), True),
        (Choice(tag="open"), False),
        (Choice(reason="KeyError"), False),
    ],
)
async def test_dead_letters_are_chosen_by_id_tag_and_reason(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, choice: Choice, taken: bool
) -> None:
    bury(brokers[0])
    (letter,) = await letters_of(admin)
    assert choice.takes(letter) is taken


async def test_a_dead_letter_is_chosen_by_its_own_place_too(
    brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    bury(brokers[0])
    (letter,) = await letters_of(admin)
    assert Choice(ids=frozenset({letter.offset_message_id})).takes(letter)


# ---- sending again ----


@pytest.mark.parametrize(
    ("connected", "expected"),
    [
        ([], True),
        ([{"orders": "*"}], False),
        ([{"orders": "*"}, {"orders": "*", RETRY: "*"}], True),
        ([{"orders": "*", "%RETRY%other": "*"}], False),
    ],
)
def test_consumers_of_the_official_sdks_read_no_retry_topic(
    connected: list[dict[str, str]], expected: bool
) -> None:
    clients = [
        ClientDescription("c", "", "", "", 0, (), (GROUP,), subscriptions, "a")
        for subscriptions in connected
    ]
    assert reads_retries(clients, GROUP) is expected


async def test_a_redriven_message_is_the_one_that_was_sent_at_first(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
) -> None:
    bury(brokers[0], b"the body")
    (outcome,) = await run(admin, producer)
    assert (outcome.status, outcome.topic, outcome.error) == ("sent", RETRY, "")
    (again,) = [*sent(brokers[0], RETRY), *sent(brokers[1], RETRY)]
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
    }


async def test_by_default_no_other_group_sees_it(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    bury(brokers[0])
    await run(admin, producer)
    assert not any(sent(broker, "orders") for broker in brokers)


async def test_it_can_go_to_the_origin_topic_instead(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    bury(brokers[0])
    await run(admin, producer, Target.ORIGIN)
    (again,) = [*sent(brokers[0], "orders"), *sent(brokers[1], "orders")]
    assert names.RETRY_TOPIC not in again.properties
    assert again.properties[names.UNIQUE_KEY] == PROPERTIES[names.UNIQUE_KEY]
    assert not any(sent(broker, RETRY) for broker in brokers)


async def test_the_dead_letter_stays_where_it_is(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    bury(brokers[0])
    await run(admin, producer)
    assert len(await letters_of(admin)) == 1


async def test_a_dry_run_sends_nothing(
    cluster: MemoryCluster, brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    bury(brokers[0])
    (outcome,) = await run(admin, None)
    assert (outcome.status, outcome.topic) == ("would send", RETRY)
    assert not cluster.requests("Send")


async def test_what_fails_is_told_with_its_reason_and_the_others_are_sent(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
) -> None:
    for body in (b"good", b"bad", b"good too"):
        bury(brokers[0], body, UNIQ_KEY=body.decode())

    def refuse(_: str, request: Any) -> None:
        if request.messages[0].body == b"bad":
            raise MqError(Code.MESSAGE_ILLEGAL, "not this one")

    cluster.answers["Send"] = refuse
    outcomes = await run(admin, producer)
    assert [(outcome.status, outcome.error) for outcome in outcomes] == [
        ("sent", ""),
        ("failed", "not this one"),
        ("sent", ""),
    ]
    stored = [message.body for broker in brokers for message in sent(broker, RETRY)]
    assert sorted(stored) == [b"good", b"good too"]


async def test_a_message_that_died_twice_is_sent_once(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    """Redriven before, and dead again; or dead-lettered twice while a broker died."""
    bury(brokers[0], b"x")
    bury(brokers[0], b"other", UNIQ_KEY="B")
    bury(brokers[1], b"x")
    outcomes = await run(admin, producer)
    assert [outcome.status for outcome in outcomes] == ["sent", "sent", "skipped"]
    assert "same message id" in outcomes[2].error
    bodies = [record.body for broker in brokers for record in sent(broker, RETRY)]
    assert sorted(bodies) == [b"other", b"x"]


async def test_many_are_sent_in_several_rounds(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    for n in range(150):
        bury(brokers[0], b"%d" % n, UNIQ_KEY=f"ID{n}")
    outcomes = await run(admin, producer)
    assert [outcome.status for outcome in outcomes] == ["sent"] * 150
    stored = {message.body for broker in brokers for message in sent(broker, RETRY)}
    assert stored == {b"%d" % n for n in range(150)}


def test_the_pace_keeps_a_rate() -> None:
    pace = Pace(10, 100.0)
    assert pace.next_wait(100.0) == 0
    assert pace.next_wait(100.0) == pytest.approx(0.1)
    assert pace.next_wait(100.15) == pytest.approx(0.05)


def test_the_pace_does_not_make_up_for_a_pause() -> None:
    pace = Pace(10, 100.0)
    assert pace.next_wait(105.0) == 0
    assert pace.next_wait(105.0) == pytest.approx(0.1)


def test_without_a_rate_nothing_waits() -> None:
    pace = Pace(None, 100.0)
    assert [pace.next_wait(100.0) for _ in range(3)] == [0, 0, 0]


def test_body_that_cannot_be_decompressed_does_not_hide_the_message() -> None:
    encoded = record.encode(
        topic=DEAD,
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        body=b"not compressed",
        properties=names.encode(PROPERTIES),
        flag=0,
        sys_flag=record.COMPRESSED,
        born_timestamp_ms=1,
        born_host=bytes(8),
        store_timestamp_ms=2,
        store_host=bytes(8),
    )
    message = ReceivedMessage(record.decode(encoded), "a")
    assert head(message)["body_size"] == len(b"not compressed")
    item = whole(message)
    assert item["body"] == "not compressed"
    assert "compressed" in item["body_problem"]
