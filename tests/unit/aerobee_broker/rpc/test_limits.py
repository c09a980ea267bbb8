"""Calls beyond a limit of the broker fail with a code, the option, and the command that helps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aerobee.broker.v1 import admin_pb2, client_pb2, message_pb2, pop_pb2

from aerobee_broker.registry.creations import Creations
from aerobee_wire.status import Code, MqError
from support.broker.handlers import Handlers
from support.broker.harness import Begin
from support.clock.manual_clock import ManualClock


def send(topic: str, **properties: str) -> message_pb2.SendRequest:
    message = message_pb2.Message(topic=topic, queue_id=0, body=b"x", properties=properties)
    return message_pb2.SendRequest(messages=[message])


def assert_refused(error: MqError, option: str, code: Code = Code.FLOW_CONTROL) -> None:
    assert (error.code, error.about, error.retryable) == (code, option, True)
    assert option in error.message


async def test_topics_are_limited_and_existing_ones_are_served(begin: Begin) -> None:
    harness = await begin()
    limit = len(harness.broker.topics.table) + 1
    handlers = Handlers(await begin(max_topics=limit))
    await handlers("Send", send("first"))
    refused = await handlers.refused("Send", send("second"))
    assert_refused(refused, "maxTopics")
    assert "aerobee topic delete" in refused.message
    topic = admin_pb2.PutTopicRequest(
        topic={"topic": "second", "read_queue_count": 1, "write_queue_count": 1, "permission": 6}
    )
    assert_refused(await handlers.refused("PutTopic", topic), "maxTopics")
    await handlers("Send", send("first"))


async def test_groups_are_limited(begin: Begin) -> None:
    harness = await begin()
    handlers = Handlers(await begin(max_groups=len(harness.broker.groups.table) + 1))

    def heartbeat(group: str) -> Any:
        consumer = {"consumer_group": group, "subscriptions": [{"topic": "t", "expression": "*"}]}
        return client_pb2.HeartbeatRequest(client_id="c", consumers=[consumer])

    await handlers("Heartbeat", heartbeat("first"))
    refused = await handlers.refused("Heartbeat", heartbeat("second"))
    assert_refused(refused, "maxGroups")
    assert "aerobee group delete" in refused.message
    await handlers("Heartbeat", heartbeat("first"))


async def test_open_transactions_are_limited(begin: Begin) -> None:
    handlers = Handlers(await begin(max_open_transactions=1))
    half = {"TRAN_MSG": "true", "PGROUP": "p"}
    await handlers("Send", send("t", **half))
    assert_refused(await handlers.refused("Send", send("t", **half)), "maxOpenTransactions")
    await handlers("Send", send("t"))


async def test_waiting_receives_of_one_client_are_limited(begin: Begin) -> None:
    handlers = Handlers(await begin(max_polls_per_client=2))
    topic = {"topic": "t", "read_queue_count": 1, "write_queue_count": 1, "permission": 6}
    await handlers("PutTopic", admin_pb2.PutTopicRequest(topic=topic))

    def pop(client: str) -> pop_pb2.PopRequest:
        return pop_pb2.PopRequest(
            consumer_group="g",
            topic="t",
            max_messages=1,
            invisible_duration_ms=30_000,
            poll_duration_ms=20_000,
            client_id=client,
        )

    waiting = [asyncio.create_task(handlers("Pop", pop("a"))) for _ in range(2)]
    await asyncio.sleep(0.1)
    refused = await handlers.refused("Pop", pop("a"))
    assert_refused(refused, "maxPollsPerClient", Code.POLLING_FULL)
    other = asyncio.create_task(handlers("Pop", pop("b")))
    await asyncio.sleep(0.1)
    assert not other.done(), "another client may wait"
    await asyncio.gather(*waiting, other)


@pytest.mark.parametrize("creator", ["billing", "192.0.2.7:4000"])
def test_creations_of_one_caller_are_limited_in_a_minute(creator: str) -> None:
    clock = ManualClock()
    creations = Creations(clock, 2)
    creations.check(creator)
    creations.check(creator)
    with pytest.raises(MqError) as caught:
        creations.check(creator)
    assert_refused(caught.value, "maxAutoCreations")
    assert caught.value.retry_after_ms == 60_000
    creations.check("192.0.2.8:4000")
    clock.advance(60_000)
    creations.check(creator)


def test_creations_from_this_machine_and_of_the_broker_are_not_limited() -> None:
    creations = Creations(ManualClock(), 1)
    for _ in range(3):
        creations.check("127.0.0.1:4000")
        creations.check("")
