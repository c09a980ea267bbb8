"""Cache topic routes and broker addresses from name servers.

A route is fetched again after 20 s. Concurrent requests for one topic share one fetch. An unknown
topic is not cached.

While no name server answers, cached routes in use and known broker addresses stay valid, regardless
of their age. A caller with such a stale value waits at most 0.3 s for name servers that hang.

A cached topic is dropped if every name server that answers reports TOPIC_NOT_EXIST. In the first
300 s after the last fetch, all brokers of the topic must also be registered. This is because a
broker that restarts unregisters its topics for a short time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog
from aerobee.namesrv.v1.namesrv_pb2 import (
    BrokerData,
    BrokerMembers,
    GetClusterInfoRequest,
    GetTopicRouteRequest,
    TopicRoute,
)
from google.protobuf.message import Message

from aerobee_chassis.clock import Clock
from aerobee_cluster.name_servers import places_of
from aerobee_cluster.single_flight import RETRY_AFTER_MS, SingleFlight
from aerobee_cluster.transport import Transport
from aerobee_proxy.cluster.availability import BeingElected
from aerobee_proxy.cluster.log_throttle import LogThrottle
from aerobee_wire.queues.broker_members import NewestEpochs, names_broker, with_addresses
from aerobee_wire.route import MASTER_ID
from aerobee_wire.rpcs import GET_CLUSTER_INFO, GET_TOPIC_ROUTE, Rpc
from aerobee_wire.status import Code, MqError

REFRESH_MS = 20_000
BROKERS_REFRESH_MS = 1_000  # every heartbeat of every consumer needs the list of brokers
EXPIRE_MS = 300_000  # after the last use
MAX_TOPICS = 20_000
TIMEOUT_S = 3.0

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


@dataclass(slots=True)
class _CachedRoute:
    """A route, with the times of its last fetch and last use. Times are of a monotonic clock."""

    route: TopicRoute
    fetched_ms: int
    stale_from_ms: int
    used_ms: int
    notice: int  # the number of the last notice that the route includes


@dataclass(slots=True)
class _Noticed:
    """The last notices of name servers about a broker, by their number; 0 if there was none."""

    moved: int = 0  # the replicas had these addresses
    addresses: Mapping[int, str] = field(default_factory=dict)
    lost: int = 0  # the master disappeared
    returned: int = 0  # the broker is registered again


class RouteCache:
    """Caches routes and broker addresses, which are fetched on demand.

    `namesrvs` are the name servers as "host:port". After a failure, a name server is asked last.
    """

    def __init__(self, transport: Transport, namesrvs: Sequence[str], clock: Clock) -> None:
        self._transport = transport
        self._namesrvs = namesrvs
        # Name server → the number of its last failure. The one that failed last is asked last.
        self._failed: dict[str, int] = {}
        self._failures = itertools.count(1)
        self._clock = clock
        self._routes: dict[str, _CachedRoute] = {}
        self._route_flights: SingleFlight[TopicRoute] = SingleFlight(clock)
        self._addresses: dict[str, str] = {}
        self._broker_flights: SingleFlight[dict[str, str]] = SingleFlight(clock)
        self._brokers: dict[str, str] | None = None  # all brokers, from the last fetch
        self._brokers_stale_from_ms = 0  # monotonic
        self._last_addresses: dict[str, str] = {}  # including unregistered brokers
        self._electing: set[str] = set()  # brokers with replicas, but no master
        self._gone: set[str] = set()  # brokers that a name server reported as unregistered
        self._slaves: dict[str, dict[int, str]] = {}  # by broker name: id → address
        self._epochs = NewestEpochs()
        # Routes include a notice when they are used: a notice must not visit 20,000 of them.
        self._notice = 0  # the number of the last one
        self._noticed: dict[str, _Noticed] = {}  # by broker name
        # After no name server answered, callers get stale routes until this monotonic time.
        self._silent_until_ms = 0
        self._log_throttle = LogThrottle(clock)

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic, by its stored name, from the cache or a name server.

        Raises MqError with the code TOPIC_NOT_EXIST or NAMESRV_UNREACHABLE.
        """
        known = self._routes.get(topic)
        now_ms = self._clock.monotonic_ms()
        if known is not None:
            if now_ms - known.used_ms >= EXPIRE_MS:
                known = None
            else:
                known.used_ms = now_ms
                self._include_notices(known)
                if now_ms < max(known.stale_from_ms, self._silent_until_ms):
                    return known.route
        try:
            return await self._route_flights.do(
                topic, lambda: self._fetch(topic), has_stale=known is not None
            )
        except (MqError, TimeoutError) as error:
            if known is None or getattr(error, "code", None) is Code.TOPIC_NOT_EXIST:
                raise
            if isinstance(error, MqError):
                known.stale_from_ms = self._clock.monotonic_ms() + RETRY_AFTER_MS
            return known.route

    def expire(self, topic: str) -> None:
        """Make the next call of `route` ask the name servers.

        If no name server answers, that call returns the cached route.
        """
        known = self._routes.get(topic)
        if known is not None:
            known.stale_from_ms = 0

    def forget(self, topic: str) -> None:
        """Drop the cached route of a topic, so that the next call of `route` must fetch it."""
        self._routes.pop(topic, None)

    async def address_of(self, broker_name: str) -> str:
        """Return the "host:port" of the broker's master.

        Raises:
            BeingElected: If the replicas of the broker are electing a master.
            MqError: With the code BROKER_NOT_EXIST if no name server knows the broker.
        """
        address = self._addresses.get(broker_name)
        if address is None:
            try:
                await self._shared_fetch_of_brokers(has_stale=broker_name in self._last_addresses)
                address = self._addresses.get(broker_name)
            except (MqError, TimeoutError):
                address = self._last_addresses.get(broker_name)
                if address is None:
                    raise
                self._addresses[broker_name] = address
        if address is None and broker_name in self._electing:
            raise BeingElected(broker_name)
        if address is None:
            raise MqError(
                Code.BROKER_NOT_EXIST,
                f"no name server knows broker {broker_name[:64]!r}: start it, or use another name",
            )
        return address

    async def replicas_of(self, broker_name: str) -> Mapping[int, str]:
        """Return the "host:port" of each replica of a broker, by replica id.

        The master has the id 0, which is missing while a master is being elected. Raises MqError
        with the code BROKER_NOT_EXIST if no name server knows the broker.
        """
        try:
            address = await self.address_of(broker_name)
        except BeingElected:
            return self._slaves[broker_name]
        return {MASTER_ID: address, **self._slaves.get(broker_name, {})}

    def _note(self, broker_name: str, addresses: Mapping[int, str]) -> None:
        """Note which broker must answer at these addresses, and those of its slaves."""
        for address in addresses.values():
            self._transport.expect(address, broker_name)
        self._slaves[broker_name] = {
            number: address for number, address in addresses.items() if number != MASTER_ID
        }

    def forget_address(self, broker_name: str, address: str) -> None:
        """Drop an address at which the broker did not answer, because its address may have changed.

        Do nothing if the cached address of the broker is already another one.
        """
        if self._addresses.get(broker_name) == address:
            del self._addresses[broker_name]

    def is_gone(self, broker_name: str) -> bool:
        """Return whether the last notice of a name server says that the broker is unregistered."""
        return broker_name in self._gone

    def learn(self, members: BrokerMembers) -> str | None:
        """Apply a notice of a name server about a broker.

        Return the former address of the master if the address has changed, or else None.

        If the notice has no master, the known address is kept until a call fails or another master
        is known. The reason is that the master may be missing at that name server only. When the
        master is back, routes that lack the broker are fetched again.
        """
        name, address = members.broker_name, members.addresses.get(0)
        if not self._epochs.believes(name, members.epoch, self._clock.monotonic_ms()):
            return None
        self._note(name, members.addresses)
        was_electing = name in self._electing
        self._electing.discard(name)
        if address is None and members.addresses:
            self._electing.add(name)
        known = self._addresses.get(name) or self._last_addresses.get(name)
        if address is not None:
            self._addresses[name] = self._last_addresses[name] = address
        if address != known or was_electing:
            self._brokers_stale_from_ms = 0
        is_back = address is not None and name in self._gone
        if members.addresses:
            self._gone.discard(name)
        else:
            self._gone.add(name)
        self._notice += 1
        noticed = self._noticed.setdefault(name, _Noticed())
        if address is not None:
            noticed.moved, noticed.addresses = self._notice, dict(members.addresses)
        elif known is not None:
            noticed.lost = self._notice
        if is_back:
            noticed.returned = self._notice
        return known if address is not None and address != known else None

    def _include_notices(self, cached: _CachedRoute) -> None:
        """Apply the notices since the last use of a route."""
        since, cached.notice = cached.notice, self._notice
        if since == self._notice:
            return
        for name, noticed in self._noticed.items():
            if names_broker(cached.route, name):
                if noticed.moved > since:
                    cached.route = with_addresses(cached.route, [name], {name: noticed.addresses})
                if noticed.lost > since:
                    cached.stale_from_ms = 0
            elif noticed.returned > since:
                cached.stale_from_ms = 0

    async def brokers(self) -> dict[str, str]:
        """Return the "host:port" of each broker's master, by broker name.

        Raises MqError with the code NAMESRV_UNREACHABLE if no name server answers.
        """
        if self._brokers and self._clock.monotonic_ms() < self._brokers_stale_from_ms:
            return self._brokers
        try:
            return await self._shared_fetch_of_brokers(has_stale=self._brokers is not None)
        except (MqError, TimeoutError):
            if self._brokers is None:
                raise
            return self._brokers

    async def _fetch_brokers(self) -> dict[str, str]:
        answer = await self._ask(GET_CLUSTER_INFO, GetClusterInfoRequest())
        outdated = self._outdated(answer.brokers)
        found = {b.broker_name: b.addresses[0] for b in answer.brokers if 0 in b.addresses}
        found |= {name: self._last_addresses[name] for name in outdated}
        self._electing = {b.broker_name for b in answer.brokers if b.addresses} - found.keys()
        for broker in answer.brokers:
            if broker.broker_name not in outdated:
                self._note(broker.broker_name, broker.addresses)
        self._addresses.update(found)
        self._brokers, self._last_addresses = found, dict(found)
        self._brokers_stale_from_ms = self._clock.monotonic_ms() + BROKERS_REFRESH_MS
        return found

    async def _shared_fetch_of_brokers(self, *, has_stale: bool) -> dict[str, str]:
        """Fetch the addresses of all brokers; concurrent callers share one request.

        When a broker becomes unavailable, all its consumers need the new address at the same time.
        """
        return await self._broker_flights.do("", self._fetch_brokers, has_stale=has_stale)

    async def _fetch(self, topic: str) -> TopicRoute:
        try:
            request = GetTopicRouteRequest(topic=topic)
            answer = await self._ask(GET_TOPIC_ROUTE, request, ask_all=topic in self._routes)
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST:
                raise
            if await self._may_come_back(topic):
                raise MqError(
                    Code.NAMESRV_UNREACHABLE, f"the brokers of topic {topic} are unavailable: retry"
                ) from None
            self.forget(topic)
            raise
        if len(self._routes) >= MAX_TOPICS:
            del self._routes[next(iter(self._routes))]
        self._routes.pop(topic, None)
        now_ms, outdated = self._clock.monotonic_ms(), self._outdated(answer.route.brokers)
        route = with_addresses(
            answer.route, outdated, {name: self._known(name) for name in outdated}
        )
        stale_from_ms = now_ms + REFRESH_MS
        self._routes[topic] = _CachedRoute(route, now_ms, stale_from_ms, now_ms, self._notice)
        for broker in route.brokers:
            self._note(broker.broker_name, broker.addresses)
            if 0 in broker.addresses:
                self._addresses[broker.broker_name] = broker.addresses[0]
                self._last_addresses[broker.broker_name] = broker.addresses[0]
        return route

    def _outdated(self, brokers: Iterable[BrokerData]) -> set[str]:
        """Return the names of brokers for which another name server reported a newer epoch."""
        now_ms = self._clock.monotonic_ms()
        behind = {
            data.broker_name
            for data in brokers
            if not self._epochs.believes(data.broker_name, data.epoch, now_ms)
        }
        return behind & self._last_addresses.keys()

    def _known(self, broker_name: str) -> dict[int, str]:
        return {MASTER_ID: self._last_addresses[broker_name], **self._slaves.get(broker_name, {})}

    async def _may_come_back(self, topic: str) -> bool:
        known = self._routes.get(topic)
        if known is None or self._clock.monotonic_ms() - known.fetched_ms >= EXPIRE_MS:
            return False
        try:
            found = await self._fetch_brokers()
        except MqError:
            return True
        return any(broker.broker_name not in found for broker in known.route.brokers)

    async def _ask(self, rpc: Rpc[Q, R], request: Q, *, ask_all: bool = False) -> R:
        """Return the answer of the first name server that answers.

        With `ask_all`, the next name server is also asked after TOPIC_NOT_EXIST, because a name
        server that has just started does not know any topic.
        """
        last: MqError | None = None
        absent: MqError | None = None
        places = await places_of(self._namesrvs)
        for namesrv in sorted(places, key=lambda each: self._failed.get(each, 0)):
            try:
                return await self._transport.call(namesrv, rpc, request, timeout_s=TIMEOUT_S)
            except MqError as error:
                if error.code is Code.TOPIC_NOT_EXIST:
                    if not ask_all:
                        raise
                    absent = error
                    continue
                last = error
                suppressed = self._log_throttle.allow(namesrv)
                if suppressed is not None:
                    structlog.get_logger().warning(
                        "namesrv_failed",
                        namesrv=namesrv,
                        rpc=rpc.method,
                        reason=error.message,
                        suppressed=suppressed,
                    )
                self._failed[namesrv] = next(self._failures)
        if absent is not None:
            raise absent
        self._silent_until_ms = self._clock.monotonic_ms() + RETRY_AFTER_MS
        raise MqError(
            Code.NAMESRV_UNREACHABLE,
            f"no name server answers: {last.message if last else 'none is configured'}",
        )
