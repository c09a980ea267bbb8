"""Cache routes: the queues of a topic on each broker, and the addresses of the brokers.

Routes are refreshed every 30 s and on demand. While a broker is expected back, ClientInstance
refreshes them every 2 s, and less often with more than 20 topics.

The rules are those of RocketMQ's TopicPublishInfo. A producer writes to the queues of brokers that
are writable and have a master. A consumer reads every readable queue. A producer whose topic is
unknown uses the route of the default topic, and the broker then creates the topic.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.cluster.latency_fault import LatencyFault
from aerobee_client.cluster.namesrv import NamesrvClient
from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.runtime.clock import Clock
from aerobee_cluster.single_flight import SingleFlight
from aerobee_wire import rpcs
from aerobee_wire.queues.broker_members import NewestEpochs, with_addresses
from aerobee_wire.queues.choice import queue_of_group, queues_of_priority
from aerobee_wire.queues.group_queues import (
    GroupQueues,
    being_elected,
    order_topic_counts,
    writable_counts,
)
from aerobee_wire.route import MASTER_ID, READ
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import AUTO_CREATE_TOPIC, group_of

log = logging.getLogger(__name__)

PRIORITY_TOPIC = "PRIORITY"  # the value of a topic's attribute message.type
# The minimum time between two queries of a route, except by `refresh` and `refresh_now`.
MIN_REFRESH_INTERVAL_MS = 500
# A broker that disappears is expected back for this time, because it nearly always restarts.
EXPECTED_BACK_MS = 60_000

TopicRoute = namesrv_pb2.TopicRoute


def writable_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Return the queues that a producer may choose from, grouped by broker.

    Queues of brokers whose master is being elected are included only if all brokers elect one.
    """
    config = route.order_topic_config
    counts = order_topic_counts(config) if config else writable_counts(route)
    electing = being_elected(route)
    counts = {name: count for name, count in counts.items() if name not in electing} or counts
    return [
        MessageQueue(topic, broker_name, queue_id)
        for broker_name, count in counts.items()
        for queue_id in range(count)
    ]


