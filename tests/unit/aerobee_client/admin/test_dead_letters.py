"""Reading and selecting dead letters, over a cluster in memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from aerobee.broker.v1 import admin_pb2, message_pb2

from aerobee_client import AsyncAdminClient, MqError
from aerobee_client.admin import dead_letters
from aerobee_client.admin.dead_letters import DeadLetters, Selection
from aerobee_client.errors import BrokerUnreachable
from aerobee_wire import properties as names
from aerobee_wire.backoff import Backoff
from aerobee_wire.status import Code
from support.client.dead_letters import DEAD, GROUP, PROPERTIES, add_dead_letter, read_all
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.clock.polling import until
from support.codes import raises_code


async def test_reading_ends_when_the_topic_was_created_again(
    brokers: list[MemoryBroker], cluster: MemoryCluster, admin: AsyncAdminClient
) -> None:
    for _ in range(3):
        add_dead_letter(brokers[0])
    letters = DeadLetters(admin, GROUP)
    assert len([message async for message in letters.read()]) == 3
    for _ in range(3):
        add_dead_letter(brokers[0])

    def sent_back(address: str, request: Any) -> message_pb2.PullResponse:
        assert request.queue_offset == 3
        return message_pb2.PullResponse(
            status=message_pb2.OFFSET_MOVED, next_begin_offset=1, max_offset=1
        )

    cluster.answers["Pull"] = sent_back
    assert [message async for message in letters.read()] == []


async def test_a_broker_that_restarts_in_the_middle_is_waited_for(
    brokers: list[MemoryBroker],
    cluster: MemoryCluster,
    admin: AsyncAdminClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Name servers forget a broker that has died."""
    monkeypatch.setattr(dead_letters, "Backoff", lambda *_: Backoff(0, 0))
    for _ in range(3):
        add_dead_letter(brokers[0])
    failures = [
        BrokerUnreachable("a:1", "it restarts"),
        MqError(Code.TOPIC_NOT_EXIST, "no broker has the topic"),
    ]

    def answer(address: str, request: Any) -> None:
        if failures:
            raise failures.pop(0)

    cluster.answers["Pull"] = answer
    assert len(await read_all(admin)) == 3
    assert failures == []


async def test_the_route_of_the_first_dead_letter_is_waited_for(
    brokers: list[MemoryBroker], cluster: MemoryCluster, admin: AsyncAdminClient
) -> None:
    """The broker has created the topic, and is about to register it."""
    add_dead_letter(brokers[0])
    failures = [MqError(Code.TOPIC_NOT_EXIST, f"no route of {DEAD}") for _ in range(3)]

    def answer(address: str, request: Any) -> None:
        if failures:
            raise failures.pop()

    cluster.answers["GetTopicRoute"] = answer
    assert len(await read_all(admin)) == 1
    assert failures == []


async def test_dead_letters_of_every_broker_are_read(
    brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    for count, broker in enumerate(brokers, 2):
        for n in range(count):
            add_dead_letter(broker, b"%d" % n)
    found = await read_all(admin)
    places = [(message.broker_name, message.queue_offset) for message in found]
    assert places == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]


async def test_several_pages_are_read(brokers: list[MemoryBroker], admin: AsyncAdminClient) -> None:
    for n in range(2_500):
        add_dead_letter(brokers[0], b"%d" % n)
    assert [message.body for message in await read_all(admin)] == [b"%d" % n for n in range(2_500)]


