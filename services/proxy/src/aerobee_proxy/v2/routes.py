"""Convert routes of the name server into routes for clients of the public protocol.

Clients reach every queue through this proxy. A route contains the endpoints that the client
dialled, unless the operator advertises other endpoints. Thus NAT, port mappings and DNS names keep
working. This module does no I/O and has no cache.

Differences from RocketMQ's proxy:

- Queues keep their ids even if a topic has unequal numbers of readable and writable queues.
  RocketMQ's proxy renumbers the queues in that case, with the surplus queues first.
- Routes leave out a broker if none of its members is registered. Routes contain a broker whose
  master is being elected.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import TypeAlias

from aerobee.namesrv.v1.namesrv_pb2 import QueueData, TopicRoute
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import (
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
    accepted_types,
    readable_brokers,
    with_members,
)
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2.status import Refused
from aerobee_wire.route import READ, WRITE

# A function from the endpoints that a client dialled to the endpoints that it must dial. See
# `endpoints_for`.
EndpointsOf: TypeAlias = Callable[[Endpoints], Endpoints]

ANY_QUEUE = -1  # in an assignment: any queue of the broker


def message_queues(route: TopicRoute, topic: Resource, endpoints: Endpoints) -> list[MessageQueue]:
    """Return the queues of a topic for QueryRoute, sorted by broker name and queue id."""
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
    """Return the queues to consume for QueryAssignment, the same for every member of a group.

    With `fifo`, the result lists each readable queue. Otherwise, one entry for each broker stands
    for all its queues. Raises Refused with the code FORBIDDEN if no queue is readable.
    """
    readable = readable_brokers(route)
    if not readable:
        raise Refused(
            Code.FORBIDDEN,
            f"no readable queue: no broker lets topic {topic.name!r} be read; give it the "
            "permission to read with `aerobee topic update`",
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
    """Return the endpoints that a client must dial to reach this proxy.

    `listen_port` returns the port of this proxy. Call it only after the port is bound. Raises
    Refused with the code ILLEGAL_ACCESS_POINT if the dialled endpoints are missing or invalid.
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
    """Parse endpoints in the form "host:port;host:port", with an IPv6 host in brackets."""
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
    """Yield the permission of each queue of a topic on one broker, starting with queue 0."""
    readable = data.read_queue_count if data.permission & READ else 0
    writable = data.write_queue_count if data.permission & WRITE else 0
    both = min(readable, writable)
    surplus = Permission.READ if readable > writable else Permission.WRITE
    none = 0 if max(readable, writable) else max(data.read_queue_count, data.write_queue_count, 1)
    yield from [Permission.READ_WRITE] * both
    yield from [surplus] * (max(readable, writable) - both)
    yield from [Permission.NONE] * none


def _broker(name: str, endpoints: Endpoints) -> Broker:
    return Broker(name=name, id=0, endpoints=endpoints)
