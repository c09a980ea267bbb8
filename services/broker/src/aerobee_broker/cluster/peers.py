"""Create a topic on the other brokers when a send creates it here, to spread the load.

A name server reports which brokers have TBW102. That topic marks brokers on which a send may create
topics. The new topic is created on each master that lacks it. A failure is only logged, because the
first message to that broker creates the topic there too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog
from aerobee.broker.v1 import admin_pb2

from aerobee_broker.cluster.identity import Identity
from aerobee_broker.cluster.registration import Registration, to_message, unreachable
from aerobee_broker.config import BrokerOptions
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_chassis.rpc.caller import Caller
from aerobee_wire import rpcs
from aerobee_wire import topics as names
from aerobee_wire.route import MASTER_ID
from aerobee_wire.status import Code, MqError

TIMEOUT_S = 3.0


def broker_caller(options: BrokerOptions) -> Caller:
    return Caller(unreachable(Code.BROKER_UNREACHABLE, "broker"), options.peer_tls())


@dataclass(frozen=True, slots=True)
class Peers:
    registration: Registration
    identity: Identity
    make_caller: Callable[[], Caller]

    async def create(self, config: TopicConfig) -> None:
        """Create the topic on the other brokers. Never raises.

        This broker serves the topic even if the other brokers do not have it.
        """
        try:
            others = await self._others()
        except MqError as error:
            structlog.get_logger().warning(
                "topic_not_spread", topic=config.topic, reason=error.message
            )
            return
        caller = self.make_caller()
        try:
            for address, broker_name in others.items():
                caller.expect(address, broker_name)
            await asyncio.gather(*(self._create_at(caller, address, config) for address in others))
        finally:
            await caller.close()

    async def _others(self) -> Mapping[str, str]:
        """Return the addresses of the other masters, with the names of their brokers."""
        route = await self.registration.route(names.AUTO_CREATE_TOPIC, TIMEOUT_S)
        if route is None:
            return {}
        return {
            address: broker.broker_name
            for broker in route.brokers
            if broker.cluster == self.identity.cluster
            and (address := broker.addresses.get(MASTER_ID, ""))
            and address != self.identity.address
        }

    async def _create_at(self, caller: Caller, address: str, config: TopicConfig) -> None:
        try:
            if await self._create_new(caller, address, config):
                structlog.get_logger().info("topic_spread", topic=config.topic, broker=address)
        except MqError as error:
            structlog.get_logger().warning(
                "topic_not_spread", topic=config.topic, broker=address, reason=error.message
            )

    async def _create_new(self, caller: Caller, address: str, config: TopicConfig) -> bool:
        """Create the topic on the broker at `address`. Return False if it exists there already."""
        get = admin_pb2.GetTopicRequest(topic=config.topic)
        try:
            await caller.call(address, rpcs.GET_TOPIC, get, timeout_s=TIMEOUT_S)
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST:
                raise
        else:
            return False
        put = admin_pb2.PutTopicRequest(topic=to_message(config), only_new=True)
        response = await caller.call(address, rpcs.PUT_TOPIC, put, timeout_s=TIMEOUT_S)
        return response.created
