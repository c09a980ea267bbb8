"""Lite topics at a broker: subscribed, delivered in order, settled, kept through a restart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.status import Code, MqError
from support.broker.harness import Begin, BrokerHarness
from support.broker.pop_consumer import PopConsumer
from support.codes import raises_about, raises_code
from support.lite.broker_client import (
    ADD,
    GROUP,
    LEAVE,
    PARENT,
    REMOVE,
    REPLACE,
    LiteConsumer,
    bind,
    bodies,
    make_parent,
    send_lite,
)

INVALID = int(Code.INVALID_RECEIPT_HANDLE)


async def ready_broker(begin: Begin, **settings: Any) -> BrokerHarness:
    harness = await begin()
    await make_parent(harness)
    await bind(harness, **settings)
    return harness


async def test_a_client_gets_what_it_subscribes_to(begin: Begin) -> None:
    """And nothing else; while it is away messages wait, and come when it is back."""
    harness = await ready_broker(begin)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a")
    await send_lite(harness, "a", b"a0", b"a1")
    await send_lite(harness, "b", b"b0")
    got = await consumer.pop()
    assert [(each.lite_topic, each.body, each.attempt) for each in got] == [
        ("a", b"a0", 1),
        ("a", b"a1", 1),
    ]
    assert await consumer.ack(got) == [0, 0]
    await consumer.sync(REMOVE, "a")
    await send_lite(harness, "a", b"a2")
    assert await consumer.pop() == []
    await consumer.sync(ADD, "a", "b")
    assert sorted(bodies(await consumer.pop())) == [b"a2", b"b0"]


async def test_each_lite_topic_in_order_and_once(begin: Begin) -> None:
    harness = await ready_broker(begin)
    consumer = LiteConsumer(harness)
    names = ["a", "b", "c", "d"]
    await consumer.sync(ADD, *names)
    for number in range(50):
        for at, name in enumerate(names):
            await send_lite(harness, name, b"%d" % number, queue_id=at % 2)
    found: dict[str, list[bytes]] = {name: [] for name in names}
    while got := await consumer.pop():
        for each in got:
            found[each.lite_topic].append(each.body)
        assert set(await consumer.ack(got)) == {0}
    assert list(found.values()) == [[b"%d" % number for number in range(50)]] * 4


async def test_one_batch_of_a_lite_topic_at_a_time(begin: Begin) -> None:
    """Another lite topic goes on; the rest comes again from the first unsettled message, in place,
    with newer ones, and each with the number of its own deliveries."""
    harness = await ready_broker(begin)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a", "b")
    await send_lite(harness, "a", b"a0", b"a1", b"a2")
    held = await consumer.pop()
    await send_lite(harness, "a", b"a3")
    await send_lite(harness, "b", b"b0")
    assert bodies(await consumer.pop()) == [b"b0"]
    assert await consumer.ack(held[:1]) == [0]
    assert await consumer.pop() == []
    await asyncio.sleep(10)  # the loop's time: the invisible duration
    again = await consumer.pop(poll_ms=1_000)
    assert [(each.body, each.attempt) for each in again if each.lite_topic == "a"] == [
        (b"a1", 2),
        (b"a2", 2),
        (b"a3", 1),
    ]
    assert await consumer.ack(held[1:2]) == [INVALID]


async def test_a_receive_wakes_at_once(begin: Begin) -> None:
    harness = await ready_broker(begin)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a")
    waiting = asyncio.create_task(consumer.pop(poll_ms=20_000))
    await asyncio.sleep(1)
    before = asyncio.get_running_loop().time()
    await send_lite(harness, "a", b"a0")
    assert bodies(await waiting) == [b"a0"]
    assert asyncio.get_running_loop().time() == before


async def test_a_receive_wakes_when_the_batch_before_is_settled(begin: Begin) -> None:
    harness = await ready_broker(begin)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a")
    await send_lite(harness, "a", b"a0", b"a1")
    got = await consumer.pop(1)
    waiting = asyncio.create_task(consumer.pop(poll_ms=20_000))
    await asyncio.sleep(1)
    assert not waiting.done()
    await consumer.ack(got)
    assert bodies(await waiting) == [b"a1"]


async def test_two_clients_of_a_shared_group_share(begin: Begin) -> None:
    """Each message goes to one of them; another group has its own offset."""
    harness = await ready_broker(begin)
    await bind(harness, "others")
    consumers = [LiteConsumer(harness, "c1"), LiteConsumer(harness, "c2")]
    names = [f"n{number}" for number in range(20)]
    for consumer in consumers:
        await consumer.sync(ADD, *names)
    for name in names:
        await send_lite(harness, name, name.encode())
    first, second = await consumers[0].pop(), await consumers[1].pop()
    assert sorted(bodies(first) + bodies(second)) == sorted(name.encode() for name in names)
    assert first
    assert second
    other = LiteConsumer(harness, "c3", "others")
    await other.sync(ADD, *names, first=True)
    assert len(await other.pop()) == 20


async def test_the_newest_client_of_an_exclusive_group_takes_over(begin: Begin) -> None:
    """The former one is told, through its receive, and again at its next complete set."""
    harness = await ready_broker(begin, model="Exclusive")
    former, newest = LiteConsumer(harness, "c1"), LiteConsumer(harness, "c2")
    await former.sync(ADD, "a", "b")
    waiting = asyncio.create_task(former.pop_all(poll_ms=20_000))
    await asyncio.sleep(1)
    assert await newest.sync(ADD, "a") == []
    assert await waiting == ([], ["a"])
    await send_lite(harness, "a", b"a0")
    await send_lite(harness, "b", b"b0")
    assert bodies(await newest.pop()) == [b"a0"]
    assert bodies(await former.pop()) == [b"b0"]
    assert await former.sync(REPLACE, "a", "b") == ["a"]
    assert await newest.sync(ADD, "a") == []


async def test_a_client_that_was_evicted_before_it_received_is_notified_at_once(
    begin: Begin,
) -> None:
    harness = await ready_broker(begin, model="Exclusive")
    former, newest = LiteConsumer(harness, "c1"), LiteConsumer(harness, "c2")
    await former.sync(ADD, "a", "b")
    await newest.sync(ADD, "a")
    began = asyncio.get_running_loop().time()
    assert await former.pop_all(poll_ms=20_000) == ([], ["a"])
    assert asyncio.get_running_loop().time() - began < 1


async def test_messages_held_by_the_former_client_stay_with_it(begin: Begin) -> None:
    harness = await ready_broker(begin, model="Exclusive")
    former, newest = LiteConsumer(harness, "c1"), LiteConsumer(harness, "c2")
    await former.sync(ADD, "a")
    await send_lite(harness, "a", b"a0", b"a1")
    held = await former.pop(1)
    await newest.sync(ADD, "a")
    assert await newest.pop() == []
    assert await former.ack(held) == [0]
    assert bodies(await newest.pop()) == [b"a1"]


@pytest.mark.parametrize(
    ("begin_at", "fresh", "finished"),
    [
        ({}, range(10), ()),
        ({"first": True}, range(10), range(10)),
        ({"end": True}, (), ()),
        ({"number": 4}, range(4, 10), range(4, 10)),
        ({"number": 99}, (), ()),
        ({"tail": 3}, range(7, 10), range(7, 10)),
        ({"tail": 99}, range(10), range(10)),
        ({"stored_since_ms": 1}, range(10), range(10)),
        ({"stored_since_ms": 1 << 50}, (), ()),
    ],
    ids=str,
)
async def test_where_a_group_begins(
    begin: Begin, begin_at: dict[str, int], fresh: range, finished: range
) -> None:
    """Without an offset, and after it has consumed everything; then new messages follow."""
    harness = await ready_broker(begin)
    for number in range(10):
        await send_lite(harness, "a", b"%d" % number)
        await send_lite(harness, "other", b"x")
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a", **begin_at)
    got = await consumer.pop()
    assert bodies(got) == [b"%d" % number for number in fresh]
    await consumer.ack(got)
    done = LiteConsumer(harness, "c2", "done")
    await bind(harness, "done")
    await done.sync(ADD, "a")
    await done.ack(await done.pop())
    await done.sync(ADD, "a", **begin_at)
    got = await done.pop()
    assert bodies(got) == [b"%d" % number for number in finished]
    await done.ack(got)
    await send_lite(harness, "a", b"new")
    assert bodies(await consumer.pop()) == bodies(await done.pop()) == [b"new"]


async def test_positions_and_leases_outlive_a_restart(begin: Begin) -> None:
    """And the attempts of what was held; subscriptions are told anew."""
    harness = await ready_broker(begin)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a", "b")
    await send_lite(harness, "a", b"a0", b"a1", b"a2")
    await send_lite(harness, "b", b"b0")
    await consumer.ack([each for each in await consumer.pop() if each.body != b"a1"])
    harness = await begin()
    await send_lite(harness, "b", b"b1")
    consumer = LiteConsumer(harness)
    assert await consumer.pop() == []
    await consumer.sync(REPLACE, "a", "b")
    got = await consumer.pop()
    assert bodies(got) == [b"b1"]
    await consumer.ack(got)
    await asyncio.sleep(10)
    again = await consumer.pop(poll_ms=1_000)
    assert [(each.body, each.attempt) for each in again] == [(b"a1", 2), (b"a2", 2)]


async def test_suspended_messages_come_again_uncounted(begin: Begin) -> None:
    harness = await ready_broker(begin)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a", "b")
    await send_lite(harness, "a", b"a0", b"a1")
    for _ in range(2):
        got = await consumer.pop(poll_ms=5_000)
        assert [(each.body, each.attempt) for each in got] == [(b"a0", 1), (b"a1", 1)]
        assert await consumer.change(got, 1_000, uncounted=True) == [0, 0]
    got = await consumer.pop(poll_ms=5_000)
    await consumer.change(got, 1_000)
    again = await consumer.pop(poll_ms=5_000)
    assert [each.attempt for each in again] == [2, 2]


async def test_after_the_last_attempt_a_message_is_a_dead_letter(begin: Begin) -> None:
    """With the name of its lite topic; the next one goes on."""
    harness = await ready_broker(begin, retry_max_times=1)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a")
    await send_lite(harness, "a", b"bad", b"good")
    for attempt in (1, 2):
        got = await consumer.pop(1, poll_ms=20_000)
        assert [(each.body, each.attempt) for each in got] == [(b"bad", attempt)]
    assert bodies(await consumer.pop(poll_ms=20_000)) == [b"good"]
    (dead,) = await harness.read(f"%DLQ%{GROUP}")
    assert dead.body == b"bad"
    assert dead.properties["__LITE_TOPIC"] == "a"
    assert dead.properties["DLQ_ORIGIN_TOPIC"] == PARENT


async def test_a_named_attempt_to_receive_brings_the_same_again(begin: Begin) -> None:
    harness = await ready_broker(begin)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a", "b")
    await send_lite(harness, "a", b"a0")
    await send_lite(harness, "b", b"b0")
    first = await consumer.pop(attempt_id="one")
    again = await consumer.pop(attempt_id="one")
    assert again == first
    assert await consumer.ack(first) == [0, 0]
    assert await consumer.pop(attempt_id="one") == []


async def test_a_wildcard_group_gets_every_lite_topic(begin: Begin) -> None:
    harness = await ready_broker(begin, wildcard="false")
    await send_lite(harness, "old", b"0")
    consumer = LiteConsumer(harness)
    with raises_code(Code.ILLEGAL_OPERATION):
        await consumer.sync(ADD, "a")
    await consumer.sync(REPLACE)
    await send_lite(harness, "new", b"1")
    assert {(each.lite_topic, each.body) for each in await consumer.pop()} == {
        ("old", b"0"),
        ("new", b"1"),
    }


async def test_what_waits_for_a_client_that_left_goes_to_another(begin: Begin) -> None:
    harness = await ready_broker(begin)
    leaving, staying = LiteConsumer(harness, "c1"), LiteConsumer(harness, "c2")
    await leaving.sync(ADD, "a")
    await send_lite(harness, "a", b"a0")
    await staying.sync(ADD, "a")
    await leaving.sync(LEAVE)
    assert bodies(await staying.pop()) == [b"a0"]


async def test_a_client_that_lost_its_connection_gets_its_lite_topics_when_it_pops_again(
    begin: Begin,
) -> None:
    """It may come by another proxy, which does not know them. Its waiting pop ends at once."""
    harness = await ready_broker(begin)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a", "b")
    waiting = asyncio.create_task(consumer.pop(poll_ms=20_000))
    await asyncio.sleep(0.1)
    await consumer.sync(LEAVE, may_return=True)
    assert await waiting == [] and not len(harness.broker.lite.dispatch.subscriptions)
    await send_lite(harness, "a", b"a0")
    assert bodies(await consumer.pop()) == [b"a0"]
    await consumer.sync(LEAVE, may_return=True)
    await consumer.sync(REMOVE, "b")
    await send_lite(harness, "a", b"a1")
    await send_lite(harness, "b", b"b0")
    await asyncio.sleep(11)  # the lease on a0 ends
    assert bodies(await consumer.pop()) == [b"a0", b"a1"]


@pytest.mark.parametrize("how", ["for good", "too late", "with a complete set"])
async def test_a_client_that_left_gets_no_former_lite_topics(begin: Begin, how: str) -> None:
    harness = await ready_broker(begin)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a")
    await consumer.sync(LEAVE, may_return=True)
    if how == "for good":
        await consumer.sync(LEAVE)
    elif how == "with a complete set":
        await consumer.sync(REPLACE, "b")
    else:
        await asyncio.sleep(61)
    await send_lite(harness, "a", b"a0")
    assert await consumer.pop() == []


async def test_a_client_that_returns_takes_nothing_from_the_one_that_took_over(
    begin: Begin,
) -> None:
    harness = await ready_broker(begin, model="Exclusive")
    former, newest = LiteConsumer(harness, "c1"), LiteConsumer(harness, "c2")
    await former.sync(ADD, "a", "b")
    await former.sync(LEAVE, may_return=True)
    await newest.sync(ADD, "a")
    await send_lite(harness, "a", b"a0")
    await send_lite(harness, "b", b"b0")
    got, lost = await former.pop_all()
    assert (bodies(got), lost) == ([b"b0"], ["a"])
    assert bodies(await newest.pop()) == [b"a0"]


async def test_a_member_of_a_wildcard_group_returns(begin: Begin) -> None:
    harness = await ready_broker(begin, wildcard="true")
    consumer = LiteConsumer(harness)
    await consumer.sync(REPLACE)
    await consumer.sync(LEAVE, may_return=True)
    await send_lite(harness, "a", b"a0")
    assert bodies(await consumer.pop()) == [b"a0"]


async def test_what_waits_for_a_client_that_does_not_receive_goes_to_another(
    begin: Begin,
) -> None:
    harness = await ready_broker(begin)
    silent, other = LiteConsumer(harness, "c1"), LiteConsumer(harness, "c2")
    await silent.sync(ADD, "a")
    await send_lite(harness, "a", b"a0")
    await other.sync(ADD, "a")
    assert await other.pop() == []
    for _ in range(2):
        harness.broker.lite.state.maintain()
    assert bodies(await other.pop()) == [b"a0"]


async def test_quotas_are_counted(begin: Begin) -> None:
    harness = await ready_broker(begin, quota=2)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a", "b")
    with raises_code(Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED):
        await consumer.sync(ADD, "c")


async def test_a_bound_group_needs_a_parent_of_the_type_lite(begin: Begin) -> None:
    harness = await begin()
    with raises_code(Code.TOPIC_NOT_EXIST):
        await bind(harness)
    await harness.broker.topics.put(TopicConfig(PARENT, 1, 1))
    with raises_about(MqError, "lite.bind.topic"):
        await bind(harness)


async def test_a_topic_stays_of_the_type_that_it_was_created_with(begin: Begin) -> None:
    harness = await begin()
    await make_parent(harness)
    for attributes in ({}, {"message.type": "NORMAL"}):
        with raises_about(MqError, "message.type"):
            await harness.broker.topics.put(TopicConfig(PARENT, 2, 2, attributes=attributes))
    await harness.broker.topics.put(TopicConfig("plain", 1, 1))
    with pytest.raises(MqError):
        await harness.broker.topics.put(
            TopicConfig("plain", 1, 1, attributes={"message.type": "LITE"})
        )


async def test_subscriptions_of_a_group_that_is_not_bound_here_are_refused(begin: Begin) -> None:
    harness = await ready_broker(begin)
    with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
        await LiteConsumer(harness, group="unknown").sync(ADD, "a")
    await harness.group("plain")
    with raises_about(MqError, "topic"):
        await LiteConsumer(harness, group="plain").sync(ADD, "a")
    with raises_about(MqError, "lite_topic"):
        await LiteConsumer(harness).sync(ADD, "not legal")


async def test_a_parent_that_is_deleted_and_made_again_begins_anew(begin: Begin) -> None:
    harness = await ready_broker(begin)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a")
    await send_lite(harness, "a", b"old0", b"old1")
    await consumer.ack(await consumer.pop(1))
    await harness.broker.administration.delete_topic(PARENT)
    await make_parent(harness)
    await send_lite(harness, "a", b"new")
    assert bodies(await consumer.pop(poll_ms=100)) == [b"new"]
    harness = await begin()
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a")
    await asyncio.sleep(10)
    assert bodies(await consumer.pop(poll_ms=1_000)) == [b"new"]


async def test_a_deleted_group_begins_anew(begin: Begin) -> None:
    harness = await ready_broker(begin)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a")
    await send_lite(harness, "a", b"a0")
    await consumer.ack(await consumer.pop())
    await harness.broker.administration.delete_group(GROUP, remove_offsets=True)
    harness = await begin()
    await bind(harness)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a")
    assert bodies(await consumer.pop()) == [b"a0"]


async def test_an_idle_lite_topic_leaves_nothing_but_its_position(begin: Begin) -> None:
    harness = await ready_broker(begin)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a")
    await send_lite(harness, "a", b"a0")
    got = await consumer.pop()
    await consumer.ack(got)
    lite = harness.broker.lite
    assert len(list(lite.leases.table)) == 1
    for _ in range(2):
        await lite.state.save()
    assert list(lite.leases.table) == []
    assert await consumer.ack(got) == [0]  # repeated
    await send_lite(harness, "a", b"a1")
    assert bodies(await consumer.pop()) == [b"a1"]


async def test_a_message_without_a_lite_topic_is_in_none(begin: Begin) -> None:
    harness = await ready_broker(begin, wildcard="true")
    consumer = LiteConsumer(harness)
    await consumer.sync(REPLACE)
    await harness.send(PARENT, b"plain")
    await send_lite(harness, "a", b"a0")
    assert bodies(await consumer.pop()) == [b"a0"]
    assert await harness.bodies(PARENT) == [b"plain", b"a0"]


async def test_a_parent_is_still_filtered_by_tag(begin: Begin) -> None:
    """By a group that is not bound to it and pops the parent itself. Its units have no tags."""
    harness = await ready_broker(begin)
    await harness.group("plain")
    for tag in ("red", "blue"):
        properties = {"__LITE_TOPIC": "a", "TAGS": tag}
        await harness.send(PARENT, tag.encode(), properties=properties)
    plain = PopConsumer(harness, "plain", PARENT)
    assert [each.body for each in await plain.pop(wanted="red")] == [b"red"]
    pull = PullRequest(
        "plain",
        PARENT,
        0,
        0,
        filter=compile_filter("TAG", "red"),
    )
    result, _ = await harness.broker.consuming.pull.pull(pull)
    assert result.message_count == 2  # the client compares the tags
