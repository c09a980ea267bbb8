"""Provide the parts that all clients share: transport, name servers, routes, broker links."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from aerobee.broker.v1 import client_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.cluster.broker_link import BrokerLink, OnLink, OnNotice, ignore_link
from aerobee_client.cluster.namesrv import NamesrvClient, namesrv_addresses
from aerobee_client.cluster.route_cache import RouteCache
from aerobee_client.cluster.transport import GrpcTransport
from aerobee_client.credentials import Credentials
from aerobee_client.errors import BrokerUnreachable
from aerobee_client.runtime.clock import Clock, SystemClock
from aerobee_client.runtime.fork import PROCESS
from aerobee_client.tls import Tls
from aerobee_cluster.broker_watch import BrokerWatch
from aerobee_cluster.name_servers import NameServers, resolve_host
from aerobee_cluster.transport import Q, R, Transport
from aerobee_wire.certificates import NAME
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import MqError
from aerobee_wire.version import VERSION

log = logging.getLogger(__name__)

ROUTE_REFRESH_INTERVAL_S = 30.0
# The refresh interval while a broker of a route is expected back, and in the first minute. In the
# first minute, routes may come from a name server that has just started and does not know every
# broker. If members of a group have different routes, some queues have no owner until the next
# refresh.
EXPECTANT_REFRESH_INTERVAL_S = 2.0
# The interval is for up to this number of topics. It grows with more topics, because a refresh
# needs one call per topic.
EXPECTANT_TOPICS = 20
FIRST_MS = 60_000
CLUSTER_RETRY_S = 1.0  # while no name server answers
# Topics that a heartbeat reports: 250 KB with the longest names, every 30 s.
MAX_PUBLISHED = 1_000
ANNOUNCE_AFTER_S = 1.0  # so that a client that sends to many topics reports them together
LANGUAGE = "python"


def expectant_interval_s(topic_count: int) -> float:
    """Return the refresh interval for this number of routes while a broker is expected back."""
    return EXPECTANT_REFRESH_INTERVAL_S * max(1.0, topic_count / EXPECTANT_TOPICS)


def local_ip() -> str:
    """Return the IP address of this machine in its network; "127.0.0.1" without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address; nothing is sent
        except OSError:
            return "127.0.0.1"
        ip: str = probe.getsockname()[0]
        return ip


def new_client_id(room: str = "") -> str:
    """Return a client id that is unique among live clients."""
    client_id = f"{local_ip()}@{os.getpid()}#{time.monotonic_ns()}"
    return f"{client_id}@{room}" if room else client_id


class Secured(Protocol):
    """Options of a client that say how its calls are protected."""

    @property
    def tls(self) -> Tls | None: ...

    @property
    def credentials(self) -> Credentials | None: ...


@dataclass(frozen=True, slots=True)
class Connection:
    """The name servers of a client, and what replaces transport and clock in tests."""

    namesrv: str | Sequence[str] | None
    transport: Transport | None
    clock: Clock | None

    def open(
        self, options: Secured, *, machine_room: str = "", default_queue_count: int = 4
    ) -> ClientInstance:
        """Create the shared parts of a client. Nothing is connected yet."""
        return ClientInstance(
            self.namesrv,
            default_queue_count=default_queue_count,
            machine_room=machine_room,
            tls=options.tls,
            credentials=options.credentials,
            transport=self.transport,
            clock=self.clock,
        )


