"""Lite topics by the public protocol: a proxy over real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_broker.metadata.topics import TopicConfig
from aerobee_proxy.v2.status import Refused
from aerobee_wire.handles.receipt_handle import decode
from aerobee_wire.queues.choice import jump_hash
from support.lite.proxy_client import (
    GROUP,
    OF_GROUP,
    PARENT,
    TOPIC,
    LiteClient,
    lite_message,
    lite_settings,
    make_lite,
    reported,
    send,
)
from support.proxy.whole_cluster import WholeCluster

OK, CONFLICT = d.Code.OK, d.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
PLAIN = d.Resource(name="plain")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[WholeCluster]:
    cluster = await WholeCluster.begin(tmp_path)
    await make_lite(cluster)
    for broker in cluster.brokers.values():
        await broker.broker.topics.put(
            TopicConfig("plain", 1, 1, attributes={"message.type": "NORMAL"})
        )
    yield cluster
    await cluster.end()


async def test_sent_and_received(cluster: WholeCluster) -> None:
    """With its lite topic and its parent; the acknowledgement need not name the lite topic."""
    client = LiteClient(cluster)
    await client.open()
    assert await client.sync("PARTIAL_ADD", ["a"]) == OK
    sent = await send(cluster, lite_message("a", b"0"), lite_message("b", b"0"))
    assert sent.status.code == OK
    got = await client.receive()
    assert reported(got) == [("a", b"0", 1)]
    assert got[0].topic.name == PARENT
    assert got[0].system_properties.message_type == d.MessageType.LITE
    assert await client.ack(*got) == OK
    assert await client.receive() == []


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (lite_message("a", b"0"), OK),
        (lite_message("a" * 64, b"0"), OK),
        (lite_message("a" * 65, b"0"), d.Code.ILLEGAL_LITE_TOPIC),
        (lite_message("a$b", b"0"), d.Code.ILLEGAL_LITE_TOPIC),
        (lite_message(" ", b"0"), d.Code.ILLEGAL_LITE_TOPIC),
        (lite_message("", b"0"), CONFLICT),
        (lite_message("a", b"0", message_group="g"), CONFLICT),
    ],
)
async def test_what_a_parent_takes(cluster: WholeCluster, message: d.Message, code: int) -> None:
    assert (await send(cluster, message)).status.code == code


async def test_a_normal_topic_takes_no_lite_message(cluster: WholeCluster) -> None:
    message = lite_message("a", b"0")
    message.topic.CopyFrom(PLAIN)
    assert (await send(cluster, message)).status.code == CONFLICT


async def test_the_messages_of_a_lite_topic_lie_in_one_queue(cluster: WholeCluster) -> None:
    """Also those of one request, and whatever SDKs hash."""
    names = [f"n{number}" for number in range(30)]
    for _ in range(3):
        await send(cluster, *(lite_message(name, b"0") for name in names))
    places: dict[str, set[int]] = {}
    for queue_id in range(4):
        for record in await cluster.broker.read(PARENT, queue_id):
            places.setdefault(record.properties["__LITE_TOPIC"], set()).add(queue_id)
    assert sorted(places) == sorted(names)
    assert {len(queues) for queues in places.values()} == {1}
    assert len(set.union(*places.values())) > 1
    assert jump_hash(1, 4) in range(4)


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["a", "b"], OK),
        ([], OK),
        ([""], d.Code.ILLEGAL_LITE_TOPIC),
        (["a%b"], d.Code.ILLEGAL_LITE_TOPIC),
        (["x" * 65], d.Code.ILLEGAL_LITE_TOPIC),
    ],
)
async def test_names_of_a_subscription(cluster: WholeCluster, names: list[str], code: int) -> None:
    client = LiteClient(cluster)
    await client.open()
    assert await client.sync("PARTIAL_ADD", names) == code


async def test_subscriptions_that_are_refused(cluster: WholeCluster) -> None:
    client = LiteClient(cluster)
    await client.open()
    assert await client.sync("PARTIAL_ADD", ["a"], topic=PLAIN) == d.Code.ILLEGAL_TOPIC
    unknown = s.SyncLiteSubscriptionRequest(
        topic=TOPIC, group=d.Resource(name="unknown"), lite_topic_set=["a"]
    )
    (answer,) = await client.ask("SyncLiteSubscription", unknown)
    assert answer.status.code == d.Code.ILLEGAL_CONSUMER_GROUP
    assert await client.sync("PARTIAL_ADD", ["a"], offset=-1) == d.Code.ILLEGAL_OFFSET


async def test_quotas(tmp_path: Path) -> None:
    cluster = await WholeCluster.begin(tmp_path)
    await make_lite(cluster, **{"lite.sub.client.quota": "3"})
    client = LiteClient(cluster)
    settings = await client.open()
    assert settings.subscription.lite_subscription_quota == 3
    assert settings.subscription.max_lite_topic_size == 64
    assert settings.subscription.fifo
    assert await client.sync("PARTIAL_ADD", ["a", "b", "c"]) == OK
    exceeded = d.Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert await client.sync("PARTIAL_ADD", ["d"]) == exceeded
    assert await client.sync("COMPLETE_ADD", [f"n{n}" for n in range(400)]) == exceeded
    await cluster.end()


@pytest.mark.parametrize("kind", ["LITE_PUSH_CONSUMER", "LITE_SIMPLE_CONSUMER"])
async def test_both_kinds_of_lite_clients_are_served(cluster: WholeCluster, kind: str) -> None:
    client = LiteClient(cluster)
    await client.open(lite_settings(kind))
    await client.sync("PARTIAL_ADD", ["a"])
    await send(cluster, lite_message("a", b"0"))
    assert reported(await client.receive()) == [("a", b"0", 1)]


async def test_a_simple_consumer_gets_the_messages_of_every_broker(tmp_path: Path) -> None:
    """It names one; it waits for all."""
    cluster = await WholeCluster.begin(tmp_path, ("broker-a", "broker-b"))
    await make_lite(cluster)
    client = LiteClient(cluster)
    await client.open(lite_settings("LITE_SIMPLE_CONSUMER"))
    names = [f"n{number}" for number in range(8)]
    await client.sync("PARTIAL_ADD", names)
    receiving = asyncio.create_task(client.receive(poll_s=15))
    await asyncio.sleep(2)
    await send(cluster, *(lite_message(name, b"0") for name in names))
    got = await receiving
    while more := await client.receive(poll_s=1):
        got += more
    assert sorted(reported(got)) == [(name, b"0", 1) for name in names]
    handles = [decode(message.system_properties.receipt_handle) for message in got]
    assert {handle.broker_name for handle in handles} == {"broker-a", "broker-b"}
    assert await client.ack(*got) == OK
    await cluster.end()


@pytest.mark.parametrize("kind", ["PUSH_CONSUMER", "SIMPLE_CONSUMER"])
async def test_other_clients_of_a_bound_group_are_refused(cluster: WholeCluster, kind: str) -> None:
    with pytest.raises(Refused):
        await LiteClient(cluster).open(lite_settings(kind))


async def test_a_lite_client_of_another_topic_or_group_is_refused(cluster: WholeCluster) -> None:
    with pytest.raises(Refused):
        await LiteClient(cluster).open(lite_settings(topic=PLAIN))
    settings = lite_settings()
    settings.subscription.group.name = "unbound"
    await cluster.broker.group("unbound")
    with pytest.raises(Refused):
        await LiteClient(cluster).open(settings)


async def test_a_client_without_a_stream_is_refused(cluster: WholeCluster) -> None:
    client = LiteClient(cluster)
    await client.open()
    await client.cut()
    assert await client.receive() == []
    assert client.code == d.Code.BAD_REQUEST


async def test_a_proxy_that_has_not_seen_the_client_gives_it_its_lite_topics(
    cluster: WholeCluster,
) -> None:
    """And not the messages of the parent, from their begin."""
    client = LiteClient(cluster)
    await client.open()
    await client.sync("PARTIAL_ADD", ["a"])
    await send(cluster, lite_message("a", b"0"), lite_message("b", b"0"))
    got = await client.receive()
    assert await client.ack(*got) == OK
    elsewhere = LiteClient(cluster.another_proxy())
    assert await elsewhere.receive() == []
    await send(cluster, lite_message("a", b"1"), lite_message("b", b"1"))
    got = await elsewhere.receive()
    assert reported(got) == [("a", b"1", 1)]
    assert await elsewhere.ack(*got) == OK


async def test_a_receive_wakes_through_any_proxy(cluster: WholeCluster) -> None:
    client = LiteClient(cluster)
    await client.open()
    await client.sync("PARTIAL_ADD", ["a"])
    waiting = asyncio.create_task(client.receive(poll_s=20))
    await asyncio.sleep(1)
    before = asyncio.get_running_loop().time()
    await send(cluster.another_proxy(), lite_message("a", b"0"))
    assert reported(await waiting) == [("a", b"0", 1)]
    assert asyncio.get_running_loop().time() - before < 0.1


async def test_the_former_client_of_an_exclusive_lite_topic_is_notified(tmp_path: Path) -> None:
    """Also where it is a client of another proxy."""
    cluster = await WholeCluster.begin(tmp_path)
    await make_lite(cluster, **{"lite.sub.model": "Exclusive"})
    former, newest = LiteClient(cluster), LiteClient(cluster.another_proxy(), "c2")
    await former.open()
    await newest.open()
    await former.sync("PARTIAL_ADD", ["a", "b"])
    waiting = asyncio.create_task(former.receive(poll_s=20))
    await asyncio.sleep(1)
    await newest.sync("PARTIAL_ADD", ["a"])
    assert await waiting == []
    await asyncio.sleep(0.1)
    assert former.lost() == ["a"]
    assert await former.sync("COMPLETE_ADD", ["a", "b"]) == OK
    await asyncio.sleep(0.1)
    assert former.lost() == ["a", "a"]
    assert newest.lost() == []
    await cluster.end()


async def test_a_client_whose_stream_is_cut_leaves_its_messages_to_others(
    cluster: WholeCluster,
) -> None:
    gone, other = LiteClient(cluster), LiteClient(cluster, "c2")
    for client in (gone, other):
        await client.open()
    await gone.sync("PARTIAL_ADD", ["a"])
    await send(cluster, lite_message("a", b"0"))
    await other.sync("PARTIAL_ADD", ["a"])
    await gone.cut()
    assert reported(await other.receive()) == [("a", b"0", 1)]


@pytest.mark.parametrize("action", ["PARTIAL_ADD", "COMPLETE_ADD"])
async def test_a_client_that_connects_again_gets_its_messages_at_once(
    cluster: WholeCluster, action: str
) -> None:
    """SDKs send the names again only every 30 s."""
    client = LiteClient(cluster)
    await client.open()
    await client.sync(action, ["a"])
    await client.cut()
    assert not len(cluster.broker.broker.lite.dispatch.subscriptions)
    await client.open()
    await send(cluster, lite_message("a", b"0"))
    assert reported(await client.receive()) == [("a", b"0", 1)]


@pytest.mark.parametrize("late", [False, True])
async def test_a_client_that_connects_to_another_proxy_gets_its_messages_at_once(
    cluster: WholeCluster, late: bool
) -> None:
    """Also if the first proxy notices late that the connection is gone, while a receive waits."""
    client = LiteClient(cluster)
    await client.open()
    await client.sync("PARTIAL_ADD", ["a"])
    moved = LiteClient(cluster.another_proxy())
    if late:
        await moved.open()
        waiting = asyncio.create_task(moved.receive(poll_s=15))
        await asyncio.sleep(1)
        await client.cut()
        assert await waiting == []
    else:
        await client.cut()
        await moved.open()
    await send(cluster, lite_message("a", b"0"))
    assert reported(await moved.receive()) == [("a", b"0", 1)]


async def test_a_client_that_connects_again_before_brokers_know_stays(
    cluster: WholeCluster,
) -> None:
    client, again = LiteClient(cluster), LiteClient(cluster)
    await client.open()
    await client.sync("COMPLETE_ADD", ["a"])
    session = cluster.proxy.sessions.get("c1")
    assert session is not None
    async with session.lite_topics.turn:  # a change of the client is on its way to brokers
        await client.cut()
        await again.open()
    await asyncio.sleep(0.1)
    await send(cluster, lite_message("a", b"0"))
    assert reported(await again.receive()) == [("a", b"0", 1)]


async def test_the_clients_of_a_proxy_that_stops_keep_their_subscriptions(
    cluster: WholeCluster,
) -> None:
    client = LiteClient(cluster)
    await client.open()
    await client.sync("PARTIAL_ADD", ["a"])
    cluster.proxy.telemetry.close()
    await asyncio.sleep(0.1)
    await send(cluster, lite_message("a", b"0"))
    assert reported(await LiteClient(cluster.another_proxy()).receive()) == [("a", b"0", 1)]


async def test_a_client_that_terminates_is_gone(cluster: WholeCluster) -> None:
    client = LiteClient(cluster)
    await client.open()
    await client.sync("PARTIAL_ADD", ["a"])
    subscriptions = cluster.broker.broker.lite.dispatch.subscriptions
    assert len(subscriptions) == 1
    await client.ask("NotifyClientTermination", s.NotifyClientTerminationRequest(group=OF_GROUP))
    await asyncio.sleep(0.1)
    assert len(subscriptions) == 0


async def test_leases_are_renewed_while_the_client_lives(cluster: WholeCluster) -> None:
    client = LiteClient(cluster)
    await client.open()
    await client.sync("PARTIAL_ADD", ["a"])
    await send(cluster, lite_message("a", b"0"))
    got = await client.receive(auto_renew=True)
    renewing = asyncio.create_task(cluster.proxy.lease_renewal.run())
    await asyncio.sleep(75)
    renewing.cancel()
    assert await client.receive() == []
    assert await client.ack(*got) == OK


async def test_who_settles_nothing_gets_no_more(cluster: WholeCluster) -> None:
    """More than 100 messages that are renewed for one client."""
    client = LiteClient(cluster)
    await client.open()
    names = [f"n{number}" for number in range(12)]
    await client.sync("PARTIAL_ADD", names)
    for number in range(12):
        await send(cluster, *(lite_message(name, b"%d" % number) for name in names))
    held = []
    while got := await client.receive(auto_renew=True, count=32):
        held += got
        assert len(held) < 144
    assert client.code == d.Code.FORBIDDEN
    assert 100 < len(held) <= 132
    assert await client.ack(*held) == OK
    assert await client.receive(auto_renew=True)


async def test_redelivery_begins_with_the_first_that_was_not_acknowledged(
    cluster: WholeCluster,
) -> None:
    """With what came since, each with its own attempt; other lite topics go on meanwhile."""
    client = LiteClient(cluster)
    await client.open()
    await client.sync("PARTIAL_ADD", ["a", "b"])
    await send(cluster, *(lite_message("a", body) for body in (b"0", b"1", b"2")))
    held = await client.receive()
    await send(cluster, lite_message("a", b"3"), lite_message("b", b"0"))
    other = await client.receive()
    assert reported(other) == [("b", b"0", 1)]
    assert await client.ack(held[0], *other) == OK
    again = await client.receive(poll_s=15)
    assert reported(again) == [("a", b"1", 2), ("a", b"2", 2), ("a", b"3", 1)]
    ids = [message.system_properties.message_id for message in (*held, *again)]
    assert ids == ["ID-a-0", "ID-a-1", "ID-a-2", "ID-a-1", "ID-a-2", "ID-a-3"]


async def test_a_suspended_batch_comes_again_whole_and_uncounted(cluster: WholeCluster) -> None:
    """Another change of the invisible duration counts."""
    client = LiteClient(cluster)
    await client.open()
    await client.sync("PARTIAL_ADD", ["a"])
    await send(cluster, lite_message("a", b"0"), lite_message("a", b"1"))
    for suspend, attempt in ((True, 1), (True, 1), (False, 1), (False, 2)):
        batch = await client.receive(poll_s=5)
        assert reported(batch) == [("a", b"0", attempt), ("a", b"1", attempt)]
        for message in batch[:1] if suspend else batch:
            assert await client.change(message, seconds=1, suspend=suspend) == OK


async def test_the_actions_on_a_subscription(cluster: WholeCluster) -> None:
    client, other = LiteClient(cluster), LiteClient(cluster, "c2")
    for each in (client, other):
        await each.open()
    assert await client.sync("COMPLETE_ADD", ["a", "b"]) == OK
    assert await client.sync("COMPLETE_ADD", ["b", "c"]) == OK
    assert await client.sync("PARTIAL_REMOVE", ["b", "unknown"]) == OK
    await send(cluster, *(lite_message(name, b"0") for name in "abc"))
    assert reported(await client.receive()) == [("c", b"0", 1)]
    assert await client.sync("COMPLETE_REMOVE") == OK
    await send(cluster, lite_message("c", b"1"))
    assert await client.receive() == []
    assert await other.sync("COMPLETE_ADD", ["c"]) == OK
    assert reported(await other.receive(poll_s=15)) == [("c", b"0", 2), ("c", b"1", 1)]


async def test_a_wildcard_group_gets_every_lite_topic(tmp_path: Path) -> None:
    cluster = await WholeCluster.begin(tmp_path)
    await make_lite(cluster, **{"lite.sub.wildcard": "true"})
    client = LiteClient(cluster)
    await client.open()
    assert await client.sync("PARTIAL_ADD", ["a"]) == d.Code.BAD_REQUEST
    assert await client.sync("COMPLETE_ADD") == OK
    await send(cluster, *(lite_message(name, b"0") for name in "abc"))
    assert sorted(reported(await client.receive())) == [(name, b"0", 1) for name in "abc"]
    await cluster.end()


async def test_a_message_that_is_given_up_is_a_dead_letter(cluster: WholeCluster) -> None:
    client = LiteClient(cluster)
    await client.open()
    await client.sync("PARTIAL_ADD", ["a"])
    await send(cluster, lite_message("a", b"0"), lite_message("a", b"1"))
    got = await client.receive(count=1)
    request = s.ForwardMessageToDeadLetterQueueRequest(
        group=OF_GROUP,
        topic=TOPIC,
        receipt_handle=got[0].system_properties.receipt_handle,
        message_id=got[0].system_properties.message_id,
        delivery_attempt=1,
        max_delivery_attempts=2,
    )
    (answer,) = await client.ask("ForwardMessageToDeadLetterQueue", request)
    assert answer.status.code == OK
    assert reported(await client.receive(poll_s=1)) == [("a", b"1", 1)]
    (dead,) = await cluster.broker.read(f"%DLQ%{GROUP}")
    assert (dead.body, dead.properties["__LITE_TOPIC"]) == (b"0", "a")


async def test_one_assignment_for_each_broker(cluster: WholeCluster) -> None:
    client = LiteClient(cluster)
    endpoints = d.Endpoints(addresses=[d.Address(host="127.0.0.1", port=8081)])
    request = s.QueryAssignmentRequest(topic=TOPIC, group=OF_GROUP, endpoints=endpoints)
    (answer,) = await client.ask("QueryAssignment", request)
    assert [each.message_queue.id for each in answer.assignments] == [-1]
    (route,) = await client.ask("QueryRoute", s.QueryRouteRequest(topic=TOPIC, endpoints=endpoints))
    types = {tuple(queue.accept_message_types) for queue in route.message_queues}
    assert types == {(d.MessageType.LITE,)}


async def test_ten_thousand_lite_topics_of_one_client(cluster: WholeCluster) -> None:
    """One message each: every one is delivered, and once."""
    client = LiteClient(cluster)
    for broker in cluster.brokers.values():
        bound = {"lite.bind.topic": PARENT, "lite.sub.client.quota": "-1"}
        await broker.group(GROUP, attributes=bound)
    await client.open()
    names = [f"device-{number}" for number in range(10_000)]
    await client.sync("COMPLETE_ADD", names)
    for first in range(0, len(names), 500):
        await send(cluster, *(lite_message(name, b"0") for name in names[first : first + 500]))
    found: list[str] = []
    while got := await client.receive():
        found += [message.system_properties.lite_topic for message in got]
        assert await client.ack(*got) == OK
    assert sorted(found) == sorted(names)
