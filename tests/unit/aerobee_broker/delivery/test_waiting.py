"""What waits in a broker is listed: leases, open transactions, delayed messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aerobee.broker.v1 import admin_pb2 as pb

from aerobee_broker.delivery import waiting as waiting_module
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.status import Code
from support.broker.delayed import timed
from support.broker.handlers import Handlers
from support.broker.harness import BrokerHarness
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer
from support.broker.transactions import half


@pytest.fixture
async def handlers(harness: BrokerHarness) -> Handlers:
    await harness.broker.topics.put(TopicConfig(TOPIC, 1, 1))
    await harness.group(GROUP)
    return Handlers(harness)


# ---- leases ----


async def test_leases_are_listed_the_oldest_first(
    harness: BrokerHarness, handlers: Handlers
) -> None:
    consumer = PopConsumer(harness)
    await consumer.put(b"a", b"b", b"c", properties={"UNIQ_KEY": "U"})
    begin_ms = harness.clock.now_ms()
    await consumer.pop(1, client_id="c1")
    await asyncio.sleep(1)
    await consumer.pop(2, client_id="c2", invisible_ms=60_000)
    request = pb.ListLeasesRequest(consumer_group=GROUP)
    answer = await handlers("ListLeases", request)
    assert (answer.total, answer.lite_leases) == (3, 0)
    assert [(row.queue_offset, row.client_id) for row in answer.leases] == [
        (0, "c1"),
        (1, "c2"),
        (2, "c2"),
    ]
    first, second, _ = answer.leases
    assert (first.topic, first.message_id, first.attempt) == (TOPIC, "U", 1)
    assert first.since_timestamp_ms == begin_ms
    assert (first.expires_timestamp_ms, second.expires_timestamp_ms) == (
        begin_ms + 10_000,
        begin_ms + 61_000,
    )
    request.limit = 1
    answer = await handlers("ListLeases", request)
    assert (len(answer.leases), answer.total) == (1, 3)
    of_c2 = await handlers("ListLeases", pb.ListLeasesRequest(consumer_group=GROUP, client_id="c2"))
    assert of_c2.total == 2
    others = await handlers("ListLeases", pb.ListLeasesRequest(consumer_group=GROUP, topic="x"))
    assert others.total == 0


async def test_lease_is_found_by_its_message_behind_those_that_are_listed(
    harness: BrokerHarness, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_module, "MOST_ROWS", 2)
    consumer = PopConsumer(harness)
    for message_id in "UVW":
        await consumer.put(b"a", properties={"UNIQ_KEY": message_id})
    await consumer.pop(3)
    request = pb.ListLeasesRequest(consumer_group=GROUP)
    assert [row.message_id for row in (await handlers("ListLeases", request)).leases] == ["U", "V"]
    request.message_id = "W"
    answer = await handlers("ListLeases", request)
    assert ([row.message_id for row in answer.leases], answer.total) == (["W"], 1)
    request.message_id = "X"
    assert (await handlers("ListLeases", request)).total == 0


async def test_a_released_message_comes_again_with_the_same_attempt(
    harness: BrokerHarness, handlers: Handlers
) -> None:
    consumer = PopConsumer(harness)
    await consumer.put(b"a")
    await consumer.pop(invisible_ms=3_600_000)
    assert await consumer.pop() == []
    (lease,) = (await handlers("ListLeases", pb.ListLeasesRequest(consumer_group=GROUP))).leases
    request = pb.ReleaseLeaseRequest(
        consumer_group=GROUP,
        topic=lease.topic,
        queue_id=lease.queue_id,
        queue_offset=lease.queue_offset,
        lease_id=lease.lease_id,
    )
    await handlers("ReleaseLease", request)
    await asyncio.sleep(0.1)
    (again,) = await consumer.pop()
    assert (again.body, again.attempt) == (b"a", 1)
    # The lease that was seen has ended.
    assert (await handlers.refused("ReleaseLease", request)).code is Code.INVALID_RECEIPT_HANDLE


# ---- transactions ----


async def test_open_transactions_are_listed_the_oldest_first(
    harness: BrokerHarness, handlers: Handlers
) -> None:
    begin_ms = harness.clock.now_ms()
    await half(harness, b"a", UNIQ_KEY="U1")
    await asyncio.sleep(1)
    await half(harness, b"b", UNIQ_KEY="U2")
    answer = await handlers("ListTransactions", pb.ListTransactionsRequest())
    assert [row.transaction_id for row in answer.transactions] == ["U1", "U2"]
    assert [row.stored_timestamp_ms - begin_ms for row in answer.transactions] == [0, 1_000]
    assert (answer.transactions[0].topic, answer.transactions[0].checks) == ("t", 0)
    few = await handlers("ListTransactions", pb.ListTransactionsRequest(limit=1))
    assert ([row.transaction_id for row in few.transactions], few.total) == (["U1"], 2)
    assert not (await handlers("ListTransactions", pb.ListTransactionsRequest(topic="x"))).total


async def test_an_open_transaction_is_found_by_its_id(
    harness: BrokerHarness, handlers: Handlers
) -> None:
    for name in ("U1", "U2"):
        await half(harness, b"a", UNIQ_KEY=name)
    request = pb.ListTransactionsRequest(transaction_id="U2", limit=1)
    answer = await handlers("ListTransactions", request)
    assert ([row.transaction_id for row in answer.transactions], answer.total) == (["U2"], 1)
    request.transaction_id = "U3"
    assert not (await handlers("ListTransactions", request)).transactions


# ---- delayed messages ----


async def test_delayed_messages_are_listed_in_the_order_of_delivery(
    harness: BrokerHarness, handlers: Handlers
) -> None:
    now_ms = harness.clock.now_ms()
    await timed(harness, b"9 s", 9_000)
    await timed(harness, b"2 s", 2_000)
    await harness.send("u", b"level", properties={"DELAY": "2", "UNIQ_KEY": "U"})
    answer = await handlers("ListDelayed", pb.ListDelayedRequest())
    assert (answer.total, answer.examined) == (3, 3)
    assert [
        (row.topic, row.due_timestamp_ms - now_ms, row.delay, row.body_size)
        for row in answer.messages
    ] == [("t", 2_000, "timers", 3), ("u", 5_000, "level 2 (5 s)", 5), ("t", 9_000, "timers", 3)]
    assert answer.messages[1].message_id == "U"
    few = await handlers("ListDelayed", pb.ListDelayedRequest(limit=2))
    assert (len(few.messages), few.examined, few.total) == (2, 2, 3)
    of_u = await handlers("ListDelayed", pb.ListDelayedRequest(topic="u"))
    assert ([row.topic for row in of_u.messages], of_u.examined) == (["u"], 3)
    await asyncio.sleep(5.1)
    assert (await handlers("ListDelayed", pb.ListDelayedRequest())).total == 1


async def test_a_list_of_one_topic_says_what_it_examined(
    harness: BrokerHarness, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_module, "MOST_EXAMINED", 2)
    for _ in range(3):
        await timed(harness, b"x", 2_000)
    await harness.send("u", b"y", properties={"DELAY": "3"})
    answer = await handlers("ListDelayed", pb.ListDelayedRequest(topic="u"))
    assert (len(answer.messages), answer.examined, answer.total) == (0, 2, 4)


@pytest.mark.parametrize(
    ("name", "request_", "code"),
    [
        ("ListLeases", pb.ListLeasesRequest(consumer_group="x"), Code.SUBSCRIPTION_GROUP_NOT_EXIST),
        (
            "ListLeases",
            pb.ListLeasesRequest(consumer_group=GROUP, limit=-1),
            Code.INVALID_PARAMETER,
        ),
        ("ListTransactions", pb.ListTransactionsRequest(limit=1_001), Code.INVALID_PARAMETER),
        ("ListDelayed", pb.ListDelayedRequest(limit=1_001), Code.INVALID_PARAMETER),
    ],
)
async def test_a_bad_list_is_refused(
    handlers: Handlers, name: str, request_: Any, code: Code
) -> None:
    assert (await handlers.refused(name, request_)).code is code
