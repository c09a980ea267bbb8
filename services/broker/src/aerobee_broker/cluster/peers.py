"""A topic that a send creates here is created on the other brokers too, so that load spreads.

A name server says which brokers have TBW102, the topic that marks brokers where a send may create
topics; the new topic is put on each master that does not have it. A failure is logged: a first
message creates the topic there as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from aerobee_broker.cluster.registration import Registration
from aerobee_broker.identity import Identity
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire import topics as names
from aerobee_wire.status import MqError

MASTER_ID = 0
TIMEOUT_S = 3.0


class BrokerClient(Protocol):
    """Another broker. Every call raises MqError."""

    async def create_topic(self, config: TopicConfig, timeout_s: float) -> bool:
        """False, and nothing changed, when the topic is there."""

    async def close(self) -> None: ...


class Peers:
    def __init__(
        self,
        registration: Registration,
        identity: Identity,
        connect: Callable[[str], BrokerClient],
    ) -> None:
        self._registration = registration
        self._identity = identity
        self._connect = connect

    async def create(self, config: TopicConfig) -> None:
        """Never raises: this broker serves the topic without them."""
        try:
            addresses = await self._others()
        except MqError as error:
            structlog.get_logger().warning(
                "topic_not_spread", topic=config.topic, reason=error.message
            )
            return
        await asyncio.gather(*(self._create_at(address, config) for address in addresses))

    async def _others(self) -> Sequence[str]:
        route = await self._registration.route(names.AUTO_CREATE_TOPIC, TIMEOUT_S)
        if route is None:
            return ()
        return sorted(
            address
            for broker in route.brokers
            if broker.cluster == self._identity.cluster
            and (address := broker.addresses.get(MASTER_ID, ""))
            and address != self._identity.address
        )

    async def _create_at(self, address: str, config: TopicConfig) -> None:
        client = self._connect(address)
        try:
            if await client.create_topic(config, TIMEOUT_S):
                structlog.get_logger().info("topic_spread", topic=config.topic, broker=address)
        except MqError as error:
            structlog.get_logger().warning(
                "topic_not_spread", topic=config.topic, broker=address, reason=error.message
            )
        finally:
            await client.close()
