"""Pass a broker's checks of half messages to producers of this proxy.

This proxy registers at each broker as one producer client, with the topics of all its producers as
producer groups. It holds a stream of notices open at each broker. Its heartbeats name new topics
within a second.

The proxy sends each check to one producer of the topic, and takes turns among them. The producer
answers with an ordinary EndTransaction.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import aclosing

import structlog
from aerobee.broker.v1.client_pb2 import HeartbeatRequest, TransactionCheck, WatchClientRequest
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import (
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
)

from aerobee_chassis.background import pause
from aerobee_chassis.clock import Clock
from aerobee_cluster.transport import Transport
from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_proxy.counts import ProxyCounts
from aerobee_proxy.v2.sessions import Session, Sessions
from aerobee_proxy.v2.status import status
from aerobee_proxy.v2.translate import from_record, record_of
from aerobee_wire.handles import transaction_id
from aerobee_wire.handles.transaction_id import TransactionId
from aerobee_wire.rpcs import HEARTBEAT, WATCH_CLIENT
from aerobee_wire.status import MqError

ROUND_S = 1.0
LINKS_REFRESH_MS = 5_000  # interval to look for brokers that joined, left or are available again
HEARTBEAT_MS = 20_000


class TransactionChecks:
    """Receives checks from brokers and sends them to producers.

    Compressed bodies are decompressed up to `max_body_size` bytes. `may_publish`
    returns whether the user of a session still has the right to publish to a stored topic. Clients
    of users without that right do not get checks.
    """

    def __init__(
        self,
        transport: Transport,
        route_cache: RouteCache,
        calls: BrokerCalls,
        *,
        sessions: Sessions,
        counts: ProxyCounts,
        clock: Clock,
        max_body_size: int,
        may_publish: Callable[[Session, str], bool] = lambda session, topic: True,
    ) -> None:
        self._transport = transport
        self._route_cache = route_cache
        self._calls = calls
        self._sessions = sessions
        self._counts = counts
        self._clock = clock
        self._max_body_size = max_body_size
        self._may_publish = may_publish
        # The client id at brokers; unique among running proxies.
        self._client_id = f"{socket.gethostname()}@{os.getpid()}#{secrets.token_hex(4)}@proxy"
        self._topics: frozenset[str] = frozenset()  # stored names, of this proxy's producers
        self._links: dict[str, asyncio.Task[None]] = {}
        self._links_refreshed_ms: int | None = None
        self._checks = 0
        # The producers of topics with checks in this round. A broker that was down may check
        # thousands of half messages at once, and each look for producers visits all sessions.
        self._producers: dict[str, list[Session]] = {}

    async def run(self) -> None:
        """Keep a stream of notices open at each broker until this task is cancelled."""
        try:
            while True:
                self._producers.clear()
                producers = (session for session in self._sessions if session.streams)
                self._topics = frozenset().union(*(each.published() for each in producers))
                await self._refresh_links()
                await pause(ROUND_S)
        finally:
            links = list(self._links.values())
            self._links.clear()
            for link in links:
                link.cancel()
            await asyncio.gather(*links, return_exceptions=True)

    # ---- links ----

    async def _refresh_links(self) -> None:
        """Open a stream of notices at each new broker, and close the streams of removed brokers.

        Do nothing before this proxy has producers, or if the last refresh is recent.
        """
        now_ms = self._clock.monotonic_ms()
        refreshed_ms = self._links_refreshed_ms
        recent = refreshed_ms is not None and now_ms - refreshed_ms < LINKS_REFRESH_MS
        if recent or not (self._links or self._topics):
            return
        try:
            names = (await self._route_cache.brokers()).keys()
        except MqError:  # logged by the route cache
            return
        self._links_refreshed_ms = now_ms
        for name in names - self._links.keys():
            self._links[name] = asyncio.create_task(self._link(name), name=f"link to {name}")
        for name in self._links.keys() - names:
            self._links.pop(name).cancel()

    async def _link(self, broker_name: str) -> None:
        """Hold a stream of notices from one broker; reopen it when it breaks."""
        logged = ""
        while True:
            address = ""
            try:
                address = await self._route_cache.address_of(broker_name)
                await self._watch(broker_name, address)
                logged = ""
            except MqError as error:
                self._route_cache.forget_address(broker_name, address)
                if error.message != logged:
                    logged = error.message
                    structlog.get_logger().warning(
                        "transaction_checks_unavailable", broker=broker_name, reason=logged
                    )
            except Exception:
                structlog.get_logger().exception("link_failed", broker=broker_name)
            await asyncio.sleep(ROUND_S)

    async def _watch(self, broker_name: str, address: str) -> None:
        """Handle notices until the broker ends the stream. Raises MqError if the stream fails."""
        request = WatchClientRequest(client_id=self._client_id)
        heartbeats: asyncio.Task[None] | None = None
        try:
            stream = self._transport.stream(address, WATCH_CLIENT, request)
            async with aclosing(stream) as notices:
                async for notice in notices:
                    # A broker removes a client whose stream ends. So heartbeats start only after
                    # the broker has opened the new stream.
                    if heartbeats is None:
                        heartbeats = asyncio.create_task(self._send_heartbeats(broker_name))
                    if notice.HasField("transaction_check"):
                        self._check(broker_name, notice.transaction_check)
        finally:
            if heartbeats is not None:
                heartbeats.cancel()
                await asyncio.gather(heartbeats, return_exceptions=True)

    async def _send_heartbeats(self, broker_name: str) -> None:
        sent: frozenset[str] | None = None
        sent_ms = 0
        while True:
            topics, now_ms = self._topics, self._clock.monotonic_ms()
            if topics != sent or now_ms - sent_ms >= HEARTBEAT_MS:
                request = HeartbeatRequest(
                    client_id=self._client_id, producer_groups=sorted(topics), language="proxy"
                )
                try:
                    await self._calls.call(broker_name, HEARTBEAT, request)
                    sent, sent_ms = topics, now_ms
                except MqError as error:
                    structlog.get_logger().warning(
                        "producer_heartbeat_failed", broker=broker_name, reason=error.message
                    )
            await pause(ROUND_S)

    # ---- checks ----

    def producers_of(self, topic: str) -> list[Session]:
        """Return the sessions of the producers that may get a transaction check for this topic.

        `topic` is its name at the brokers, which contains the namespace.
        """
        producers = self._sessions.producers_of(topic)
        return [session for session in producers if self._may_publish(session, topic)]

    def _next_producer(self, topic: str) -> Session | None:
        """Return the producer that gets the next check for a topic, in turns, or None."""
        known = self._producers.get(topic, [])
        session = self._in_turn(known, topic)
        if session is None:
            known = self._producers[topic] = self._sessions.producers_of(topic)
            session = self._in_turn(known, topic)
        return session

    def _in_turn(self, producers: Sequence[Session], topic: str) -> Session | None:
        for _ in producers:
            self._checks += 1
            session = producers[self._checks % len(producers)]
            is_known = self._sessions.get(session.client_id, session.user) is session
            publishes = is_known and session.streams and topic in session.published()
            if publishes and self._may_publish(session, topic):
                return session
        return None

    def _check(self, broker_name: str, check: TransactionCheck) -> None:
        session = self._next_producer(check.producer_group)
        if session is None:  # the last one has just left; the broker will ask again
            structlog.get_logger().info("transaction_check_dropped", topic=check.producer_group)
            return
        transaction = TransactionId(
            broker_name, check.producer_group, check.transaction_id, check.queue_offset
        )
        message = from_record(
            record_of(check.message),
            namespace=session.namespace_of(check.message.topic),
            max_body_size=self._max_body_size,
        )
        command = RecoverOrphanedTransactionCommand(
            message=message, transaction_id=transaction_id.encode(transaction)
        )
        # Choose a random stream: some SDKs hold two streams, and one of them may be about to end.
        stream = random.choice(list(session.streams))
        stream.offer(
            TelemetryCommand(status=status(), recover_orphaned_transaction_command=command)
        )
        self._counts.transaction_checks += 1
