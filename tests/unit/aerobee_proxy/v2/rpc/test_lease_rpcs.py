"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue, in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aerobee.broker.v1 import pop_pb2 as pop
from aerobee.namesrv.v1.namesrv_pb2 import GetClusterInfoResponse
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from aerobee_proxy.proxy import Proxy
from aerobee_wire.handles.receipt_handle import decode
from aerobee_wire.rpcs import ACK, CHANGE_INVISIBLE_DURATION, DEAD_LETTER
from aerobee_wire.status import Code as BrokerCode
from support.proxy.harness import CLIENT_ID, FakeCall
from support.proxy.leasing import (
    GROUP,
    TOPIC,
    LeasingBroker,
    ack,
    all_handles,
    one_handle,
    receive,
    record,
)


@pytest.fixture
def broker() -> LeasingBroker:
    return LeasingBroker()


@pytest.fixture
def proxy(broker: LeasingBroker) -> Proxy:
    return broker.proxy()


async def test_ack_settles_the_lease_of_the_handle(broker: LeasingBroker, proxy: Proxy) -> None:
    handle = await one_handle(proxy, auto_renew=True)
    answer = await ack(proxy, handle)
    assert (answer.status.code, answer.entries[0].status.code) == (Code.OK, Code.OK)
    assert (answer.entries[0].message_id, answer.entries[0].receipt_handle) == ("m", handle)
    (asked,) = broker.transport.requests(ACK)
    (leases,) = asked.lease_sets
    assert (leases.topic, leases.queue_id, leases.queue_offsets, leases.lease_id) == (
        "orders", 2, [5], 77,
    )  # fmt: skip
    assert len(proxy.lease_renewal) == 1


async def test_ack_of_a_message_in_the_retry_topic(broker: LeasingBroker, proxy: Proxy) -> None:
    broker.records = [record(5, "%RETRY%g")]
    handle = await one_handle(proxy)
    assert (await ack(proxy, handle)).status.code == Code.OK
    assert broker.transport.requests(ACK)[0].lease_sets[0].topic == "%RETRY%g"


async def test_ack_by_a_broker_without_lease_sets_fails(
    broker: LeasingBroker, proxy: Proxy
) -> None:
    handle = await one_handle(proxy, auto_renew=True)
    broker.transport.answers["Ack"] = lambda _, request: pop.AckResponse()
    answer = await ack(proxy, handle)
    assert answer.entries[0].status.code == Code.VERSION_UNSUPPORTED
    assert len(proxy.lease_renewal) == 2, "the message is still the client's"
    assert proxy.counts.acknowledged == 0


async def test_failures_of_acks_that_share_a_batch(broker: LeasingBroker, proxy: Proxy) -> None:
    broker.records = [record(offset) for offset in range(5, 12)]
    handles = await all_handles(proxy, auto_renew=True)
    broker.ended = {5, 8, 11}
    first, second = await asyncio.gather(
        ack(proxy, handles[1], "made up", handles[0], handles[3], handles[2]),
        ack(proxy, *handles[4:]),
    )
    (asked,) = broker.transport.requests(ACK)
    offsets = [list(leases.queue_offsets) for leases in asked.lease_sets]
    assert offsets == [[6, 8, 7], [5], [9, 10, 11]], (
        "one set for handles that differ in the offset only"
    )
    good, bad = Code.OK, Code.INVALID_RECEIPT_HANDLE
    assert [entry.status.code for entry in first.entries] == [good, bad, bad, bad, good]
    assert [entry.receipt_handle for entry in second.entries] == handles[4:]
    assert [entry.status.code for entry in second.entries] == [good, good, bad]
    assert first.status.code == second.status.code == Code.MULTIPLE_RESULTS
    assert len(proxy.lease_renewal) == 0, "an ended lease is not renewed"
    assert proxy.counts.acknowledged == 4


async def test_cancelled_ack_keeps_leases_renewed(broker: LeasingBroker, proxy: Proxy) -> None:
    handles = await all_handles(proxy, auto_renew=True)
    asked = asyncio.create_task(ack(proxy, *handles))
    await asyncio.sleep(0)
    assert len(proxy.lease_renewal) == 0
    asked.cancel()
    await asyncio.wait([asked])
    assert asked.cancelled()
    assert len(proxy.lease_renewal) == 2


