"""Which lite topics a client gets: told to every broker, again where it is lost, and no longer than
the client lives."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aerobee.broker.v1.lite_pb2 import LITE_SYNC_ADD

from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.leasing.lite_subscription import SYNC_INTERVAL_S
from aerobee_client.lite_simple_consumer import AsyncLiteSimpleConsumer
from aerobee_client.options.lease_consumer import OffsetOption
from aerobee_wire.status import Code
from support.client.leasing import LEASE, NO_WAIT, TOPIC, bodies, seconds
from support.codes import raises_code
from support.lite.broker_client import GROUP, bind
from support.lite.classic_client import LiteLeasing

TEN = [b"%d" % number for number in range(10)]


async def received(consumer: AsyncLiteSimpleConsumer) -> list[LeasedMessage]:
    """What there is now, at every broker, acknowledged."""
    found: list[LeasedMessage] = []
    while messages := await consumer.receive(32, LEASE, NO_WAIT):
        await consumer.ack(messages)
        found += messages
    return found


async def test_a_client_gets_what_it_subscribes_to_from_every_broker(two: LiteLeasing) -> None:
    consumer = await two.lite_started("x", "y")
    assert two.held() == {"a": {"x", "y"}, "b": {"x", "y"}}
    await two.send_lite("x", b"x0", b"x1", to="a")
    await two.send_lite("y", b"y0", b"y1", to="b")
    await two.send_lite("z", b"z0", to="b")
    got = await received(consumer)
    assert {(one.lite_topic, one.body) for one in got} == {
        ("x", b"x0"),
        ("x", b"x1"),
        ("y", b"y0"),
        ("y", b"y1"),
    }
    await consumer.unsubscribe_lite("x")
    assert consumer.lite_topics == {"y"}
    await two.send_lite("x", b"x2", to="a")
    assert not await received(consumer)
    await consumer.subscribe_lite("x")
    assert bodies(await received(consumer)) == [b"x2"]


@pytest.mark.parametrize(
    ("option", "after"),
    [
        (OffsetOption.LAST_OFFSET, []),
        (OffsetOption.MIN_OFFSET, TEN),
        (OffsetOption.MAX_OFFSET, []),
        (OffsetOption.of_offset(4), TEN[4:]),
        (OffsetOption.of_offset(99), []),
        (OffsetOption.of_tail(3), TEN[7:]),
        (OffsetOption.of_timestamp(datetime.fromtimestamp(0, UTC)), TEN),
    ],
)
async def test_where_a_group_that_has_consumed_all_goes_on(
    leasing: LiteLeasing, option: OffsetOption, after: list[bytes]
) -> None:
    """L8 by the classic client."""
    await leasing.send_lite("x", *TEN)
    first = await leasing.lite_started("x")
    assert bodies(await received(first)) == TEN
    second = await leasing.lite_started()
    await second.subscribe_lite("x", offset_option=option)
    await first.unsubscribe_lite("x")
    assert bodies(await received(second)) == after


async def test_the_quota_refuses_and_changes_nothing(two: LiteLeasing) -> None:
    """L7 by the classic client."""
    consumer = await two.lite_started("1", "2", "3")
    with raises_code(Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED):
        await consumer.subscribe_lite("4", "5", "6")
    with raises_code(Code.INVALID_PARAMETER):
        await consumer.subscribe_lite("a name")
    await asyncio.sleep(1)
    kept = {"1", "2", "3"}
    assert consumer.lite_topics == kept and two.held() == {"a": kept, "b": kept}


async def test_a_subscription_that_one_broker_does_not_take_is_taken_back(
    two: LiteLeasing,
) -> None:
    consumer = await two.lite_started("1", request_timeout=seconds(2))
    two.transport.away.add("b")
    with raises_code(Code.BROKER_UNREACHABLE):
        await consumer.subscribe_lite("2")
    two.transport.away.clear()
    await asyncio.sleep(SYNC_INTERVAL_S)
    assert consumer.lite_topics == {"1"} and two.held() == {"a": {"1"}, "b": {"1"}}


async def test_a_subscription_that_is_cancelled_is_taken_back_at_once(
    two: LiteLeasing, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = await two.lite_started("1")
    call = two.transport.call

    async def hang(address: str, rpc: Any, request: Any, *, timeout_s: float) -> Any:
        if address == "b" and rpc.method == "SyncLiteTopics" and request.action == LITE_SYNC_ADD:
            await asyncio.sleep(timeout_s)
        return await call(address, rpc, request, timeout_s=timeout_s)

    monkeypatch.setattr(two.transport, "call", hang)
    subscribing = asyncio.create_task(consumer.subscribe_lite("2"))
    await asyncio.sleep(0.5)
    assert two.held() == {"a": {"1", "2"}, "b": {"1"}}
    subscribing.cancel()
    await asyncio.wait([subscribing])
    await asyncio.sleep(1)
    assert consumer.lite_topics == {"1"} and two.held() == {"a": {"1"}, "b": {"1"}}


async def test_the_newest_client_of_an_exclusive_group_takes_over(exclusive: LiteLeasing) -> None:
    """L6 by the classic client. The former is told, by whichever broker is first, once."""
    evicted: list[str] = []
    former = await exclusive.lite_started("x", "y", on_evicted=evicted.extend)
    waiting = asyncio.create_task(former.receive(32, LEASE, seconds(15)))
    await asyncio.sleep(3)
    newest = await exclusive.lite_started("x")
    await asyncio.sleep(1)
    assert evicted == ["x"] and former.lite_topics == {"y"}
    await exclusive.send_lite("x", b"x0", to="b")
    await exclusive.send_lite("y", b"y0", to="b")
    assert bodies(await waiting) == [b"y0"]
    assert bodies(await received(newest)) == [b"x0"]
    await asyncio.sleep(2 * SYNC_INTERVAL_S)
    assert former.lite_topics == {"y"} and newest.lite_topics == {"x"} and evicted == ["x"]


async def test_an_evicted_client_may_take_it_back_before_it_was_notified(
    exclusive: LiteLeasing,
) -> None:
    evicted: list[str] = []
    former = await exclusive.lite_started("x", on_evicted=evicted.extend)
    newest = await exclusive.lite_started("x")
    await former.subscribe_lite("x")
    await asyncio.sleep(2 * SYNC_INTERVAL_S)
    assert former.lite_topics == {"x"} and not newest.lite_topics and not evicted
    await exclusive.send_lite("x", b"x0")
    assert bodies(await former.receive(32, LEASE, seconds(5))) == [b"x0"]


async def test_a_receive_and_a_callback_of_the_user_that_fails(exclusive: LiteLeasing) -> None:
    """Its exception is logged, and ends nothing."""

    def fail(lite_topics: object) -> None:
        raise ValueError(lite_topics)

    former = await exclusive.lite_started("x", "y", on_evicted=fail)
    await exclusive.lite_started("x")
    await exclusive.send_lite("y", b"y0")
    assert bodies(await former.receive(32, LEASE, seconds(5))) == [b"y0"]
    assert former.lite_topics == {"y"}


async def test_brokers_forget_a_client_that_closes(two: LiteLeasing) -> None:
    """And what waited for it goes to another one at once."""
    leaving = two.lite_consumer()
    await leaving.start()
    await leaving.subscribe_lite("x")
    await two.send_lite("x", b"x0")
    staying = await two.lite_started("x")
    await leaving.close()
    assert not leaving.lite_topics
    assert bodies(await staying.receive(32, LEASE, NO_WAIT)) == [b"x0"]
    await staying.close()
    assert two.held() == {"a": set(), "b": set()}


async def test_brokers_forget_a_client_whose_process_dies(two: LiteLeasing) -> None:
    """The stream of notices ends, and nothing else tells them."""
    consumer = await two.lite_started("x")
    links = consumer._running()._instance._links.values()
    for link in links:
        link._task.cancel()
    await asyncio.sleep(0.1)
    assert two.held() == {"a": set(), "b": set()}


async def test_a_broker_that_restarted_is_notified_before_the_next_pop(two: LiteLeasing) -> None:
    consumer = await two.lite_started("x")
    client_id = consumer._running()._instance.client_id
    waiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(25)))
    await asyncio.sleep(1)
    two.transport.away.add("a")
    two.brokers["a"].broker.lite.syncing.leave(GROUP, client_id)  # ends its held call
    await asyncio.sleep(3)
    assert two.held() == {"a": set(), "b": {"x"}}
    two.transport.away.clear()
    await asyncio.sleep(3)
    assert two.held() == {"a": {"x"}, "b": {"x"}}
    await two.send_lite("x", b"x0", to="a")
    assert bodies(await waiting) == [b"x0"]


async def test_a_broker_that_lost_it_unseen_gets_it_with_the_next_synchronisation(
    leasing: LiteLeasing,
) -> None:
    consumer = await leasing.lite_started("x")
    client_id = consumer._running()._instance.client_id
    leasing.brokers["a"].broker.lite.syncing.leave(GROUP, client_id)
    assert leasing.held() == {"a": set()}
    await asyncio.sleep(SYNC_INTERVAL_S + 1)
    assert leasing.held() == {"a": {"x"}}


async def test_a_wildcard_group_gets_every_lite_topic(tmp_path: Path) -> None:
    """L18 by the classic client."""
    wildcard = await LiteLeasing.ready(tmp_path, wildcard="true")
    await wildcard.send_lite("x", b"x0")
    consumer = await wildcard.lite_started()
    await wildcard.send_lite("y", b"y0")
    assert sorted(bodies(await received(consumer))) == [b"x0", b"y0"]
    with raises_code(Code.ILLEGAL_OPERATION):
        await consumer.subscribe_lite("x")
    await wildcard.end()


async def test_what_does_not_fit_is_refused_at_the_start(leasing: LiteLeasing) -> None:
    await leasing.brokers["a"].group("unbound")
    with raises_code(Code.INVALID_PARAMETER):
        await leasing.lite_consumer("unbound").start()
    other = AsyncLiteSimpleConsumer(GROUP, TOPIC, namesrv="n:1", transport=leasing.transport)
    with raises_code(Code.INVALID_PARAMETER):
        await other.start()
    nowhere = AsyncLiteSimpleConsumer(GROUP, "nowhere", namesrv="n:1", transport=leasing.transport)
    with raises_code(Code.TOPIC_NOT_EXIST):
        await nowhere.start()
    with raises_code(Code.INVALID_PARAMETER):
        OffsetOption.of_tail(-1)


async def test_a_group_that_is_bound_to_another_parent_fails_its_receives(
    leasing: LiteLeasing,
) -> None:
    await bind(leasing.brokers["a"], "another")
    consumer = await leasing.lite_started("x")
    await leasing.brokers["a"].group(GROUP, attributes={})
    with raises_code(Code.INVALID_PARAMETER):
        await consumer.subscribe_lite("y")