class ClientInstance:
    """The part that all kinds of clients share. Start, use and close it on one event loop."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None,
        *,
        default_queue_count: int = 4,
        machine_room: str = "",
        tls: Tls | None = None,
        credentials: Credentials | None = None,
        transport: Transport | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Create the parts without a connection.

        Tests replace `transport` and `clock`. With another transport, host names are not resolved,
        because they are not of this network.
        """
        PROCESS.check()
        addresses = namesrv_addresses(namesrv)
        self.client_id = new_client_id(machine_room)
        self.clock = clock or SystemClock()
        self.transport = transport or GrpcTransport.of(tls, credentials)
        resolves = transport is None and (tls is None or tls.verify == NAME)
        namesrvs = NameServers(addresses, resolve_host if resolves else None)
        self.namesrv = NamesrvClient(self.transport, namesrvs)
        self.routes = RouteCache(
            self.namesrv,
            self.clock,
            default_queue_count=default_queue_count,
            on_change=self._routes_changed,
            expect=self.transport.expect,
        )
        self._heartbeat: Callable[[], client_pb2.HeartbeatRequest] | None = None
        self._on_notice: OnNotice | None = None
        self._on_link: OnLink = ignore_link
        self._on_routes: Callable[[], None] = lambda: None
        self._watches = False
        self._links: dict[str, BrokerLink] = {}
        self._published: set[str] = set()
        self._announcement: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._refresher: asyncio.Task[None] | None = None
        self._broker_left = asyncio.Event()
        self._began_ms = self.clock.monotonic_ms()
        self._broker_watcher: asyncio.Task[None] | None = None

    def new_heartbeat(self) -> client_pb2.HeartbeatRequest:
        return client_pb2.HeartbeatRequest(
            client_id=self.client_id,
            language=LANGUAGE,
            version=VERSION,
            published_topics=sorted(self._published),
            watches=self._watches and self._on_notice is not None,
        )

    def publishes(self, topic: str) -> None:
        """Report to brokers that this client has sent a message to a topic, about a second later.

        Further calls for the same topic do nothing. At most MAX_PUBLISHED topics are reported.
        """
        if topic in self._published or len(self._published) >= MAX_PUBLISHED:
            return
        self._published.add(topic)
        if self._announcement is None or self._announcement.done():
            self._announcement = asyncio.create_task(self._announce_soon(), name="announcement")

    def start(
        self,
        heartbeat: Callable[[], client_pb2.HeartbeatRequest],
        on_notice: OnNotice | None = None,
        *,
        on_link: OnLink = ignore_link,
        on_routes: Callable[[], None] = lambda: None,
        watches: bool = True,
        whole_cluster: bool = False,
    ) -> None:
        """Register this client with brokers, and keep its registrations and routes current.

        The brokers are the masters of every cached route, or every master of the `whole_cluster`.
        `heartbeat` returns the current heartbeat. `on_notice` is called with each notice; without
        it, the client gets no notices. If `watches` is false, notices begin with the first `watch`.
        `on_link` is called as BrokerLink describes. `on_routes` is called when a route is new or
        has changed.
        """
        self._heartbeat = heartbeat
        self._on_notice = on_notice
        self._on_link = on_link
        self._on_routes = on_routes
        self._watches = watches
        refreshing = self._refresh_forever(whole_cluster=whole_cluster)
        self._refresher = asyncio.create_task(refreshing, name="route refresh")
        watch = BrokerWatch(
            self.transport,
            self.namesrv.addresses,
            self.routes.learn,
            on_moved=_log_moved,
            on_lost=_log_lost,
        )
        self._broker_watcher = asyncio.create_task(watch.run(), name="broker watch")

    def call_broker(
        self, broker_name: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float
    ) -> Coroutine[Any, Any, R]:
        """Call the master of a broker.

        Raises MqError, with the code BROKER_NOT_EXIST if no route contains the broker.
        """
        address = self.routes.address_of(broker_name)
        return self.transport.call(address, rpc, request, timeout_s=timeout_s)

    async def ask_broker(
        self, broker_name: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float
    ) -> R:
        """Send a read request to the master of a broker, or to a slave if there is no master.

        Raises MqError like `call_broker`.
        """
        call, routes = self.transport.call, self.routes
        address = routes.reading_address_of(broker_name)
        try:
            return await call(address, rpc, request, timeout_s=timeout_s)
        except BrokerUnreachable:
            await routes.refresh_broker(broker_name)
            other = routes.reading_address_of(broker_name)
            if other == address:
                raise
        return await call(other, rpc, request, timeout_s=timeout_s)

    def has_capability(self, broker_name: str, capability: client_pb2.Capability) -> bool:
        """Return whether the master of a broker reported a capability at the last heartbeat.

        Return False before the first heartbeat. Raises MqError with the code BROKER_NOT_EXIST if no
        route contains the broker.
        """
        link = self._links.get(self.routes.address_of(broker_name))
        return link is not None and capability in link.capabilities

    def clock_ahead_ms(self, broker_name: str) -> int:
        """Return the time of a broker minus the time of this client, at the last heartbeat.

        Use it to compare times from a broker, such as the end of a lease, with the current time.
        """
        link = self.link_of(broker_name)
        return 0 if link is None else link.clock_ahead_ms

    def now_ms_at(self, broker_name: str) -> int:
        """Return the time by the clock of a broker, in milliseconds since the epoch."""
        return self.clock.now_ms() + self.clock_ahead_ms(broker_name)

    def link_of(self, broker_name: str) -> BrokerLink | None:
        """Return the link to the master of a broker, or None if there is none yet."""
        return next(
            (
                link
                for address, link in self._links.items()
                if self.routes.broker_at(address) == broker_name
            ),
            None,
        )

    async def watch(self, topic: str) -> list[str]:
        """Receive notices from now on. Wait until the streams to the brokers of `topic` are open.

        Return the names of the brokers that accept messages of the topic. The call does not wait
        for unreachable brokers. Raises the errors of the route query.
        """
        info = await self.routes.publish_info(topic)
        if not self._watches:
            self._watches = True
            for link in self._links.values():
                link.watch()
        names = [queue.broker_name for queue in info.one_of_each_broker]
        for name in names:
            found = self.link_of(name)
            if found is not None and not found.is_watching:
                await found.until_watching()
        return names

    async def announce(self) -> None:
        """Send a heartbeat to every broker of the routes now.

        A broker that does not answer is retried in the background. Raises MqError if every broker
        refuses the client.
        """
        known = set(self._links)
        self._match_links()
        links = list(self._links.values())
        await asyncio.gather(*(link.until_tried() for link in links))
        await asyncio.gather(
            *(link.beat() for link in links if link.address in known and not link.refusal),
            return_exceptions=True,
        )
        refusals = [link.refusal for link in links if link.refusal is not None]
        if refusals and len(refusals) == len(links) and not refusals[0].retryable:
            raise refusals[0]

    async def close(self) -> None:
        """Unregister from every broker and close the connections. May be called more than once.

        The close also continues to its end if it is cancelled. Every step has its own timeout, and
        a client that stays registered would keep its queues from other members. In a forked child
        the call does nothing, because the connections belong to the parent.
        """
        if PROCESS.is_child:
            return
        leaving = asyncio.ensure_future(self._leave())
        cancelled: asyncio.CancelledError | None = None
        while not leaving.done():
            try:
                await asyncio.shield(leaving)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _leave(self) -> None:
        self._heartbeat = None  # routes that are fetched from now on do not open links
        for task in (self._refresher, self._broker_watcher, self._announcement):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        request = client_pb2.UnregisterClientRequest(client_id=self.client_id)
        links, self._links = self._links, {}
        await asyncio.gather(*(link.close(request) for link in links.values()), *self._closing)
        await self.routes.close()
        await self.transport.close()

    async def _announce_soon(self) -> None:
        await asyncio.sleep(ANNOUNCE_AFTER_S)
        if self._heartbeat is not None:
            # A link that fails here sends its heartbeat again when it is reopened.
            links = [link for link in self._links.values() if not link.refusal]
            await asyncio.gather(*(link.beat() for link in links), return_exceptions=True)

    def _routes_changed(self) -> None:
        if self.routes.expects_broker():
            self._broker_left.set()
        self._match_links()
        self._on_routes()

    def _match_links(self) -> None:
        """Open a link to each master of the cached routes, and close the other links.

        Links to brokers that are expected back stay open.
        """
        if self._heartbeat is None:
            return
        wanted = self.routes.linked_addresses()
        for address in wanted - self._links.keys():
            link = BrokerLink(
                address,
                self.transport,
                self._heartbeat,
                self._on_notice,
                self._on_link,
                clock=self.clock,
            )
            self._links[address] = link
            if self._watches:
                link.watch()
        for address in self._links.keys() - wanted:
            task = asyncio.create_task(self._links.pop(address).close(None))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _refresh_forever(self, *, whole_cluster: bool) -> None:
        asks_for_cluster = whole_cluster
        while True:
            if asks_for_cluster:
                asks_for_cluster = not await self.routes.follow_cluster()
            await self._until_refresh(
                CLUSTER_RETRY_S if asks_for_cluster else ROUTE_REFRESH_INTERVAL_S
            )
            try:
                await self.routes.refresh_all()
                self._match_links()  # a broker may no longer be expected back
            except Exception:
                log.exception("routes not refreshed")

    async def _until_refresh(self, interval_s: float) -> None:
        """Wait for the interval, or for a shorter time while routes may lack a broker."""
        if not self._is_expectant():
            self._broker_left.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._broker_left.wait()
        if self._is_expectant():
            await asyncio.sleep(min(interval_s, expectant_interval_s(self.routes.topic_count)))

    def _is_expectant(self) -> bool:
        age_ms = self.clock.monotonic_ms() - self._began_ms
        return age_ms < FIRST_MS or self.routes.expects_broker()


def _log_moved(members: namesrv_pb2.BrokerMembers, _former: str) -> None:
    name, address = members.broker_name, members.addresses[0]
    log.info("the master of %s is now at %s (epoch %d)", name, address, members.epoch)


def _log_lost(namesrv: str, failure: Exception | None) -> None:
    if failure is None or isinstance(failure, MqError):
        log.debug("brokers are not watched at %s: %s", namesrv, failure or "it ended the stream")
    else:
        log.error("brokers are not watched at %s", namesrv, exc_info=failure)