async def test_failed_ack_keeps_leases_renewed(broker: LeasingBroker, proxy: Proxy) -> None:
    handle = await one_handle(proxy, auto_renew=True)
    broker.transport.answers["Ack"] = None
    assert (await ack(proxy, handle)).status.code == Code.HA_NOT_AVAILABLE
    assert len(proxy.lease_renewal) == 2


@pytest.mark.parametrize("rpc", ["Ack", "ChangeInvisibleDuration", "DeadLetter"])
async def test_settlement_at_a_broker_that_is_away(
    broker: LeasingBroker, proxy: Proxy, rpc: str
) -> None:
    """Also where this proxy never knew the broker, which may have left before it started."""
    handle = await one_handle(proxy)
    broker.transport.answers[rpc] = None
    broker.transport.answers["GetClusterInfo"] = GetClusterInfoResponse()
    for asked in (proxy, broker.proxy()):
        if rpc == "Ack":
            answer = await ack(asked, handle)
            found, (entry,) = answer.status, answer.entries
            assert entry.status.message == found.message.removeprefix("HA_NOT_AVAILABLE: ")
        elif rpc == "ChangeInvisibleDuration":
            found = (await change(asked, handle, 10)).status
        else:
            request = s.ForwardMessageToDeadLetterQueueRequest(
                group=GROUP, topic=TOPIC, receipt_handle=handle
            )
            call = asked.rpcs.forward_message_to_dead_letter_queue(request, FakeCall())
            found = (await call).status
        assert found.code == Code.HA_NOT_AVAILABLE
        assert "broker broker-a is unavailable; the lease ends at 20" in found.message


async def change(proxy: Proxy, handle: str, seconds: int, **more: Any) -> Any:
    asked = s.ChangeInvisibleDurationRequest(
        group=GROUP, topic=TOPIC, receipt_handle=handle, message_id="m", **more
    )
    asked.invisible_duration.seconds = seconds
    return await proxy.rpcs.change_invisible_duration(asked, FakeCall())


async def test_changed_handle_is_of_the_same_lease(broker: LeasingBroker, proxy: Proxy) -> None:
    handle = await one_handle(proxy, auto_renew=True)
    broker.clock.advance(3_000)
    answer = await change(proxy, handle, 20)
    assert answer.status.code == Code.OK
    old, new = decode(handle), decode(answer.receipt_handle)
    assert (new.lease_id, new.queue_offset) == (old.lease_id, old.queue_offset)
    assert (new.pop_time_ms, new.invisible_duration_ms) == (broker.clock.now_ms(), 20_000)
    assert len(proxy.lease_renewal) == 1


def set_client_type(proxy: Proxy, kind: d.ClientType) -> None:
    proxy.sessions.touch(CLIENT_ID, 0).settings = d.Settings(
        client_type=kind, subscription=d.Subscription(group=GROUP)
    )


@pytest.mark.parametrize(
    ("kind", "suspend", "seconds", "waits_s"),
    [
        (d.ClientType.PUSH_CONSUMER, False, 0, 1),  # as one SDK asks, whatever its settings say
        (d.ClientType.PUSH_CONSUMER, False, 20, 20),
        (d.ClientType.PUSH_CONSUMER, True, 0, 0),  # not a failure
        (d.ClientType.SIMPLE_CONSUMER, False, 0, 0),
    ],
)
async def test_push_consumer_gets_at_least_the_retry_delay(
    proxy: Proxy, kind: d.ClientType, suspend: bool, seconds: int, waits_s: int
) -> None:
    handle = await one_handle(proxy, auto_renew=True)
    set_client_type(proxy, kind)
    answer = await change(proxy, handle, seconds, suspend=suspend)
    assert decode(answer.receipt_handle).invisible_duration_ms == waits_s * 1_000


