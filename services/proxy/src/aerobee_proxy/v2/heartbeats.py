"""Tells brokers which consumers this proxy serves, so that tools see them there and groups exist.

Nothing depends on it for delivery: a broker that cannot be told is logged and told the next time.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from aerobee.broker.v1.client_pb2 import (
    CLUSTERING,
    CONSUME_FROM_FIRST_OFFSET,
    POP,
    ConsumerData,
    HeartbeatRequest,
    ListClientsRequest,
    UnregisterClientRequest,
)
from google.protobuf.message import Message

from aerobee_chassis.clock import Clock
from aerobee_proxy.cluster.broker_calls import Brokers
from aerobee_proxy.cluster.log_throttle import Seldom
from aerobee_proxy.cluster.route_cache import Topology
from aerobee_proxy.v2.sessions import SILENCE_MS, Session
from aerobee_proxy.v2.translate import subscription
from aerobee_wire.rpcs import HEARTBEAT, LIST_CLIENTS, UNREGISTER_CLIENT, Rpc
from aerobee_wire.status import Code, MqError


class Presence:
    def __init__(self, brokers: Brokers, topology: Topology, clock: Clock) -> None:
        self._brokers = brokers
        self._topology = topology
        self._seldom = Seldom(clock)

    async def announce(self, session: Session, consumer_group: str, language: str) -> None:
        """To every broker. Raises MqError SUBSCRIPTION_GROUP_NOT_EXIST where one says that."""
        request = HeartbeatRequest(
            client_id=session.client_id,
            consumers=[_consumer(session, consumer_group)],
            language=language,
        )
        names = list(await self._topology.brokers())
        outcomes = await asyncio.gather(*(self._tell(name, HEARTBEAT, request) for name in names))
        for name, failure in zip(names, outcomes, strict=True):
            if failure is None:
                continue
            if failure.code is Code.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise failure
            untold = self._seldom.due(name)
            if untold is not None:
                structlog.get_logger().warning(
                    "broker not told of a client",
                    broker=name,
                    reason=failure.message,
                    untold=untold,
                )

    async def retract(self, client_id: str, consumer_group: str) -> None:
        """A member of this group from every broker, and of no other: the caller may be allowed no
        more. Brokers that cannot be told forget the client by themselves."""
        request = UnregisterClientRequest(client_id=client_id, consumer_group=consumer_group)
        try:
            names = await self._topology.brokers()
        except MqError as error:
            structlog.get_logger().warning("brokers not told of a leave", reason=error.message)
            return
        outcomes = await asyncio.gather(
            *(self._tell(name, UNREGISTER_CLIENT, request) for name in names)
        )
        for failure in filter(None, outcomes):
            structlog.get_logger().warning("broker not told of a leave", reason=failure.message)

    async def seen(self, broker_name: str, consumer_group: str) -> frozenset[str]:
        """Ids of the members that gave this broker a sign of life lately, through whatever proxy.

        Raises MqError.
        """
        request = ListClientsRequest(group=consumer_group)
        answer = await self._brokers.ask(broker_name, LIST_CLIENTS, request)
        return frozenset(one.client_id for one in answer.clients if one.silent_ms <= SILENCE_MS)

    async def _tell(self, broker_name: str, rpc: Rpc[Any, Any], request: Message) -> MqError | None:
        try:
            await self._brokers.ask(broker_name, rpc, request)
        except MqError as error:
            return error
        return None


def _consumer(session: Session, consumer_group: str) -> ConsumerData:
    return ConsumerData(
        consumer_group=consumer_group,
        consume_type=POP,
        message_model=CLUSTERING,
        consume_from_where=CONSUME_FROM_FIRST_OFFSET,
        subscriptions=[
            subscription(topic, wanted) for topic, wanted in session.subscriptions.items()
        ],
    )
