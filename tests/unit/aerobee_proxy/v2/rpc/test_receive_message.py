"""ReceiveMessage against a cluster in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aerobee.broker.v1.admin_pb2 import GetGroupResponse, GroupConfig
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from aerobee_proxy.proxy import Proxy
from aerobee_wire.rpcs import CHANGE_INVISIBLE_DURATION, POP
from aerobee_wire.status import Code as BrokerCode
from aerobee_wire.status import MqError
from support.proxy.harness import CLIENT_ID, FakeCall, route
from support.proxy.leasing import BrokenCall, LeasingBroker, ack, kinds, receive


@pytest.fixture
def broker() -> LeasingBroker:
    return LeasingBroker()


@pytest.fixture
def proxy(broker: LeasingBroker) -> Proxy:
    return broker.proxy()


async def test_stream_is_status_messages_and_time(proxy: Proxy) -> None:
    written = await receive(proxy)
    assert kinds(written) == ["status", "message", "message", "delivery_timestamp"]
    assert written[0].status.code == Code.OK
    first, second = (response.message.system_properties for response in written[1:3])
    assert (first.message_id, first.delivery_attempt) == ("id5", 1)
    assert (second.message_id, second.delivery_attempt) == ("id6", 2)


async def test_stream_without_messages(broker: LeasingBroker, proxy: Proxy) -> None:
    broker.records = []
    written = await receive(proxy)
    assert kinds(written) == ["status", "delivery_timestamp"]
    assert written[0].status.code == Code.MESSAGE_NOT_FOUND


async def test_status_of_a_broker_failure(broker: LeasingBroker, proxy: Proxy) -> None:
    broker.transport.answers["Pop"] = MqError(BrokerCode.POLLING_FULL, "because")
    written = await receive(proxy)
    assert kinds(written) == ["status", "delivery_timestamp"]
    assert written[0].status.code == Code.TOO_MANY_REQUESTS


async def test_refused_request_reaches_no_broker(broker: LeasingBroker, proxy: Proxy) -> None:
    written = await receive(proxy, group=d.Resource(name="a b"))
    assert kinds(written) == ["status", "delivery_timestamp"]
    assert written[0].status.code == Code.ILLEGAL_CONSUMER_GROUP
    assert not broker.transport.requests(POP)


async def test_pop_request(broker: LeasingBroker, proxy: Proxy) -> None:
    expression = d.FilterExpression(type=d.FilterType.SQL, expression="a > 1")
    await receive(proxy, batch_size=100, filter_expression=expression)
    (asked,) = broker.transport.requests(POP)
    assert (asked.consumer_group, asked.topic, asked.max_messages) == ("g", "orders", 32)
    assert (asked.invisible_duration_ms, asked.poll_duration_ms) == (15_000, 5_000)
    assert asked.subscription.expression == "a > 1"
    assert not asked.HasField("queue_id") and not asked.fifo


async def test_attempt_id_counts_for_fifo_groups_only(broker: LeasingBroker, proxy: Proxy) -> None:
    await receive(proxy, attempt_id="x")
    group = GroupConfig(consumer_group="o", consume_message_orderly=True)
    broker.transport.answers["GetGroup"] = GetGroupResponse(group=group)
    await receive(proxy, attempt_id="x", group=d.Resource(name="o"))
    concurrent, fifo = broker.transport.requests(POP)
    assert (concurrent.fifo, concurrent.attempt_id) == (False, "")
    assert (fifo.fifo, fifo.attempt_id) == (True, "x")


@pytest.mark.parametrize("reported", [None, False, True])
async def test_only_a_client_with_fifo_settings_gets_several_messages_of_a_message_group(
    broker: LeasingBroker, proxy: Proxy, reported: bool | None
) -> None:
    broker.routes["orders"] = route(message_type="FIFO")
    if reported is not None:
        proxy.sessions.touch(CLIENT_ID, 0).answer_fifo(reported, first_counts=True)
        proxy.sessions.touch(CLIENT_ID, 0).answer_fifo(not reported, first_counts=True)
    await receive(proxy, attempt_id="x")
    (asked,) = broker.transport.requests(POP)
    assert asked.fifo is bool(reported), "the first answer counts"
    assert (asked.attempt_id, asked.client_id) == ("x", CLIENT_ID)


async def test_only_leases_of_push_consumers_are_renewed(proxy: Proxy) -> None:
    await receive(proxy)
    assert len(proxy.lease_renewal) == 0
    await receive(proxy, auto_renew=True)
    assert len(proxy.lease_renewal) == 2


async def test_ack_before_the_last_message_is_written(proxy: Proxy) -> None:
    class AckingCall(FakeCall):
        async def write(self, message: Any) -> None:
            await super().write(message)
            handle = self.written[-1].message.system_properties.receipt_handle
            if handle:
                assert (await ack(proxy, handle)).status.code == Code.OK

    assert len(await receive(proxy, AckingCall(), auto_renew=True)) == 4
    assert len(proxy.lease_renewal) == 0


async def test_broken_stream_gives_messages_back_uncounted(
    broker: LeasingBroker, proxy: Proxy
) -> None:
    with pytest.raises(ConnectionError):
        await receive(proxy, BrokenCall(), auto_renew=True)
    for _ in range(5):  # turns of the loop: it goes on in the background
        await asyncio.sleep(0)
    (asked,) = broker.transport.requests(CHANGE_INVISIBLE_DURATION)
    assert [change.lease.queue_offset for change in asked.changes] == [5, 6]
    assert all(change.uncounted and not change.invisible_duration_ms for change in asked.changes)
    assert len(proxy.lease_renewal) == 0


async def test_closing_proxy_gives_back_first(broker: LeasingBroker, proxy: Proxy) -> None:
    with pytest.raises(ConnectionError):
        await receive(proxy, BrokenCall())
    await proxy.background.close()
    assert broker.transport.requests(CHANGE_INVISIBLE_DURATION)


async def test_closing_does_not_wait_for_a_hanging_broker(
    broker: LeasingBroker, proxy: Proxy
) -> None:
    with pytest.raises(ConnectionError):
        await receive(proxy, BrokenCall())
    broker.transport.gate.clear()
    await proxy.background.close()