def readable_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Return the queues that a group reads, sorted."""
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queues
        if data.permission & READ
        for queue_id in range(data.read_queue_count)
    )


def default_route(route: TopicRoute, queue_count: int) -> TopicRoute:
    """Return a copy of a route with at most `queue_count` queues on each broker.

    `route` is the route of the default topic, by which brokers create a topic at its first send.
    """
    copy = TopicRoute()
    copy.CopyFrom(route)
    for data in copy.queues:
        count = min(queue_count, data.read_queue_count)
        data.read_queue_count = data.write_queue_count = count
    return copy


class PublishInfo:
    """The queues of a topic that accept messages, chosen round robin from a random start.

    `group_queues` are the queues for message groups and selectors. `by_priority` is true if each
    queue of the topic represents a priority.
    """

    def __init__(
        self,
        queues: list[MessageQueue],
        *,
        is_default: bool = False,
        group_queues: GroupQueues[MessageQueue] | None = None,
        by_priority: bool = False,
    ) -> None:
        self.queues = queues
        self.is_default = is_default
        self.by_priority = by_priority
        self.one_of_each_broker = list({queue.broker_name: queue for queue in queues}.values())
        self._group_queues = group_queues
        self._of_priority: dict[tuple[MessageQueue, ...], PublishInfo] = {}
        self._next = random.randrange(len(queues)) if queues else 0

    def queues_in_order(self, now_ms: int) -> Sequence[MessageQueue]:
        """Return the sorted queues, including queues of brokers that have just disappeared.

        `now_ms` is the time of a monotonic clock.
        """
        return self.queues if self._group_queues is None else self._group_queues.at(now_ms)

    def queue_of_group(self, message: Message, now_ms: int) -> MessageQueue:
        """Return the queue for a message group or lite topic. The proxy chooses the same one."""
        queues = self.queues_in_order(now_ms)
        if self.by_priority:
            queues = queues_of_priority(queues, message.priority or 0)
        return queue_of_group(message.order_key, queues)

    def of_priority(self, priority: int | None) -> PublishInfo:
        """Return the queues of a priority. A message without a priority has the lowest one."""
        queues = queues_of_priority(self.queues, priority or 0)
        key = tuple(queues)
        info = self._of_priority.get(key)
        if info is None:
            info = self._of_priority[key] = PublishInfo(queues)
        return info

    def has_other(self, broker_name: str) -> bool:
        """Return whether there are queues of another broker than `broker_name`."""
        return len(self.one_of_each_broker) > 1 or (
            self.one_of_each_broker[0].broker_name != broker_name
        )

    def choose(
        self, avoid: str | None = None, fault: LatencyFault | None = None, now_ms: int = 0
    ) -> MessageQueue:
        """Return the next queue. Prefer another broker than `avoid`, and available brokers."""
        start = self._next
        self._next = (start + 1) % len(self.queues)
        if avoid is None and fault is None:
            return self.queues[start]
        turn = self.queues[start:] + self.queues[:start]
        if fault is not None:
            return fault.choose(turn, now_ms, avoid)
        return next((queue for queue in turn if queue.broker_name != avoid), turn[0])


@dataclass(slots=True)
class _Entry:
    route: TopicRoute
    is_default: bool = False
    publish: PublishInfo | None = None


@dataclass(slots=True, eq=False)
class RouteCache:
    """Caches routes by topic, and addresses by broker name.

    `default_queue_count` is the number of queues of a topic that the first send creates.
    `on_change` is called when a route is new or has changed. `expect` is called with an address
    and the name of the broker that must answer there.
    """

    namesrv: NamesrvClient
    clock: Clock
    default_queue_count: int = 4
    on_change: Callable[[], None] = lambda: None
    expect: Callable[[str, str], None] = lambda _address, _broker_name: None
    _entries: dict[str, _Entry] = field(default_factory=dict, init=False)
    _addresses: dict[str, dict[int, str]] = field(default_factory=dict, init=False)
    _asked_ms: dict[str, int] = field(default_factory=dict, init=False)
    _flights: SingleFlight[TopicRoute] = field(init=False)
    # The names of all brokers of the cluster; None if only brokers in routes are used.
    _cluster: set[str] | None = field(default=None, init=False)
    _group_queues: dict[str, GroupQueues[MessageQueue]] = field(default_factory=dict, init=False)
    # The monotonic time in ms at which a broker disappeared from a route, by broker name.
    _away_since_ms: dict[str, int] = field(default_factory=dict, init=False)
    _epochs: NewestEpochs = field(default_factory=NewestEpochs, init=False)

    def __post_init__(self) -> None:
        self._flights = SingleFlight(self.clock)

    def is_known(self, topic: str) -> bool:
        """Return whether `publish_info` can answer without a call to a name server."""
        entry = self._entries.get(topic)
        return entry is not None and not entry.is_default

    def forget(self, topic: str) -> None:
        self._entries.pop(topic, None)
        self._group_queues.pop(topic, None)

    def address_of(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """Return the "host:port" of a broker.

        Raises MqError with the code BROKER_NOT_EXIST if no route contains it.
        """
        address = self._addresses.get(broker_name, {}).get(broker_id)
        if address is None:
            raise MqError(
                Code.BROKER_NOT_EXIST,
                f"no route names a broker {broker_name!r} with id {broker_id}: it is down, has not "
                "registered with the name server yet, or its replicas elect a master",
                retryable=True,
            )
        return address

    def addresses_of(self, broker_name: str) -> Mapping[int, str]:
        """Return "host:port" by id for the replicas in the routes. A single broker has the id 0."""
        return self._addresses.get(broker_name, {})

    def reading_address_of(self, broker_name: str) -> str:
        """Return the address of the master, or of a slave if there is no master.

        Raises MqError like `address_of`.
        """
        known = self.addresses_of(broker_name)
        return self.address_of(broker_name, min(known, default=MASTER_ID))

    def learn(self, members: namesrv_pb2.BrokerMembers) -> str | None:
        """Apply a notice of a name server about a broker.

        Return the former address of the master if the address has changed. A master that has
        disappeared keeps its address until a call fails, because it may have disappeared only for
        that name server.
        """
        name, address = members.broker_name, members.addresses.get(MASTER_ID)
        if not self._epochs.believes(name, members.epoch, self.clock.monotonic_ms()):
            return None
        known = self._addresses.get(name)  # only brokers that this client uses
        if known is None or address is None:
            return None
        former = known.get(MASTER_ID, "")
        self._note(name, members.addresses)
        if former == address:
            return None
        for entry in self._entries.values():
            changed = with_addresses(entry.route, [name], self._addresses)
            if changed is not entry.route:
                entry.route, entry.publish = changed, None
        self.on_change()
        return former

    def _believe(self, brokers: Iterable[namesrv_pb2.BrokerData]) -> list[str]:
        """Apply addresses from a name server, unless another name server reported a newer epoch.

        Return the brokers whose addresses were not applied.
        """
        now_ms, outdated = self.clock.monotonic_ms(), []
        for data in brokers:
            name = data.broker_name
            if self._epochs.believes(name, data.epoch, now_ms) or name not in self._addresses:
                self._note(name, data.addresses)
            else:
                outdated.append(name)
        return outdated

    def _note(self, broker_name: str, addresses: Mapping[int, str]) -> None:
        self._addresses[broker_name] = dict(addresses)
        for address in addresses.values():
            self.expect(address, broker_name)

    async def refresh_broker(self, broker_name: str) -> None:
        """Fetch every route that contains the broker from a name server."""
        for topic, entry in list(self._entries.items()):
            if any(data.broker_name == broker_name for data in entry.route.brokers):
                await self.refresh_now(topic)

    def broker_at(self, address: str) -> str:
        """Return the name of the broker with this master address, or "" if no route contains it."""
        for name, addresses in self._addresses.items():
            if addresses.get(MASTER_ID) == address:
                return name
        return ""

    def linked_addresses(self) -> set[str]:
        """Return the addresses of masters, including brokers that are expected back.

        A name server that has just started may not know a live broker yet. That broker keeps the
        locks of this client only while the link to it is up.
        """
        expected = (self._addresses.get(name, {}).get(MASTER_ID) for name in self._expected())
        return self.master_addresses() | {address for address in expected if address}

    @property
    def topic_count(self) -> int:
        return len(self._entries)

    def master_addresses(self) -> set[str]:
        names = {
            data.broker_name for entry in self._entries.values() for data in entry.route.brokers
        } | (self._cluster or set())
        found = (self._addresses.get(name, {}).get(MASTER_ID) for name in names)
        return {address for address in found if address}

    def expects_broker(self) -> bool:
        """Return whether a broker disappeared from routes within the last EXPECTED_BACK_MS.

        A broker that is in the routes again no longer counts.
        """
        return bool(self._expected())

    def _expected(self) -> set[str]:
        since_ms = self.clock.monotonic_ms() - EXPECTED_BACK_MS
        return {name for name, away_ms in self._away_since_ms.items() if away_ms > since_ms}

    def _note_absent(self, before: TopicRoute, route: TopicRoute) -> None:
        names = {data.broker_name for data in route.brokers}
        for data in before.brokers:
            if data.broker_name not in names:
                self._away_since_ms[data.broker_name] = self.clock.monotonic_ms()
        for name in names & self._away_since_ms.keys():
            del self._away_since_ms[name]

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic from the cache, or else from a name server.

        Raises MqError with the code TOPIC_NOT_EXIST, or NamesrvUnreachable.
        """
        entry = self._entries.get(topic)
        if entry is not None and not entry.is_default:
            return entry.route
        return await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """Fetch a route from a name server now. Concurrent callers share one request."""
        return await self._flights.do(topic, partial(self._fetch, topic))

    async def close(self) -> None:
        """Cancel the requests in flight."""
        await self._flights.close()

    async def refresh_soon(self, topic: str) -> None:
        """Fetch a route, unless this was done within the last MIN_REFRESH_INTERVAL_MS.

        If no name server answers, the cached route stays.
        """
        if self._may_ask(topic):
            await self.refresh_now(topic)

    async def refresh_now(self, topic: str) -> None:
        """Fetch a route now. If no name server answers, the cached route stays."""
        try:
            await self.refresh(topic)
        except MqError as error:
            log.debug("route of %s not refreshed: %s", topic, error)

    async def follow_cluster(self) -> bool:
        """Use all brokers of the cluster from now on, even brokers that no route contains.

        Return False if no name server answers. Then nothing changes.
        """
        request = namesrv_pb2.GetClusterInfoRequest()
        try:
            response = await self.namesrv.call(rpcs.GET_CLUSTER_INFO, request)
        except MqError as error:
            log.debug("brokers of the cluster not refreshed: %s", error)
            return False
        self._believe(response.brokers)
        self._cluster = {data.broker_name for data in response.brokers}
        self.on_change()
        return True

    async def refresh_all(self) -> None:
        if self._cluster is not None:
            await self.follow_cluster()
        for topic in list(self._entries):
            await self.refresh_soon(topic)

    async def publish_info(self, topic: str) -> PublishInfo:
        """Return the queues of `topic` that accept messages.

        Raises MqError with the code TOPIC_NOT_EXIST or NO_PERMISSION (no writable queue), or
        NamesrvUnreachable.
        """
        entry = self._entries.get(topic)
        if entry is None or (entry.is_default and self._may_ask(topic)):
            entry = await self._publish_entry(topic)
        if entry.publish is None:
            entry.publish = self._new_publish_info(topic, entry)
        if not entry.publish.queues:
            raise MqError(
                Code.NO_PERMISSION,
                f"no broker takes messages of topic {topic!r} now: its queues are not writable or "
                "their master is down",
                retryable=True,
            )
        return entry.publish

    def _new_publish_info(self, topic: str, entry: _Entry) -> PublishInfo:
        group_queues = self._group_queues.get(topic)
        if group_queues is None:
            group_queues = GroupQueues(partial(MessageQueue, topic))
            self._group_queues[topic] = group_queues
        group_queues.update(entry.route, self.clock.monotonic_ms())
        types = {data.attributes.get("message.type") for data in entry.route.queues}
        return PublishInfo(
            writable_queues(topic, entry.route),
            is_default=entry.is_default,
            group_queues=group_queues,
            by_priority=PRIORITY_TOPIC in types and not entry.is_default,
        )

    def known_publish_info(self, topic: str) -> PublishInfo | None:
        """Return the result of `publish_info`, or None if it would call a name server or raise."""
        entry = self._entries.get(topic)
        if entry is None or (entry.is_default and self._may_ask(topic)):
            return None
        return entry.publish if entry.publish is not None and entry.publish.queues else None

    async def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted. Raises MqError like `route`."""
        return readable_queues(topic, await self.route(topic))

    def _may_ask(self, topic: str) -> bool:
        asked = self._asked_ms.get(topic, -MIN_REFRESH_INTERVAL_MS)
        return self.clock.monotonic_ms() - asked >= MIN_REFRESH_INTERVAL_MS

    async def _publish_entry(self, topic: str) -> _Entry:
        try:
            await self.refresh(topic)
        except MqError as error:
            if topic in self._entries:  # keep the cached route
                log.debug("route of %s not refreshed: %s", topic, error)
            elif error.code is Code.TOPIC_NOT_EXIST and group_of(topic) is None:
                await self._use_default_route(topic, error)
            else:
                raise
        return self._entries[topic]

    async def _use_default_route(self, topic: str, refusal: MqError) -> None:
        """Use the route of the default topic. `refusal` is the error for the topic itself."""
        try:
            route = await self.refresh(AUTO_CREATE_TOPIC)
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST:
                raise
            if refusal.retryable:  # its brokers are unavailable
                raise refusal from None
            if not await self._is_any_registered():
                reason = f"no broker is registered, so topic {topic!r} has no queues: start one"
                raise MqError(Code.TOPIC_NOT_EXIST, reason) from None
            raise MqError(
                Code.TOPIC_NOT_EXIST,
                f"topic {topic!r} does not exist and no broker creates topics by itself: run "
                f"`aerobee topic create {topic}`, or set autoCreateTopicEnable=true on the broker",
            ) from None
        narrowed = default_route(route, self.default_queue_count)
        self._entries[topic] = _Entry(narrowed, is_default=True)

    async def _is_any_registered(self) -> bool:
        request = namesrv_pb2.GetClusterInfoRequest()
        try:
            return bool((await self.namesrv.call(rpcs.GET_CLUSTER_INFO, request)).brokers)
        except MqError:
            return True  # unknown: no name server answers

    async def _fetch(self, topic: str) -> TopicRoute:
        self._asked_ms[topic] = self.clock.monotonic_ms()
        request = namesrv_pb2.GetTopicRouteRequest(topic=topic)
        response = await self.namesrv.call(rpcs.GET_TOPIC_ROUTE, request)
        outdated = self._believe(response.route.brokers)
        route = with_addresses(response.route, outdated, self._addresses)
        entry = self._entries.get(topic)
        if entry is None or entry.is_default or entry.route != route:
            self._entries[topic] = _Entry(route)
            if entry is not None and not entry.is_default:
                self._note_absent(entry.route, route)
            self.on_change()
        return route
