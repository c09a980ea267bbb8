"""Sends that a broker refuses, or cannot confirm, because replicas are missing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aerobee.broker.v1.message_pb2 import SendResponse, SendResult
from aerobee.namesrv.v1.namesrv_pb2 import (
    BrokerData,
    GetClusterInfoResponse,
    GetTopicRouteResponse,
    TopicRoute,
)
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_proxy.proxy import Proxy
from aerobee_wire.status import Code, MqError
from support.proxy.harness import Cluster, FakeCall
from support.proxy.routes import queue_data

BROKERS = {"broker-a": "10.0.0.1:10911", "broker-b": "10.0.0.2:10911"}


class TwoBrokers:
    """Sends at broker-a fail with `failure`."""

    def __init__(self) -> None:
        self.failure = Code.SLAVE_NOT_AVAILABLE
        self.sent: list[str] = []  # addresses
        self.cluster = Cluster()
        self.names = ["broker-a", "broker-b"]
        self.cluster.transport.answers |= {"Send": self.send, "GetTopicRoute": self.route}
        self.cluster.transport.answers["GetClusterInfo"] = lambda *_: GetClusterInfoResponse(
            brokers=self.brokers()
        )
        self.proxy: Proxy = self.cluster.proxy()

    def brokers(self) -> list[BrokerData]:
        return [BrokerData(broker_name=name, addresses={0: BROKERS[name]}) for name in self.names]

    def route(self, address: str, request: Any) -> GetTopicRouteResponse:
        queues = [queue_data(name, kind="MIXED") for name in self.names]
        return GetTopicRouteResponse(route=TopicRoute(queues=queues, brokers=self.brokers()))

    def send(self, address: str, request: Any) -> SendResponse:
        self.sent.append(address)
        if address == BROKERS["broker-a"]:
            raise MqError(self.failure, "too few replicas")
        return SendResponse(results=[SendResult(queue_offset=7) for _ in request.messages])

    async def send_one(self, message_group: str = "") -> int:
        system = d.SystemProperties(message_id="m", message_group=message_group)
        if message_group:
            system.message_type = d.MessageType.FIFO
        message = d.Message(topic=d.Resource(name="orders"), body=b"1", system_properties=system)
        answer = await self.proxy.rpcs.send_message(
            s.SendMessageRequest(messages=[message]), FakeCall()
        )
        return int(answer.status.code)


@pytest.fixture
async def brokers() -> AsyncIterator[TwoBrokers]:
    brokers = TwoBrokers()
    yield brokers
    await brokers.proxy.close()


async def test_what_was_not_stored_is_taken_by_another_broker_at_once(brokers: TwoBrokers) -> None:
    assert {await brokers.send_one() for _ in range(8)} == {d.Code.OK}
    # Refused once; then that broker is avoided for a while.
    assert brokers.sent.count(BROKERS["broker-a"]) == 1


async def test_a_message_group_stays_with_its_broker(brokers: TwoBrokers) -> None:
    codes = {await brokers.send_one(str(number)) for number in range(8)}
    assert codes == {d.Code.OK, d.Code.HA_NOT_AVAILABLE}


async def test_with_no_other_broker_the_sender_is_notified(brokers: TwoBrokers) -> None:
    brokers.names = ["broker-a"]
    assert await brokers.send_one() == d.Code.HA_NOT_AVAILABLE
    assert len(brokers.sent) == 1


async def test_what_was_stored_goes_nowhere_else(brokers: TwoBrokers) -> None:
    brokers.failure = Code.FLUSH_SLAVE_TIMEOUT
    codes = [await brokers.send_one() for _ in range(8)]
    assert codes.count(d.Code.SLAVE_PERSISTENCE_TIMEOUT) == len(
        [address for address in brokers.sent if address == BROKERS["broker-a"]]
    )
    assert len(brokers.sent) == 8
