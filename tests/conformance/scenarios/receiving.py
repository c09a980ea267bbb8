"""Scenarios of simple consumers: receive, filters, priorities."""

from __future__ import annotations

import pytest

from aerobee_client import Message, Producer
from aerobee_wire.compression import SYS_FLAGS
from conformance.runner import scenario
from support.clock.polling import until_sync
from support.console.seen import until_a_consumer_is_shown
from support.proxy.official_sdk import SdkError, raises_sdk_code
from support.proxy.sdk_cluster import (
    ALL,
    INVISIBLE_S,
    SOON_S,
    Cluster,
    Commands,
    bodies_of,
    delivered,
    receive,
    send,
    simple,
)

ILLEGAL_FILTER_EXPRESSION = 40010


@scenario()
def f4_an_empty_receive_is_no_error(cluster: Cluster, sdk: Commands) -> None:
    simple(sdk, cluster.group(), cluster.topic())
    assert sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S) == []


@scenario()
def f8_a_receive_returns_at_most_32_messages(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic)
    sent = send(sdk, topic, 100)
    found: list[str] = []

    def all_received() -> bool:
        batch = sdk.do("receive", id="c", most=50, invisible_s=60)
        assert len(batch) <= 32
        for message in batch:
            sdk.do("ack", id="c", message_id=message["message_id"])
        found.extend(bodies_of(batch))
        return len(found) >= len(sent)

    until_sync(all_received, "all messages", timeout_s=SOON_S)
    assert sorted(found) == sorted(sent)


@scenario()
def f3_what_the_python_client_compressed_is_read(cluster: Cluster, sdk: Commands) -> None:
    """The public protocol knows gzip only: the proxy inflates. The console shows the consumer."""
    topic, group = cluster.topic(), cluster.group()
    simple(sdk, group, topic)
    bodies = {method: f"{method} " * 2_000 for method in SYS_FLAGS}
    for method, body in bodies.items():
        with Producer(namesrv=cluster.namesrv.address, compression=method) as producer:
            producer.send(Message(topic, body.encode()))
    assert sorted(bodies_of(receive(sdk, len(bodies)))) == sorted(bodies.values())
    until_a_consumer_is_shown(cluster.namesrv.address, group)


@scenario(*({"expression": text} for text in ("A||B", " A || B ", "A||||B")))
def f19_a_tag_expression_filters(cluster: Cluster, sdk: Commands, expression: str) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic, ("TAG", expression))
    sdk.do("producer", id="p", topics=[topic])
    for tag in ("A", "C", "a", "B"):
        sdk.do("send", id="p", topic=topic, body=tag, tag=tag)
    assert sorted(bodies_of(receive(sdk, 2))) == ["A", "B"]


@scenario()
def f19_tags_of_equal_hash_are_distinguished(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic, ("TAG", "BBBB"))
    sdk.do("producer", id="p", topics=[topic])
    for tag in ("AaAa", "BBBB"):
        sdk.do("send", id="p", topic=topic, body=tag, tag=tag)
    assert bodies_of(receive(sdk, 1)) == ["BBBB"]


@scenario(
    {"condition": "price > 20", "bodies": ["30"]},
    {"condition": "TAGS IN ('A') AND price BETWEEN 5 AND 20", "bodies": ["10"]},
    {"condition": "region IS NULL", "bodies": ["10"]},
)
def f20_an_sql92_expression_filters(
    cluster: Cluster, sdk: Commands, condition: str, bodies: list[str]
) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic, ("SQL", condition))
    sdk.do("producer", id="p", topics=[topic])
    sdk.do("send", id="p", topic=topic, body="10", tag="A", properties={"price": "10"})
    sdk.do(
        "send", id="p", topic=topic, body="30", tag="A", properties={"price": "30", "region": "eu"}
    )
    assert bodies_of(receive(sdk, 1)) == bodies


@scenario()
def f20_an_illegal_sql92_expression_is_refused(cluster: Cluster, sdk: Commands) -> None:
    simple(sdk, cluster.group(), cluster.topic(), ("SQL", "price >"))
    with raises_sdk_code(ILLEGAL_FILTER_EXPRESSION):
        sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S)


@scenario(needs="push")
def f21_two_members_of_a_group_share_the_messages(cluster: Cluster, sdk: Commands) -> None:
    topic, group = cluster.topic(), cluster.group()
    for member in ("one", "two"):
        sdk.do("push", id=member, group=group, subscriptions={topic: ALL})
    sent = send(sdk, topic, 100)

    def found() -> list[str]:
        return bodies_of([m for member in ("one", "two") for m in sdk.events("delivered", member)])

    until_sync(lambda: len(found()) >= 100, "all messages", timeout_s=SOON_S)
    assert sorted(found()) == sorted(sent)


@scenario()
def f21_two_simple_consumers_of_a_group_share_the_messages(cluster: Cluster, sdk: Commands) -> None:
    topic, group = cluster.topic(), cluster.group()
    for member in ("one", "two"):
        sdk.do("simple", id=member, group=group, subscriptions={topic: ALL}, await_s=5)
    sent = send(sdk, topic, 20)
    found: list[str] = []

    def all_received() -> bool:
        for member in ("one", "two"):
            for message in sdk.do("receive", id=member, most=3, invisible_s=60):
                sdk.do("ack", id=member, message_id=message["message_id"])
                found.append(message["body"])
        return len(found) >= len(sent)

    until_sync(all_received, "all messages", timeout_s=SOON_S)
    assert sorted(found) == sorted(sent)


@scenario(needs="push")
def f22_every_group_gets_every_message(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    for group in ("one", "two"):
        sdk.do("push", id=group, group=cluster.group(), subscriptions={topic: ALL})
    sent = send(sdk, topic, 20)
    for group in ("one", "two"):
        assert sorted(bodies_of(delivered(sdk, group, 20))) == sorted(sent)


@scenario()
def f22_every_group_of_simple_consumers_gets_every_message(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    sent = send(sdk, topic, 20)
    for _ in range(2):
        simple(sdk, cluster.group(), topic)
        assert sorted(bodies_of(receive(sdk, 20))) == sorted(sent)


@scenario(needs="priority", brokers="one")
def f27_a_higher_priority_comes_first(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic("PRIORITY", queues=10)
    sdk.do("producer", id="p", topics=[topic])
    priorities = [3, 1, 9, 5, 7, 2, 8, 6, 4]  # 0 is no priority to Node.js' SDK
    for priority in priorities:
        sdk.do("send", id="p", topic=topic, body=str(priority), priority=priority)
    simple(sdk, cluster.group(), topic)
    found = receive(sdk, 9, most=4)
    assert bodies_of(found) == [str(priority) for priority in sorted(priorities, reverse=True)]
    # Go's SDK tells none.
    assert all(str(message["priority"] or message["body"]) == message["body"] for message in found)
    with pytest.raises(SdkError):
        sdk.do("send", id="p", topic=topic, body="no priority")
