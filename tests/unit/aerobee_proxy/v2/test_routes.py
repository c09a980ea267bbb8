"""Routes and assignments as clients see them."""

from __future__ import annotations

from functools import partial

import pytest
from aerobee.namesrv.v1.namesrv_pb2 import TopicRoute
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import (
    Address,
    AddressScheme,
    Code,
    Endpoints,
    MessageType,
    Permission,
    Resource,
)

from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2.routes import assignments, endpoints_for, message_queues, parse_endpoints
from support.proxy.harness import refused
from support.proxy.routes import queue_data, topic_route

TOPIC = Resource(resource_namespace="eu", name="orders")
DIALLED = Endpoints(
    scheme=AddressScheme.DOMAIN_NAME, addresses=[Address(host="mq.example", port=18081)]
)
OPTIONS = ProxyOptions()


def queues_of(route: TopicRoute) -> list[tuple[str, int, str]]:
    return [
        (queue.broker.name, queue.id, Permission.Name(queue.permission))
        for queue in message_queues(route, TOPIC, DIALLED)
    ]


def test_queue_has_every_field_that_sdks_dereference() -> None:
    """Broker with name, id 0 and endpoints; permission; types; the client's topic."""
    for queue in message_queues(topic_route(queue_data("a")), TOPIC, DIALLED):
        assert queue.topic == TOPIC
        assert (queue.broker.name, queue.broker.id) == ("a", 0)
        assert queue.broker.endpoints == DIALLED
        assert queue.permission == Permission.READ_WRITE
        assert list(queue.accept_message_types) == [MessageType.NORMAL]


def test_queues_are_sorted_and_queue_0_is_readable_and_writable() -> None:
    """The Node SDK uses queue 0 only."""
    assert queues_of(topic_route(queue_data("b"), queue_data("a"))) == [
        ("a", 0, "READ_WRITE"),
        ("a", 1, "READ_WRITE"),
        ("b", 0, "READ_WRITE"),
        ("b", 1, "READ_WRITE"),
    ]


@pytest.mark.parametrize(
    ("read", "write", "permission", "expected"),
    [
        (2, 1, 6, ["READ_WRITE", "READ"]),
        (1, 3, 6, ["READ_WRITE", "WRITE", "WRITE"]),
        (2, 2, 4, ["READ", "READ"]),
        (2, 2, 2, ["WRITE", "WRITE"]),
        (2, 3, 0, ["NONE", "NONE", "NONE"]),
        (0, 0, 6, ["NONE"]),
    ],
)
def test_permissions_of_queues(read: int, write: int, permission: int, expected: list[str]) -> None:
    found = queues_of(topic_route(queue_data("a", read, write, permission)))
    assert [name for _, _, name in found] == expected
    assert [queue_id for _, queue_id, _ in found] == list(range(len(expected)))


def test_brokers_of_which_nobody_is_registered_are_left_out() -> None:
    assert queues_of(TopicRoute(queues=[queue_data("a")])) == []


def test_brokers_whose_master_is_being_elected_stay() -> None:
    assert len(queues_of(topic_route(queue_data("a", 2, 2), masters=False))) == 2


def test_assignment_has_one_queue_for_each_broker() -> None:
    route = topic_route(queue_data("b"), queue_data("a"), queue_data("c", permission=2))
    found = [a.message_queue for a in assignments(route, TOPIC, DIALLED, fifo=False)]
    assert [(queue.broker.name, queue.id) for queue in found] == [("a", -1), ("b", -1)]
    assert all(queue.topic == TOPIC and queue.broker.endpoints == DIALLED for queue in found)
    assert all(queue.permission == Permission.READ_WRITE for queue in found)


def test_assignments_of_a_fifo_group() -> None:
    found = assignments(topic_route(queue_data("a", read=3)), TOPIC, DIALLED, fifo=True)
    assert [assignment.message_queue.id for assignment in found] == [0, 1, 2]


def test_assignments_are_the_same_at_every_call() -> None:
    """The Go and Rust SDKs key their work by the whole message queue."""
    a, b = queue_data("a"), queue_data("b")
    found, again = (
        assignments(route, TOPIC, DIALLED, fifo=False)
        for route in (topic_route(a, b), topic_route(b, a))
    )
    assert found == again


def test_assignment_without_a_readable_queue() -> None:
    """StatusCode table: QueryAssignment × FORBIDDEN."""
    write_only = topic_route(queue_data("a", permission=2))
    for fifo in (False, True):
        refused(Code.FORBIDDEN, partial(assignments, fifo=fifo), write_only, TOPIC, DIALLED)


def test_dialled_endpoints_come_back() -> None:
    """With a mapped port."""
    assert endpoints_for(OPTIONS, lambda: 8081, DIALLED) == DIALLED


def test_endpoints_with_the_proxys_port() -> None:
    options = ProxyOptions(use_endpoint_port_from_request=False)
    assert endpoints_for(options, lambda: 8081, DIALLED).addresses[0].port == 8081
    assert DIALLED.addresses[0].port == 18081


def test_advertised_endpoints_win() -> None:
    options = ProxyOptions(advertised_endpoints="10.0.0.1:8081;10.0.0.2:8082")
    for dialled in (DIALLED, Endpoints()):
        answer = endpoints_for(options, lambda: 8081, dialled)
        assert answer.scheme == AddressScheme.IPv4
        found = [(a.host, a.port) for a in answer.addresses]
        assert found == [("10.0.0.1", 8081), ("10.0.0.2", 8082)]


@pytest.mark.parametrize(
    ("host", "scheme"),
    [
        ("127.0.0.1", AddressScheme.IPv4),
        ("::1", AddressScheme.IPv6),
        ("mq", AddressScheme.DOMAIN_NAME),
    ],
)
def test_missing_scheme_is_inferred(host: str, scheme: AddressScheme) -> None:
    """The Python SDK connects to no endpoint with scheme 0."""
    dialled = Endpoints(addresses=[Address(host=host, port=1)])
    assert endpoints_for(OPTIONS, lambda: 8081, dialled).scheme == scheme


@pytest.mark.parametrize(
    "dialled",
    [
        Endpoints(),
        Endpoints(scheme=AddressScheme.IPv4),
        Endpoints(addresses=[Address(host=" ", port=1)]),
        Endpoints(addresses=[Address(host="h", port=0)]),
        Endpoints(addresses=[Address(host="h", port=65_536)]),
        Endpoints(addresses=[Address(host="h", port=-1)]),
    ],
)
def test_illegal_access_point(dialled: Endpoints) -> None:
    """StatusCode table: QueryRoute, QueryAssignment × ILLEGAL_ACCESS_POINT."""
    refused(Code.ILLEGAL_ACCESS_POINT, endpoints_for, OPTIONS, lambda: 8081, dialled)


def test_ipv6_is_parsed_with_and_without_brackets() -> None:
    for text in ("[::1]:8081", "::1:8081"):
        assert parse_endpoints(text).addresses[0] == Address(host="::1", port=8081)
