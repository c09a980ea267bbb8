"""Routes as clients of the public protocol see them. Pure: no cache and no name server here.

Every queue is reached where the client reached this proxy: the endpoints that it dialled come back,
unless the operator advertises others. So NAT, port mappings and DNS names hold.

Differs from RocketMQ's proxy: a queue keeps its own id, also on a topic with unequal numbers of
readable and writable queues (there, ids are handed out anew, surplus queues first); brokers without
a master are left out of routes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aerobee.namesrv.v1.namesrv_pb2 import QueueData, TopicRoute
from apache.rocketmq.v2.definition_pb2 import (
    Address,
    AddressScheme,
    Assignment,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    MessageType,
    Permission,
    Resource,
)

from aerobee_proxy.cluster.route_cache import MESSAGE_TYPE_ATTRIBUTE, READABLE, WRITABLE
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2.errors import Refused

MAX_SEND_ROUTES = 10_000
ANY_QUEUE = -1  # in an assignment: whichever queue of the broker has messages

TYPES: dict[str, tuple[MessageType, ...]] = {
    "NORMAL": (MessageType.NORMAL,),
    "FIFO": (MessageType.FIFO,),
    "DELAY": (MessageType.DELAY,),
    "TRANSACTION": (MessageType.TRANSACTION,),
    "PRIORITY": (MessageType.PRIORITY,),
    "MIXED": (
        MessageType.NORMAL,
        MessageType.FIFO,
        MessageType.DELAY,
        MessageType.TRANSACTION,
    ),
}


@dataclass(frozen=True, slots=True, order=True)
class BrokerQueue:
    """A message queue of some topic. Ordered by broker name, then queue id."""

    broker_name: str
    queue_id: int


def accepted_types(route: TopicRoute) -> tuple[MessageType, ...]:
    """What the topic takes. A topic that does not say takes NORMAL."""
    for queue_data in route.queues:
        declared = queue_data.attributes.get(MESSAGE_TYPE_ATTRIBUTE, "")
        if declared:
            return TYPES.get(declared, TYPES["NORMAL"])
    return TYPES["NORMAL"]


def writable_queues(route: TopicRoute) -> list[BrokerQueue]:
    """Where messages may go, sorted. Empty: the topic is not writable anywhere."""
    return sorted(
        BrokerQueue(data.broker_name, queue_id)
        for data in _with_master(route)
        if data.permission & WRITABLE
        for queue_id in range(data.write_queue_count)
    )


@dataclass(frozen=True, slots=True)
class SendRoute:
    """What sending needs of a route: the queues that messages may go to, sorted, and the types
    that the topic takes."""

    queues: Sequence[BrokerQueue]
    accepted: tuple[MessageType, ...]


class SendRoutes:
    """The last of each topic, made anew when the route is another: a route lives for seconds, and
    thousands of messages go by it."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[TopicRoute, SendRoute]] = {}

    def of(self, topic: str, route: TopicRoute) -> SendRoute:
        known = self._made.get(topic)
        if known is not None and known[0] is route:
            return known[1]
        if len(self._made) >= MAX_SEND_ROUTES:
            self._made.clear()
        made = SendRoute(writable_queues(route), accepted_types(route))
        self._made[topic] = (route, made)
        return made


def queues_of_priority(queues: Sequence[BrokerQueue], priority: int) -> list[BrokerQueue]:
    """The queue of each broker that stands for a priority: queue 0 is the lowest, and beyond the
    last all are the highest. `queues` must be sorted."""
    of_broker: dict[str, list[BrokerQueue]] = {}
    for queue in queues:
        of_broker.setdefault(queue.broker_name, []).append(queue)
    return [own[min(priority, len(own) - 1)] for own in of_broker.values()]


def readable_brokers(route: TopicRoute) -> list[QueueData]:
    """The brokers that the topic can be read from, sorted by name."""
    found = [
        data
        for data in _with_master(route)
        if data.permission & READABLE and data.read_queue_count > 0
    ]
    return sorted(found, key=lambda data: data.broker_name)


