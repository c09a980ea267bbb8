"""Register the clients of this proxy with all brokers, so that tools see them and groups exist.

Message delivery does not depend on heartbeats. Most failures are only logged, because the next
heartbeat of the client follows soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

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

from aerobee_chassis.clock import Clock
from aerobee_chassis.rpc.call import Call
from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.cluster.log_throttle import LogThrottle
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_proxy.v2.sessions import SILENCE_MS, Session
from aerobee_proxy.v2.translate import subscription
from aerobee_wire.rpcs import HEARTBEAT, LIST_CLIENTS, UNREGISTER_CLIENT
from aerobee_wire.status import Code, MqError

REPEATED_AT_ONCE = 64
# A client waits for the answers of all brokers. One that hangs must not use up the 3 s that SDKs
# give a request.
ANSWER_S = 2.0
LANGUAGE_KEY, VERSION_KEY = "x-mq-language", "x-mq-client-version"
LONGEST_NAME = 64  # characters that are kept of a language or version


class ClientHeartbeats:
    """Sends heartbeats of clients to brokers.

    `proxy_name` returns the name of this proxy. Heartbeats can be sent only after its port is
    bound.
    """

    def __init__(
        self,
        calls: BrokerCalls,
        route_cache: RouteCache,
        clock: Clock,
        proxy_name: Callable[[], str],
    ) -> None:
        self._calls = calls
        self._route_cache = route_cache
        self._proxy_name = proxy_name
        self._log_throttle = LogThrottle(clock)

    async def of_consumer(self, session: Session, consumer_group: str, call: Call) -> None:
        """Send a consumer's heartbeat to every broker.

        Raises MqError with the code SUBSCRIPTION_GROUP_NOT_EXIST if a broker refuses the group, or
        MqError if no name server answers.
        """
        request = self._heartbeat(session, call)
        request.consumers.append(_consumer(session, consumer_group))
        session.sent_heartbeat(request)
        await self._send(request)

    async def of_producer(self, session: Session, call: Call) -> None:
        """Send a producer's heartbeat to every broker. Log failures.

        Do nothing if the topics to which the producer publishes are not known yet.
        """
        topics = sorted(session.published())
        if not topics:
            return
        request = self._heartbeat(session, call)
        request.published_topics.extend(topics)
        session.sent_heartbeat(request)
        try:
            await self._send(request)
        except MqError as error:
            structlog.get_logger().warning("heartbeat_failed", reason=error.message)

    async def announce(self, session: Session, call: Call) -> None:
        """Send a heartbeat for a client with new settings, if brokers have another. Log failures.

        So brokers know a client from its settings on, and not only from its next heartbeat, which
        may be 30 s later.
        """
        known, group = session.heartbeat, session.consumer_group
        if not group:
            if known is None or list(known.published_topics) != sorted(session.published()):
                await self.of_producer(session, call)
        elif known is None or list(known.consumers) != [_consumer(session, group)]:
            try:
                await self.of_consumer(session, group, call)
            except MqError as error:
                if self._log_throttle.allow(group) is not None:
                    structlog.get_logger().warning(
                        "heartbeat_failed", group=group, reason=error.message
                    )

    def _heartbeat(self, session: Session, call: Call) -> HeartbeatRequest:
        metadata = call.metadata
        return HeartbeatRequest(
            client_id=session.client_id,
            language=metadata.get(LANGUAGE_KEY, "")[:LONGEST_NAME].lower(),
            version=metadata.get(VERSION_KEY, "")[:LONGEST_NAME],
            address=call.peer,
            proxy=self._proxy_name(),
            user=session.user,
        )

    async def _send(self, request: HeartbeatRequest) -> None:
        names = list(await self._route_cache.brokers())
        try_call = self._calls.try_call
        failures = await asyncio.gather(
            *(try_call(name, HEARTBEAT, request, timeout_s=ANSWER_S) for name in names)
        )
        for name, failure in zip(names, failures, strict=True):
            if failure is None:
                continue
            if failure.code is Code.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise failure
            suppressed = self._log_throttle.allow(name)
            if suppressed is not None:
                structlog.get_logger().warning(
                    "heartbeat_failed", broker=name, reason=failure.message, suppressed=suppressed
                )

    async def repeat(self, broker_name: str, requests: Sequence[HeartbeatRequest]) -> None:
        """Send earlier heartbeats to a broker that may not know these clients. Log failures.

        Used after a broker restarted, or after another replica became its master.
        """
        for first in range(0, len(requests), REPEATED_AT_ONCE):
            failures = await asyncio.gather(
                *(
                    self._calls.try_call(broker_name, HEARTBEAT, request)
                    for request in requests[first : first + REPEATED_AT_ONCE]
                )
            )
            for failure in filter(None, failures):
                suppressed = self._log_throttle.allow(broker_name)
                if suppressed is not None:
                    structlog.get_logger().warning(
                        "heartbeat_failed",
                        broker=broker_name,
                        reason=failure.message,
                        suppressed=suppressed,
                    )

    async def unregister(self, client_id: str, consumer_group: str) -> None:
        """Remove a consumer from one group at every broker, or a producer if the group is empty.

        The client stays in other groups, because the caller may lack rights on them. Failures are
        only logged, because brokers eventually remove clients that send no heartbeats.
        """
        request = UnregisterClientRequest(
            client_id=client_id, consumer_group=consumer_group, publishing=not consumer_group
        )
        log = structlog.get_logger()
        try:
            names = await self._route_cache.brokers()
        except MqError as error:
            log.warning("client_not_unregistered", reason=error.message)
            return
        failures = await asyncio.gather(
            *(
                self._calls.try_call(name, UNREGISTER_CLIENT, request, timeout_s=ANSWER_S)
                for name in names
            )
        )
        for failure in filter(None, failures):
            log.warning("client_not_unregistered", reason=failure.message)

    async def live_members(self, broker_name: str, consumer_group: str) -> frozenset[str]:
        """Return the ids of a group's clients with a heartbeat at this broker within SILENCE_MS.

        The broker counts heartbeats through any proxy. Raises MqError if the broker does not
        answer.
        """
        request = ListClientsRequest(group=consumer_group)
        answer = await self._calls.call(broker_name, LIST_CLIENTS, request)
        return frozenset(
            client.client_id for client in answer.clients if client.silent_ms <= SILENCE_MS
        )


def _consumer(session: Session, consumer_group: str) -> ConsumerData:
    return ConsumerData(
        consumer_group=consumer_group,
        consume_type=POP,
        message_model=CLUSTERING,
        consume_from_where=CONSUME_FROM_FIRST_OFFSET,
        subscriptions=[
            subscription(topic, expression) for topic, expression in session.subscriptions.items()
        ],
    )