@pytest.mark.parametrize("suspend", [False, True])
async def test_suspended_message_is_uncounted(
    broker: LeasingBroker, proxy: Proxy, suspend: bool
) -> None:
    await change(proxy, await one_handle(proxy), 0, suspend=suspend)
    (asked,) = broker.transport.requests(CHANGE_INVISIBLE_DURATION)
    assert asked.changes[0].uncounted is suspend


async def forward(proxy: Proxy, handle: str, message_id: str = "m") -> Any:
    asked = s.ForwardMessageToDeadLetterQueueRequest(
        group=GROUP, topic=TOPIC, receipt_handle=handle, message_id=message_id, delivery_attempt=3
    )
    return await proxy.rpcs.forward_message_to_dead_letter_queue(asked, FakeCall())


async def test_message_is_dead_lettered(broker: LeasingBroker, proxy: Proxy) -> None:
    assert (await forward(proxy, await one_handle(proxy))).status.code == Code.OK
    (asked,) = broker.transport.requests(DEAD_LETTER)
    assert asked.entries[0].lease.queue_offset == 5
    failure = asked.entries[0].failure
    assert failure.reason == "ForwardedByClient"
    assert "attempt 3" in failure.description and CLIENT_ID in failure.description


GIVEN = {
    "x-mq-client-id": CLIENT_ID,
    "x-aerobee-reason": "CardStolen",
    "x-aerobee-description": "at%20a%20shop%20in%20K%C3%B6ln",
}


async def test_dead_letter_has_the_reason_in_the_metadata(
    broker: LeasingBroker, proxy: Proxy
) -> None:
    asked = s.ForwardMessageToDeadLetterQueueRequest(
        group=GROUP, topic=TOPIC, receipt_handle=await one_handle(proxy)
    )
    await proxy.rpcs.forward_message_to_dead_letter_queue(asked, FakeCall(GIVEN))
    failure = broker.transport.requests(DEAD_LETTER)[0].entries[0].failure
    found = failure.reason, failure.description, failure.consumer
    assert found == ("CardStolen", "at a shop in Köln", CLIENT_ID)


@pytest.mark.parametrize("name", ["x-aerobee-reason", "x-aerobee-description"])
async def test_change_with_a_reason_in_the_metadata_gives_the_message_back(
    broker: LeasingBroker, proxy: Proxy, name: str
) -> None:
    """Of a simple consumer, whose changes only ask for more time otherwise."""
    metadata = {"x-mq-client-id": CLIENT_ID, name: GIVEN[name]}
    for given in (metadata, None):
        asked = s.ChangeInvisibleDurationRequest(
            group=GROUP, topic=TOPIC, receipt_handle=await one_handle(proxy)
        )
        asked.invisible_duration.seconds = 10
        await proxy.rpcs.change_invisible_duration(asked, FakeCall(given))
    first, second = (
        request.changes[0] for request in broker.transport.requests(CHANGE_INVISIBLE_DURATION)
    )
    assert first.rejected and not second.rejected
    assert first.invisible_duration_ms == 10_000
    assert "CardStolen" in first.failure.reason or "Köln" in first.failure.description
    assert first.failure.consumer == CLIENT_ID


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (BrokerCode.INVALID_RECEIPT_HANDLE, Code.INVALID_RECEIPT_HANDLE),
        (BrokerCode.QUERY_NOT_FOUND, Code.MESSAGE_NOT_FOUND),
    ],
)
async def test_message_that_cannot_be_dead_lettered(
    broker: LeasingBroker, proxy: Proxy, failure: BrokerCode, code: Code
) -> None:
    handle = await one_handle(proxy)
    broker.code = int(failure)
    assert (await forward(proxy, handle)).status.code == code


async def test_dead_letter_without_a_handle_finds_the_lease(
    broker: LeasingBroker, proxy: Proxy
) -> None:
    """The C++ SDK sends no receipt handle."""
    await receive(proxy, auto_renew=True)
    assert (await forward(proxy, "", "id6")).status.code == Code.OK
    (asked,) = broker.transport.requests(DEAD_LETTER)
    assert asked.entries[0].lease.queue_offset == 6
    assert len(proxy.lease_renewal) == 1
    for message_id in ("id6", "id7"):
        answer = await forward(proxy, "", message_id)
        assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