async def test_the_second_read_gives_what_was_added_since(
    brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    letters = DeadLetters(admin, GROUP)
    add_dead_letter(brokers[0], b"old")
    assert [message.body async for message in letters.read()] == [b"old"]
    add_dead_letter(brokers[0], b"new")
    add_dead_letter(brokers[1], b"other")
    assert [message.body async for message in letters.read()] == [b"new", b"other"]
    assert [message.body async for message in letters.read()] == []


async def test_what_is_added_during_a_read_is_left_for_the_next(
    cluster: MemoryCluster, brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    add_dead_letter(brokers[0], b"0")
    seen: list[bytes] = []
    letters = DeadLetters(admin, GROUP)

    def add_one_more(_: str, __: Any) -> None:
        add_dead_letter(brokers[0], b"%d" % (len(seen) + 1))

    cluster.answers["Pull"] = add_one_more
    for _ in range(3):
        seen += [message.body async for message in letters.read()]
    del cluster.answers["Pull"]
    seen += [message.body async for message in letters.read()]
    assert seen == [b"%d" % n for n in range(len(seen))]
    assert len(seen) == len(brokers[0].messages(DEAD))


async def test_the_next_page_is_read_while_the_caller_has_one(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letters, "page_of", partial(dead_letters.page_of, most=2))
    for n in range(5):
        add_dead_letter(brokers[0], b"%d" % n)
    reading = DeadLetters(admin, GROUP).read()
    assert (await anext(reading)).body == b"0"
    await until(lambda: len(cluster.requests("Pull")) == 2)
    assert [letter.body async for letter in reading] == [b"1", b"2", b"3", b"4"]
    assert len(cluster.requests("Pull")) == 3


async def test_what_fails_while_the_caller_has_a_page_is_raised_behind_it(
    brokers: list[MemoryBroker],
    cluster: MemoryCluster,
    admin: AsyncAdminClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letters, "page_of", partial(dead_letters.page_of, most=2))
    for n in range(5):
        add_dead_letter(brokers[0], b"%d" % n)

    def answer(_: str, request: Any) -> None:
        if request.queue_offset:
            raise MqError(Code.SYSTEM_ERROR, "broken", retryable=False)

    cluster.answers["Pull"] = answer
    reading = DeadLetters(admin, GROUP).read()
    assert [(await anext(reading)).body for _ in range(2)] == [b"0", b"1"]
    with raises_code(Code.SYSTEM_ERROR):
        await anext(reading)


async def test_reading_consumes_nothing(
    cluster: MemoryCluster, brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    add_dead_letter(brokers[0])
    await read_all(admin)
    pulls = cluster.requests("Pull")
    assert pulls and all(pull.browse and not pull.consumer_group for pull in pulls)
    assert not any(pull.HasField("commit_offset") for pull in pulls)
    assert not brokers[0].offsets


async def test_corrupted_and_expired_records_are_counted(
    cluster: MemoryCluster, brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    for n in range(3):
        add_dead_letter(brokers[0], b"%d" % n)

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
    assert [message.body async for message in letters.read()] == [b"2"]
    assert (letters.expired, letters.corrupted) == (1, 1)


async def test_a_group_without_dead_letters_has_no_queues(cluster: MemoryCluster) -> None:
    known = admin_pb2.GetGroupResponse(group=admin_pb2.GroupConfig(consumer_group="young"))
    cluster.answers["GetGroup"] = lambda *_: known
    async with AsyncAdminClient(NAMESRV, transport=cluster) as admin:
        assert await DeadLetters(admin, "young").queues() == []


async def test_an_unknown_group_is_an_error(cluster: MemoryCluster) -> None:
    cluster.answers["GetGroup"] = MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group")
    async with AsyncAdminClient(NAMESRV, transport=cluster) as admin:
        with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
            await DeadLetters(admin, "nobody").queues()


@pytest.mark.parametrize(
    ("selection", "selected"),
    [
        (Selection(), True),
        (Selection(ids=frozenset({PROPERTIES[names.UNIQUE_KEY]})), True),
        (Selection(ids=frozenset({"other"})), False),
        (Selection(tag="paid", reason="ValueError"), True),
        (Selection(tag="open"), False),
        (Selection(reason="KeyError"), False),
        (Selection(no_reason=True), False),
        (Selection(no_tag=True), False),
    ],
)
async def test_dead_letters_are_selected_by_id_tag_and_reason(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, selection: Selection, selected: bool
) -> None:
    add_dead_letter(brokers[0])
    (message,) = await read_all(admin)
    assert selection.selects(message) is selected


async def test_a_dead_letter_without_reason_and_tag_is_selected_by_that(
    brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    add_dead_letter(brokers[0], b"{}", **{names.TAGS: "", names.DLQ_REASON: ""})
    (message,) = await read_all(admin)
    assert Selection(no_reason=True, no_tag=True).selects(message)


async def test_a_dead_letter_is_selected_by_its_offset_message_id(
    brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    add_dead_letter(brokers[0])
    (message,) = await read_all(admin)
    assert Selection(ids=frozenset({message.offset_message_id})).selects(message)
