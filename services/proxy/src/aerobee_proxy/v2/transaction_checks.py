"""Check-back: brokers ask what became of half messages, and a producer of this proxy is asked.

At each broker the proxy is one client that produces for every topic of its producers (the topic is
the producer group). It holds a stream of notices open there; its heartbeats say which topics they
are, within a second of a change. A question goes to one producer of the topic, another one each
time; the answer is an EndTransaction like any other.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
from collections.abc import Callable
from contextlib import aclosing

import structlog
from aerobee.broker.v1.client_pb2 import HeartbeatRequest, TransactionCheck, WatchClientRequest
from apache.rocketmq.v2.service_pb2 import RecoverOrphanedTransactionCommand, TelemetryCommand

from aerobee_chassis.clock import Clock
from aerobee_proxy.cluster.broker_calls import Brokers
from aerobee_proxy.cluster.route_cache import Topology
from aerobee_proxy.cluster.transport import Transport
from aerobee_proxy.counts import Counts
from aerobee_proxy.v2.errors import status
from aerobee_proxy.v2.sessions import Session, Sessions
from aerobee_proxy.v2.translate import from_record, record_of
from aerobee_wire import transaction_id
from aerobee_wire.rpcs import HEARTBEAT, WATCH_CLIENT
from aerobee_wire.status import MqError
from aerobee_wire.transaction_id import TransactionId

ROUND_S = 1.0
LOOK_ROUND_MS = 5_000  # for brokers that came or went, or came back
HEARTBEAT_MS = 20_000


def own_client_id() -> str:
    """How brokers know this proxy: unique among those that run."""
    return f"{socket.gethostname()}@{os.getpid()}#{secrets.token_hex(4)}@proxy"


class CheckBack:
    """`max_body_size`: up to which a compressed body is inflated, in bytes. `may_publish`: whether
    a user may still do so to a stored topic, for who may not is shown no message of it."""

    def __init__(
        self,
        transport: Transport,
        topology: Topology,
        brokers: Brokers,
        *,
        sessions: Sessions,
        counts: Counts,
        clock: Clock,
        max_body_size: int,
        may_publish: Callable[[str, str], bool] = lambda user, topic: True,
    ) -> None:
        self._transport = transport
        self._topology = topology
        self._brokers = brokers
        self._sessions = sessions
        self._counts = counts
        self._clock = clock
        self._max_body_size = max_body_size
        self._may_publish = may_publish
        self._client_id = own_client_id()
        self._topics: frozenset[str] = frozenset()
        self._links: dict[str, asyncio.Task[None]] = {}
        self._looked_ms: int | None = None
        self._turn = 0

    async def run(self) -> None:
        """For ever."""
        try:
            while True:
                self._topics = self._published()
                await self._look_round()
                await asyncio.sleep(ROUND_S)
        finally:
            links = list(self._links.values())
            self._links.clear()
            for link in links:
                link.cancel()
            await asyncio.gather(*links, return_exceptions=True)

    def _published(self) -> frozenset[str]:
        """What the producers of this proxy publish to, by stored name."""
        return frozenset().union(
            *(session.published() for session in self._sessions if session.streams)
        )

    # ---- links ----

    async def _look_round(self) -> None:
        """Sees to it that there is a link to each broker, once there are producers."""
        now = self._clock.monotonic_ms()
        recent = self._looked_ms is not None and now - self._looked_ms < LOOK_ROUND_MS
        if recent or not (self._links or self._topics):
            return
        try:
            names = (await self._topology.brokers()).keys()
        except MqError:  # logged by the topology
            return
        self._looked_ms = now
        for name in names - self._links.keys():
            self._links[name] = asyncio.create_task(self._hold(name), name=f"link to {name}")
        for name in self._links.keys() - names:
            self._links.pop(name).cancel()

    async def _hold(self, broker_name: str) -> None:
        """A link to one broker, made anew when it breaks."""
        told = ""
        while True:
            try:
                await self._watch(broker_name)
                told = ""
            except MqError as error:
                self._topology.forget_address(broker_name)
                if error.message != told:
                    told = error.message
                    structlog.get_logger().warning(
                        "broker cannot ask about transactions", broker=broker_name, reason=told
                    )
            except Exception:
                structlog.get_logger().exception("link failed", broker=broker_name)
            await asyncio.sleep(ROUND_S)

    async def _watch(self, broker_name: str) -> None:
        """Until the broker ends the stream. Raises MqError."""
        address = await self._topology.address_of(broker_name)
        request = WatchClientRequest(client_id=self._client_id)
        beating: asyncio.Task[None] | None = None
        try:
            stream = self._transport.stream(address, WATCH_CLIENT, request)
            async with aclosing(stream) as notices:
                async for notice in notices:
                    # With an earlier stream the broker forgot this client: only now it may be told.
                    if beating is None:
                        beating = asyncio.create_task(self._beat(broker_name))
                    if notice.HasField("transaction_check"):
                        self._ask(broker_name, notice.transaction_check)
        finally:
            if beating is not None:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)

    async def _beat(self, broker_name: str) -> None:
        said: frozenset[str] | None = None
        said_ms = 0
        while True:
            topics, now = self._topics, self._clock.monotonic_ms()
            if topics != said or now - said_ms >= HEARTBEAT_MS:
                request = HeartbeatRequest(
                    client_id=self._client_id, producer_groups=sorted(topics), language="proxy"
                )
                try:
                    await self._brokers.ask(broker_name, HEARTBEAT, request)
                    said, said_ms = topics, now
                except MqError as error:
                    structlog.get_logger().warning(
                        "broker not told of producers", broker=broker_name, reason=error.message
                    )
            await asyncio.sleep(ROUND_S)

    # ---- questions ----

    def producers_of(self, topic: str) -> list[Session]:
        """Whom a question about a half message of this topic may go to."""
        found = self._sessions.producers_of(topic)
        return [session for session in found if self._may_publish(session.user, topic)]

    def _ask(self, broker_name: str, check: TransactionCheck) -> None:
        producers = self.producers_of(check.producer_group)
        if not producers:  # the last one has just left; the broker will ask again
            structlog.get_logger().info("nobody to ask", topic=check.producer_group)
            return
        self._turn += 1
        session = producers[self._turn % len(producers)]
        named = TransactionId(
            broker_name, check.producer_group, check.transaction_id, check.queue_offset
        )
        message = from_record(
            record_of(check.message),
            namespace=session.namespace_of(check.message.topic),
            max_body_size=self._max_body_size,
        )
        command = RecoverOrphanedTransactionCommand(
            message=message, transaction_id=transaction_id.encode(named)
        )
        _stream_of(session)(
            TelemetryCommand(status=status(), recover_orphaned_transaction_command=command)
        )
        self._counts.transaction_checks += 1


def _stream_of(session: Session) -> Callable[[TelemetryCommand], None]:
    """One of them: some SDKs hold two, and one of these may be about to end."""
    return random.choice(list(session.streams)).offer
