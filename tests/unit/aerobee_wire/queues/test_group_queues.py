"""The queues of message groups while brokers come and go."""

from __future__ import annotations

from typing import NamedTuple

from aerobee.namesrv.v1.namesrv_pb2 import BrokerData, QueueData, TopicRoute

from aerobee_wire.queues.group_queues import (
    AWAY_MS,
    GroupQueues,
    being_elected,
    writable_counts,
)
from aerobee_wire.route import READ, READ_WRITE


class Queue(NamedTuple):
    broker_name: str
    queue_id: int


def data(name: str, count: int, permission: int = READ_WRITE) -> QueueData:
    return QueueData(broker_name=name, write_queue_count=count, permission=permission)


def route(*queues: QueueData, masters: str = "abc", order: str = "") -> TopicRoute:
    """A route in which the brokers of these names have a master, and all a slave."""
    brokers = [
        BrokerData(broker_name=q.broker_name, addresses=dict.fromkeys((0, 1), "h:1"))
        if q.broker_name in masters
        else BrokerData(broker_name=q.broker_name, addresses={1: "h:1"})
        for q in queues
    ]
    return TopicRoute(queues=queues, brokers=brokers, order_topic_config=order)


def of(**counts: int) -> list[Queue]:
    return [Queue(name, queue_id) for name, count in counts.items() for queue_id in range(count)]


def test_writable_queues_are_sorted_and_of_brokers_that_have_or_elect_a_master() -> None:
    found = route(data("b", 1), data("a", 2), data("c", 4, READ), data("d", 4))
    found.queues.append(data("e", 1))
    assert list(writable_counts(found).items()) == [("a", 2), ("b", 1), ("d", 4)]
    assert being_elected(found) == {"d"}


def test_a_broker_that_left_keeps_its_message_groups_for_a_while() -> None:
    queues = GroupQueues(Queue)
    queues.update(route(data("b", 2), data("a", 2)), 0)
    assert queues.at(0) == of(a=2, b=2)
    queues.update(route(data("b", 2)), 1_000)
    queues.update(route(data("b", 2)), 30_000)
    assert queues.at(1_000 + AWAY_MS - 1) == of(a=2, b=2)
    assert queues.at(1_000 + AWAY_MS) == of(b=2)
    queues.update(route(data("b", 2), data("a", 3)), 100_000)
    assert queues.at(100_000) == of(a=3, b=2)


def test_a_broker_that_came_back_may_leave_again() -> None:
    queues = GroupQueues(Queue)
    both, alone = route(data("b", 2), data("a", 2)), route(data("b", 2))
    for now_ms, found in ((0, both), (1_000, alone), (2_000, both), (50_000, alone)):
        queues.update(found, now_ms)
    assert queues.at(50_000 + AWAY_MS - 1) == of(a=2, b=2)
    assert queues.at(50_000 + AWAY_MS) == of(b=2)


def test_a_broker_that_elects_a_master_keeps_its_message_groups() -> None:
    queues = GroupQueues(Queue)
    both = (data("b", 2), data("a", 2))
    queues.update(route(*both), 0)
    queues.update(route(*both, masters="b"), 0)
    assert queues.at(0) == of(a=2, b=2)
    assert queues.at(10 * AWAY_MS) == of(a=2, b=2)


def test_message_groups_of_a_broker_that_elects_its_first_master_are_its_own() -> None:
    queues = GroupQueues(Queue)
    queues.update(route(data("b", 2), data("a", 2), masters="b"), 0)
    assert queues.at(0) == of(a=2, b=2)


def test_a_broker_that_drains_loses_its_message_groups_at_once() -> None:
    queues = GroupQueues(Queue)
    queues.update(route(data("b", 2), data("a", 2)), 0)
    queues.update(route(data("b", 2), data("a", 2, READ)), 0)
    assert queues.at(0) == of(b=2)


def test_an_order_topic_config_is_the_list() -> None:
    queues = GroupQueues(Queue)
    queues.update(route(data("a", 8), order="b:2;a:1"), 0)
    assert queues.at(10 * AWAY_MS) == of(a=1, b=2)
