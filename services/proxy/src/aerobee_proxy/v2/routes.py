"""Routes as clients of the public protocol see them. Pure: without a cache or a name server.

Every queue is reached through this proxy. Its endpoints are those that the client dialled, unless
the operator advertises others. Thus NAT, port mappings and DNS names keep working.

Differences from RocketMQ's proxy:

- A queue keeps its own id, also in a topic with unequal numbers of readable and writable queues.
  RocketMQ's proxy renumbers queues, surplus queues first.
- Brokers without a registered member are left out of routes. Brokers whose master is being elected
  are not.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import TypeAlias

from aerobee.namesrv.v1.namesrv_pb2 import QueueData, TopicRoute
from apache.rocketmq.v2.definition_pb2 import (
    Address,
    AddressScheme,
    Assignment,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    Permission,
    Resource,
)

from aerobee_proxy.cluster.topic_route import (
    READABLE,
    WRITABLE,
    accepted_types,
    readable_brokers,
    with_members,
)
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2.status import Refused

# Endpoints that a client dialled → endpoints that it must dial. See `endpoints_for`.
EndpointsOf: TypeAlias = Callable[[Endpoints], Endpoints]

ANY_QUEUE = -1  # in an assignment: any queue of the broker


def message_queues(route: TopicRoute, topic: Resource, endpoints: Endpoints) -> list[MessageQueue]:
    """Return the answer to QueryRoute, sorted by broker name and queue id."""
    types = accepted_types(route)
    return [
        MessageQueue(
            topic=topic,
            id=queue_id,
            permission=permission,
            broker=_broker(data.broker_name, endpoints),
            accept_message_types=types,
        )
        for data in sorted(with_members(route), key=lambda data: data.broker_name)
        for queue_id, permission in enumerate(_permissions(data))
    ]


def assignments(
    route: TopicRoute, topic: Resource, endpoints: Endpoints, *, fifo: bool
) -> list[Assignment]:
    """Return the answer to QueryAssignment. It is the same for every member of a group.

    If the order matters, it lists each queue. Otherwise, one queue of each broker stands for all of
    its queues. Raises Refused: FORBIDDEN when no queue is readable.
    """
    readable = readable_brokers(route)
    if not readable:
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
        for data in sorted(readable, key=lambda data: data.broker_name)
        for queue_id in (range(data.read_queue_count) if fifo else (ANY_QUEUE,))
    ]


def endpoints_for(
    options: ProxyOptions, listen_port: Callable[[], int], dialled: Endpoints
) -> Endpoints:
    """Return the endpoints that a client must dial.

    `listen_port` returns the port of this proxy; it is known after the port is bound. Raises
    Refused: ILLEGAL_ACCESS_POINT.
    """
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
                f"invalid address {address.host[:64]!r}:{address.port}: write host and port",
            )
    result = Endpoints()
    result.CopyFrom(dialled)
    if result.scheme == AddressScheme.ADDRESS_SCHEME_UNSPECIFIED:
        result.scheme = scheme_of(result.addresses[0].host)
    if not options.use_endpoint_port_from_request:
        for address in result.addresses:
            address.port = listen_port()
    return result


def parse_endpoints(text: str) -> Endpoints:
    """Return the endpoints of "host:port;host:port"; an IPv6 host is in brackets."""
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


def _permissions(data: QueueData) -> Iterator[Permission]:
    """Yield the permission of each queue, from queue 0 on."""
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
