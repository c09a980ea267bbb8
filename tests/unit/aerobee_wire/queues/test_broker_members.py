"""What is made of name servers that do not agree on the members of a broker."""

from __future__ import annotations

from aerobee.namesrv.v1.namesrv_pb2 import BrokerData, QueueData, TopicRoute

from aerobee_wire.queues.broker_members import (
    FORGET_MS,
    NewestEpochs,
    names_broker,
    with_addresses,
)

ROUTE = TopicRoute(
    queues=[QueueData(broker_name="a", read_queue_count=4)],
    brokers=[
        BrokerData(broker_name="a", addresses={0: "h:1", 1: "h:2"}),
        BrokerData(broker_name="b", addresses={0: "h:3"}),
    ],
)


def test_an_epoch_below_the_newest_is_not_believed_until_that_is_no_longer_reported() -> None:
    epochs = NewestEpochs()
    assert epochs.believes("a", 2, 0)
    assert not epochs.believes("a", 1, 10)
    assert epochs.believes("b", 1, 10), "another broker"
    assert epochs.believes("a", 2, FORGET_MS - 1)
    assert not epochs.believes("a", 1, FORGET_MS + 1)
    assert epochs.believes("a", 1, 2 * FORGET_MS), "the group has begun anew"
    assert epochs.believes("a", 1, 2 * FORGET_MS)


def test_a_broker_without_replicas_is_always_believed() -> None:
    epochs = NewestEpochs()
    assert all(epochs.believes("a", 0, now_ms) for now_ms in range(3))


def test_a_route_gets_the_new_addresses_and_keeps_the_rest() -> None:
    changed = with_addresses(ROUTE, ["a"], {"a": {0: "h:2"}})
    assert [dict(data.addresses) for data in changed.brokers] == [{0: "h:2"}, {0: "h:3"}]
    assert changed.queues == ROUTE.queues
    assert dict(ROUTE.brokers[0].addresses) == {0: "h:1", 1: "h:2"}, "others may hold it"


def test_a_route_without_a_change_stays_the_same_object() -> None:
    assert with_addresses(ROUTE, ["c"], {"c": {0: "h:2"}}) is ROUTE
    assert with_addresses(ROUTE, ["b"], {"b": {0: "h:3"}}) is ROUTE
    assert names_broker(ROUTE, "b") and not names_broker(ROUTE, "c")
