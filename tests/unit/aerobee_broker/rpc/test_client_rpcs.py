"""ClientService over a broker without sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aerobee.broker.v1 import client_pb2, message_pb2

from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.access.caller import Caller
from aerobee_wire.access.policies import PUB, TOPIC, Policy
from aerobee_wire.access.signature import Signed
from aerobee_wire.access.users import User
from aerobee_wire.status import Code
from support.broker.handlers import FakeCall, Handlers
from support.codes import raises_code


def heartbeat(client_id: str = "c1", group: str = "g", expression: str = "*") -> Any:
    subscription = message_pb2.Subscription(topic="t", expression=expression, version=1)
    consumer = client_pb2.ConsumerData(
        consumer_group=group, consume_type=client_pb2.PUSH, subscriptions=[subscription]
    )
    return client_pb2.HeartbeatRequest(
        client_id=client_id, producer_groups=["p"], consumers=[consumer], language="python"
    )


async def test_a_heartbeat_creates_the_group_and_its_retry_topic(handlers: Handlers) -> None:
    await handlers("Heartbeat", heartbeat())
    assert handlers.harness.broker.groups.get("g").retry_max_times == 16
    assert handlers.harness.broker.topics.get("%RETRY%g").permission == 6
    members = client_pb2.ListGroupMembersRequest(consumer_group="g")
    assert list((await handlers("ListGroupMembers", members)).client_ids) == ["c1"]
    listed = (await handlers("ListClients", client_pb2.ListClientsRequest(group="g"))).clients
    assert [(client.client_id, client.address, client.language) for client in listed] == [
        ("c1", "10.0.0.7:4711", "python")
    ]
    consumer = listed[0].consumers[0]
    assert consumer.consume_type == client_pb2.PUSH
    assert consumer.message_model == client_pb2.CLUSTERING
    assert consumer.subscriptions[0].expression == "*"
    nobody = client_pb2.ListClientsRequest(group="nobody")
    assert not (await handlers("ListClients", nobody)).clients


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (heartbeat(client_id=""), Code.INVALID_PARAMETER),
        (heartbeat(expression="||"), Code.SUBSCRIPTION_PARSE_FAILED),
        (heartbeat(group="a b"), Code.INVALID_PARAMETER),
    ],
)
async def test_a_bad_heartbeat_registers_no_client(
    handlers: Handlers, request_: Any, code: Code
) -> None:
    assert (await handlers.refused("Heartbeat", request_)).code is code
    assert handlers.harness.broker.clients.all() == []


async def test_an_unknown_enum_value_is_refused(handlers: Handlers) -> None:
    request = heartbeat()
    request.consumers[0].consume_type = 77
    assert (await handlers.refused("Heartbeat", request)).code is Code.INVALID_PARAMETER


async def test_a_client_behind_a_proxy_is_listed_with_both_addresses(handlers: Handlers) -> None:
    request = heartbeat()
    request.address, request.proxy, request.version = "192.0.2.1:5123", "proxy-1:8081", "5.1.1"
    await handlers("Heartbeat", request)
    (found,) = (await handlers("ListClients", client_pb2.ListClientsRequest())).clients
    assert (found.address, found.proxy, found.version) == (
        "192.0.2.1:5123",
        "proxy-1:8081",
        "5.1.1",
    )
    assert found.since_timestamp_ms == found.last_update_timestamp_ms > 0


async def test_a_watch_begins_with_watching_and_carries_notices(handlers: Handlers) -> None:
    call = FakeCall()
    watch = asyncio.create_task(
        handlers("WatchClient", client_pb2.WatchClientRequest(client_id="c1"), call)
    )
    assert (await call.written.get()).WhichOneof("notice") == "watching"
    await handlers("Heartbeat", heartbeat())
    notice = await call.written.get()
    assert notice.group_members_changed.consumer_group == "g"
    watch.cancel()
    await asyncio.wait([watch])
    assert handlers.harness.broker.clients.all() == []


async def test_a_stopping_broker_ends_the_watches(handlers: Handlers) -> None:
    request = client_pb2.WatchClientRequest(client_id="c1")
    watch = asyncio.create_task(handlers("WatchClient", request))
    await asyncio.sleep(1)
    handlers.harness.broker.clients.close()
    assert await watch is None


async def test_an_unregistered_client_is_gone_at_once(handlers: Handlers) -> None:
    await handlers("Heartbeat", heartbeat())
    await handlers("UnregisterClient", client_pb2.UnregisterClientRequest(client_id="c1"))
    assert handlers.harness.broker.clients.all() == []


async def test_a_member_locks_queues_and_unlocks_them(handlers: Handlers) -> None:
    await handlers.harness.broker.topics.put(TopicConfig("t", 1, 1))
    for client_id in ("c1", "c2"):
        await handlers("Heartbeat", heartbeat(client_id))
    queues = [client_pb2.LockedQueue(topic="t", queue_id=queue_id) for queue_id in (0, 1)]
    mine = client_pb2.LockQueuesRequest(consumer_group="g", client_id="c1", queues=queues)
    answer = await handlers("LockQueues", mine)
    assert answer.max_reconsume_times == 16
    locked, absent = answer.locks
    assert (locked.client_id, absent.client_id, absent.epoch) == ("c1", "", 0)
    assert locked.epoch > 0
    other = client_pb2.LockQueuesRequest(consumer_group="g", client_id="c2", queues=queues[:1])
    assert [lock.epoch for lock in (await handlers("LockQueues", other)).locks] == [0]
    unlock = client_pb2.UnlockQueuesRequest(consumer_group="g", client_id="c1", queues=queues)
    await handlers("UnlockQueues", unlock)
    assert (await handlers("LockQueues", other)).locks[0].epoch > locked.epoch
    nobody = client_pb2.LockQueuesRequest(consumer_group="g", client_id="c9", queues=queues)
    assert (await handlers.refused("LockQueues", nobody)).code is Code.CONSUMER_NOT_ONLINE
    nowhere = client_pb2.LockQueuesRequest(consumer_group="none", client_id="c1")
    assert (await handlers.refused("LockQueues", nowhere)).code is (
        Code.SUBSCRIPTION_GROUP_NOT_EXIST
    )


async def test_a_reply_is_passed_on_along_the_stream_of_its_client(handlers: Handlers) -> None:
    request = message_pb2.SendReplyRequest(
        client_id="c1", correlation_id="7", body=b"x", properties={"a": "b"}
    )
    error = await handlers.refused("SendReply", request)
    assert (error.code, error.retryable) == (Code.CONSUMER_NOT_ONLINE, True)
    call = FakeCall()
    watch = asyncio.create_task(
        handlers("WatchClient", client_pb2.WatchClientRequest(client_id="c1"), call)
    )
    assert (await call.written.get()).WhichOneof("notice") == "watching"
    await handlers("SendReply", request)
    reply = (await call.written.get()).reply
    assert (reply.correlation_id, reply.body, dict(reply.properties)) == ("7", b"x", {"a": "b"})
    watch.cancel()
    await asyncio.wait([watch])
    await handlers("UnregisterClient", client_pb2.UnregisterClientRequest(client_id="c1"))
    assert (await handlers.refused("SendReply", request)).code is Code.CONSUMER_NOT_ONLINE
    for name in ("client_id", "correlation_id"):
        request.ClearField(name)
        assert (await handlers.refused("SendReply", request)).code is Code.INVALID_PARAMETER


def call_of(name: str) -> FakeCall:
    call = FakeCall()
    call.caller = Caller(None, Signed(User(name, (b"s3cret",), super=True), b"s3cret", ""))
    return call


async def test_client_of_another_user_cannot_be_replaced(handlers: Handlers) -> None:
    shop = call_of("shop")
    await handlers("Heartbeat", heartbeat(), shop)
    watched = client_pb2.WatchClientRequest(client_id="c1")
    watch = asyncio.create_task(handlers("WatchClient", watched, shop))
    assert (await shop.written.get()).WhichOneof("notice") == "watching"
    for name, request in (
        ("Heartbeat", heartbeat()),
        ("WatchClient", watched),
        ("UnregisterClient", client_pb2.UnregisterClientRequest(client_id="c1")),
    ):
        with raises_code(Code.NO_PERMISSION):
            await handlers(name, request, call_of("mallory"))
    assert not watch.done()
    (found,) = (await handlers("ListClients", client_pb2.ListClientsRequest())).clients
    assert (found.client_id, found.user) == ("c1", "shop")
    await handlers("Heartbeat", heartbeat(), call_of("shop"))
    watch.cancel()
    await asyncio.wait([watch])


async def test_topic_without_the_right_to_publish_does_not_end_a_client(handlers: Handlers) -> None:
    request = heartbeat()
    request.published_topics.extend(["own", "lost"])
    policy = Policy(TOPIC, "own", frozenset({PUB}), allow=True)
    call = FakeCall()
    user = User("shop", (b"s3cret",), policies=(policy,))
    call.caller = Caller(None, Signed(user, b"s3cret", ""))
    await handlers("Heartbeat", request, call)
    (found,) = (await handlers("ListClients", client_pb2.ListClientsRequest())).clients
    assert list(found.published_topics) == ["own"]
