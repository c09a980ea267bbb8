"""Scenarios that take longest, because they wait for leases and delivery times."""

from __future__ import annotations

import time

from conformance.runner import LEASE_S, scenario
from support.proxy.official_sdk import raises_sdk_code
from support.proxy.sdk_cluster import (
    ALL,
    INVISIBLE_S,
    Cluster,
    Commands,
    bodies_of,
    delivered,
    receive,
    send,
    simple,
)

INVALID_RECEIPT_HANDLE = 40013


@scenario()
def f3_messages_are_received_unchanged_and_once(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic, ("TAG", "a"))
    sdk.do("producer", id="p", topics=[topic])
    sent = {
        sdk.do(
            "send", id="p", topic=topic, body=f"b{n} 😀", tag="a", keys="k", properties={"x": "1"}
        )["message_id"]: f"b{n} 😀"
        for n in range(10)
    }
    messages = receive(sdk, 10)
    assert {m["message_id"]: m["body"] for m in messages} == sent
    for message in messages:
        assert (message["tag"], message["keys"], message["attempt"]) == ("a", ["k"], 1)
        assert message["properties"]["x"] == "1" and not message["corrupted"]
    # Twice as long as they were invisible for.
    until = time.monotonic() + 2 * INVISIBLE_S
    while time.monotonic() < until:
        assert sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S) == []


@scenario(needs="push")
def f9_the_lease_is_renewed_while_the_listener_runs(cluster: Cluster, sdk: Commands) -> None:
    """What came again would be delivered while the listener sleeps."""
    topic = cluster.topic()
    sleep_s = LEASE_S + 5
    sdk.do("push", id="c", group=cluster.group(), subscriptions={topic: ALL}, sleep_s=sleep_s)
    send(sdk, topic, 1)
    delivered(sdk, "c", 1)
    time.sleep(sleep_s + 2)
    assert len(sdk.events("delivered", "c")) == 1


@scenario(needs="change")
def f6_a_changed_invisible_duration_holds(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic)
    (body,) = send(sdk, topic, 1)
    (message,) = receive(sdk, 1, ack=False, most=1)
    sdk.do("change", id="c", message_id=message["message_id"], invisible_s=20)
    until = time.monotonic() + INVISIBLE_S + 2
    while time.monotonic() < until:
        assert sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S) == []
    sdk.do("ack", id="c", message_id=message["message_id"])
    sdk.do("send", id="p", topic=topic, body="after")
    assert body not in bodies_of(receive(sdk, 1))


@scenario()
def f7_an_ack_of_an_expired_lease_is_refused(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic)
    send(sdk, topic, 1)
    (message,) = receive(sdk, 1, ack=False, most=1)
    time.sleep(INVISIBLE_S + 1)
    with raises_sdk_code(INVALID_RECEIPT_HANDLE):
        sdk.do("ack", id="c", message_id=message["message_id"])
    (again,) = receive(sdk, 1)
    assert again["message_id"] == message["message_id"]


@scenario()
def f14_redelivery_starts_at_the_first_unacked_message(cluster: Cluster, sdk: Commands) -> None:
    topic, group = cluster.topic("FIFO"), cluster.group(consume_message_orderly=True)
    simple(sdk, group, topic)
    sent = send(sdk, topic, 3, group="g")
    first = receive(sdk, 3, ack=False, most=3)
    assert bodies_of(first) == sent
    for message in first[1:]:
        sdk.do("ack", id="c", message_id=message["message_id"])
    assert bodies_of(receive(sdk, 3, most=3)) == sent


@scenario()
def f5_an_unacked_message_is_redelivered(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic)
    send(sdk, topic, 1)
    asked_at = time.time()
    (first,) = receive(sdk, 1, ack=False, most=1)
    (again,) = receive(sdk, 1, most=1)
    assert (again["message_id"], again["attempt"]) == (first["message_id"], 2)
    assert again["at"] - asked_at >= INVISIBLE_S


@scenario()
def f15_a_delayed_message_is_delivered_at_its_time(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic("DELAY")
    simple(sdk, cluster.group(), topic)
    sdk.do("producer", id="p", topics=[topic])
    deliver_at = int(time.time()) + 12  # no delay level
    sdk.do("send", id="p", topic=topic, body="later", deliver_at=deliver_at)
    sdk.do("send", id="p", topic=topic, body="now", deliver_at=int(time.time()) - 20)
    now, later = receive(sdk, 2)
    assert (now["body"], later["body"]) == ("now", "later")
    assert now["at"] < deliver_at <= later["at"]