def message_queues(route: TopicRoute, topic: Resource, endpoints: Endpoints) -> list[MessageQueue]:
    """The answer to QueryRoute, sorted by broker name and queue id."""
    types = accepted_types(route)
    return [
        MessageQueue(
            topic=topic,
            id=queue_id,
            permission=permission,
            broker=_broker(data.broker_name, endpoints),
            accept_message_types=types,
        )
        for data in sorted(_with_master(route), key=lambda data: data.broker_name)
        for queue_id, permission in enumerate(_permissions(data))
    ]


def assignments(
    route: TopicRoute, topic: Resource, endpoints: Endpoints, *, fifo: bool
) -> list[Assignment]:
    """The answer to QueryAssignment: the same for every member of a group.

    One queue of each broker that stands for all of them; for a FIFO group each queue by itself.
    Raises Refused FORBIDDEN when nothing is readable.
    """
    brokers = readable_brokers(route)
    if not brokers:
        raise Refused(
            Code.FORBIDDEN,
            f"no readable queue: topic {topic.name!r} has no read permission on any broker",
        )
    return [
        Assignment(
            message_queue=MessageQueue(
                topic=topic,
                id=queue_id,
                permission=Permission.READ_WRITE,
                broker=_broker(data.broker_name, endpoints),
            )
        )
        for data in brokers
        for queue_id in (range(data.read_queue_count) if fifo else (ANY_QUEUE,))
    ]


def endpoints_for(dialled: Endpoints, options: ProxyOptions, listen_port: int) -> Endpoints:
    """What a client is told to dial. Raises Refused ILLEGAL_ACCESS_POINT."""
    if options.advertised_endpoints:
        return parse_endpoints(options.advertised_endpoints)
    if not dialled.addresses:
        raise Refused(
            Code.ILLEGAL_ACCESS_POINT,
            "the request names no endpoints: put in the address that the client dials",
        )
    for address in dialled.addresses:
        if not address.host.strip() or not 0 < address.port <= 65_535:
            raise Refused(
                Code.ILLEGAL_ACCESS_POINT,
                f"{address.host[:64]!r}:{address.port} is no address: write host and port",
            )
    result = Endpoints()
    result.CopyFrom(dialled)
    if result.scheme == AddressScheme.ADDRESS_SCHEME_UNSPECIFIED:
        result.scheme = scheme_of(result.addresses[0].host)
    if not options.use_endpoint_port_from_request:
        for address in result.addresses:
            address.port = listen_port
    return result


def parse_endpoints(text: str) -> Endpoints:
    """Endpoints of "host:port;host:port", an IPv6 host in brackets."""
    addresses = []
    for part in filter(None, map(str.strip, text.split(";"))):
        host, _, port = part.rpartition(":")
        addresses.append(Address(host=host.strip("[]"), port=int(port)))
    return Endpoints(scheme=scheme_of(addresses[0].host), addresses=addresses)


def scheme_of(host: str) -> AddressScheme:
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return AddressScheme.DOMAIN_NAME
    return AddressScheme.IPv4 if address.version == 4 else AddressScheme.IPv6


def _with_master(route: TopicRoute) -> Sequence[QueueData]:
    masters = {broker.broker_name for broker in route.brokers if 0 in broker.addresses}
    return [data for data in route.queues if data.broker_name in masters]


def _permissions(data: QueueData) -> Iterator[Permission]:
    """Of queue 0, 1, …"""
    readable = data.read_queue_count if data.permission & READABLE else 0
    writable = data.write_queue_count if data.permission & WRITABLE else 0
    both = min(readable, writable)
    surplus = Permission.READ if readable > writable else Permission.WRITE
    none = 0 if max(readable, writable) else max(data.read_queue_count, data.write_queue_count, 1)
    yield from [Permission.READ_WRITE] * both
    yield from [surplus] * (max(readable, writable) - both)
    yield from [Permission.NONE] * none


def _broker(name: str, endpoints: Endpoints) -> Broker:
    return Broker(name=name, id=0, endpoints=endpoints)
