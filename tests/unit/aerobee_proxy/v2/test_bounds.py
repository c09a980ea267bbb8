"""What a proxy holds for its clients: answers without room are refused, clients that are gone are
forgotten.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from aerobee_chassis.rpc.in_flight import SMALL_ANSWER_BYTES, TooMuchInFlight
from aerobee_chassis.rpc.services import Method
from aerobee_proxy.app import DESCRIPTOR, busy_answer
from aerobee_proxy.proxy import Proxy
from aerobee_proxy.v2.sessions import EXPIRY_MS, Session
from aerobee_wire.rpcs import CHANGE_INVISIBLE_DURATION, POP
from support.proxy.harness import FakeCall, Requests
from support.proxy.leasing import LeasingBroker, kinds, receive, record

CLIENTS = 50
LEAST_FREE = 5 * 1024 * 1024  # enough for a receive to begin


@pytest.fixture
def broker() -> LeasingBroker:
    return LeasingBroker()


@pytest.fixture
def proxy(broker: LeasingBroker) -> Proxy:
    return broker.proxy()


async def test_a_receive_without_room_takes_no_messages(
    broker: LeasingBroker, proxy: Proxy
) -> None:
    proxy.in_flight.answering(proxy.in_flight.limit // 2)
    written = await receive(proxy)
    assert kinds(written) == ["status", "delivery_timestamp"]
    assert written[0].status.code == Code.TOO_MANY_REQUESTS
    assert not broker.transport.requests(POP)


async def test_a_receive_that_waited_for_room_gets_its_messages(proxy: Proxy) -> None:
    proxy.in_flight.answering(proxy.in_flight.limit // 2)
    receiving = asyncio.create_task(receive(proxy))
    await asyncio.sleep(1)
    proxy.in_flight.answered(proxy.in_flight.limit // 2)
    assert kinds(await receiving)[1] == "message"


async def test_messages_without_room_are_given_back_uncounted(
    broker: LeasingBroker, proxy: Proxy
) -> None:
    count = (LEAST_FREE + SMALL_ANSWER_BYTES) // len(record(0)) + 1
    broker.records = [record(offset) for offset in range(count)]
    proxy.in_flight.answering(proxy.in_flight.limit // 2 - LEAST_FREE)
    written = await receive(proxy, auto_renew=True)
    assert kinds(written) == ["status", "delivery_timestamp"]
    assert written[0].status.code == Code.TOO_MANY_REQUESTS
    await proxy.background.close()
    given_back = [
        change
        for request in broker.transport.requests(CHANGE_INVISIBLE_DURATION)
        for change in request.changes
    ]
    assert len(given_back) == count
    assert all(change.uncounted and not change.invisible_duration_ms for change in given_back)
    assert len(proxy.lease_renewal) == 0


@pytest.mark.parametrize("rpc", [rpc for rpc in DESCRIPTOR.methods if not rpc.client_streaming])
def test_every_rpc_says_in_its_response_that_too_much_is_in_flight(rpc: object) -> None:
    name = getattr(rpc, "name", "")
    answer: Any = busy_answer(
        Method(name, _never, object, server_streams=False, client_streams=False),
        TooMuchInFlight("the memory is used up"),
    )
    assert answer is not None and answer.DESCRIPTOR.name == f"{name}Response"
    assert answer.status.code == Code.TOO_MANY_REQUESTS
    assert "the memory is used up" in answer.status.message


async def _never(_request: object, _call: object) -> None:
    """`busy_answer` calls no handler."""


class Consumer:
    """A client with a telemetry stream, that has sent its settings and a heartbeat."""

    def __init__(self, proxy: Proxy, number: int) -> None:
        self._proxy = proxy
        self.requests = Requests()
        self._metadata = {"x-mq-client-id": f"gone{number}"}
        call = FakeCall(metadata=self._metadata)
        self.stream = asyncio.create_task(proxy.rpcs.telemetry(aiter(self.requests), call))
        entry = d.SubscriptionEntry(
            topic=d.Resource(name="orders"),
            expression=d.FilterExpression(type=d.FilterType.TAG, expression="*"),
        )
        self.requests.put(
            s.TelemetryCommand(
                settings=d.Settings(
                    client_type=d.ClientType.PUSH_CONSUMER,
                    subscription=d.Subscription(
                        group=d.Resource(name=f"g{number % 3}"), subscriptions=[entry]
                    ),
                )
            )
        )

    async def heartbeat(self) -> None:
        request = s.HeartbeatRequest(
            group=d.Resource(name="g0"), client_type=d.ClientType.PUSH_CONSUMER
        )
        answer = await self._proxy.rpcs.heartbeat(request, FakeCall(metadata=self._metadata))
        assert answer.status.code == Code.OK


@pytest.mark.parametrize("cleanly", [True, False])
async def test_nothing_is_kept_of_clients_that_are_gone(
    broker: LeasingBroker, proxy: Proxy, cleanly: bool
) -> None:
    consumers = [Consumer(proxy, number) for number in range(CLIENTS)]
    await asyncio.sleep(3)  # settings are answered twice
    for consumer in consumers:
        await consumer.heartbeat()
    for consumer in consumers:
        if cleanly:
            consumer.requests.end()
        else:
            consumer.stream.cancel()
    await asyncio.wait([consumer.stream for consumer in consumers])
    broker.clock.advance(EXPIRY_MS)
    proxy.expire_clients()
    assert len(proxy.sessions) == CLIENTS
    broker.clock.advance(1)
    proxy.expire_clients()
    await proxy.background.close()
    assert len(proxy.sessions) == 0
    assert not any(proxy.sessions.members(f"g{number}") for number in range(3))
    del consumer
    consumers.clear()
    gc.collect()
    kept = [each.client_id for each in gc.get_objects() if isinstance(each, Session)]
    assert not [client_id for client_id in kept if client_id.startswith("gone")]


async def test_receives_of_one_client_are_limited(broker: LeasingBroker) -> None:
    proxy = broker.proxy(max_polls_per_client=1)
    proxy.in_flight.answering(proxy.in_flight.limit // 2)
    first = asyncio.create_task(receive(proxy))  # waits for room
    await asyncio.sleep(0.1)
    refused = await receive(proxy)
    assert refused[0].status.code == Code.TOO_MANY_REQUESTS
    assert "maxPollsPerClient" in refused[0].status.message
    proxy.in_flight.answered(proxy.in_flight.limit // 2)
    assert kinds(await first)[1] == "message"
    assert kinds(await receive(proxy))[1] == "message"
