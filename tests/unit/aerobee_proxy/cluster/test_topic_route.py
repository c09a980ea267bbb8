"""Queues and message types of a topic's route."""

from __future__ import annotations

import pytest
from aerobee.namesrv.v1.namesrv_pb2 import TopicRoute

from aerobee_proxy.cluster.topic_route import (
    DELAY,
    FIFO,
    LITE,
    NORMAL,
    TRANSACTION,
    BrokerQueue,
    MessageTypeConflict,
    accepted_types,
    check_type,
    writable_queues,
)
from support.proxy.routes import queue_data, topic_route

MIXED = (NORMAL, FIFO, DELAY, TRANSACTION)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("", ("NORMAL",)),
        ("UNSPECIFIED", MIXED),
        ("NORMAL", ("NORMAL",)),
        ("FIFO", ("FIFO",)),
        ("DELAY", ("DELAY",)),
        ("TRANSACTION", ("TRANSACTION",)),
        ("PRIORITY", ("PRIORITY",)),
        ("MIXED", MIXED),
    ],
)
def test_accepted_types(declared: str, expected: tuple[str, ...]) -> None:
    """SDKs refuse to send to a topic that accepts the type UNSPECIFIED: it accepts any other."""
    assert accepted_types(topic_route(queue_data("a", kind=declared))) == expected


@pytest.mark.parametrize(
    ("message_type", "accepted"),
    [(FIFO, [NORMAL]), (NORMAL, [FIFO]), (DELAY, [TRANSACTION]), (LITE, MIXED)],
)
def test_message_type_conflict(message_type: str, accepted: list[str]) -> None:
    with pytest.raises(MessageTypeConflict):
        check_type(message_type, accepted, "orders")


@pytest.mark.parametrize("message_type", MIXED)
def test_mixed_retry_and_dead_letter_topics_accept_every_type(message_type: str) -> None:
    check_type(message_type, MIXED, "orders")
    check_type(message_type, [NORMAL], "%DLQ%billing")
    check_type(message_type, [NORMAL], "%RETRY%billing")


def test_writable_queues_are_sorted_and_of_registered_brokers() -> None:
    found = topic_route(
        queue_data("b", write=1), queue_data("a", write=2), queue_data("c", permission=4)
    )
    assert writable_queues(found) == [BrokerQueue("a", 0), BrokerQueue("a", 1), BrokerQueue("b", 0)]
    assert writable_queues(topic_route(queue_data("a", write=1), masters=False)) == [
        BrokerQueue("a", 0)
    ]
    assert writable_queues(TopicRoute(queues=[queue_data("a")])) == []
