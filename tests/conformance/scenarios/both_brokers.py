"""Scenarios that need two brokers and two proxies, where nothing is killed."""

from __future__ import annotations

from collections import defaultdict

from conformance.runner import scenario
from support.proxy.sdk_cluster import Cluster, Commands, bodies_of, receive, send, simple

MESSAGE_GROUPS, OF_EACH = 12, 4


@scenario(brokers="two")
def c1_messages_of_both_brokers_arrive(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic)
    sent = send(sdk, topic, 40)
    assert cluster.takers(topic) == {"broker-a", "broker-b"}
    assert sorted(bodies_of(receive(sdk, 40))) == sorted(sent)


@scenario(brokers="two")
def c1_message_groups_are_in_order_on_both_brokers(cluster: Cluster, sdk: Commands) -> None:
    """One message of a group is out at a time, and the next after its acknowledgement."""
    topic = cluster.topic("FIFO")
    simple(sdk, cluster.group(), topic)
    sdk.do("producer", id="p", topics=[topic])
    for number in range(OF_EACH):
        for name in range(MESSAGE_GROUPS):
            sdk.do("send", id="p", topic=topic, body=str(number), group=f"g{name}")
    assert cluster.takers(topic) == {"broker-a", "broker-b"}
    found = defaultdict[str, list[str]](list)
    for message in receive(sdk, MESSAGE_GROUPS * OF_EACH):
        found[message["group"]].append(message["body"])
    wanted = [str(number) for number in range(OF_EACH)]
    assert found == {f"g{name}": wanted for name in range(MESSAGE_GROUPS)}


@scenario(brokers="two", both_proxies=True)
def c3_two_proxies_are_endpoints_of_one_client(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    sent = send(sdk, topic, 10)
    simple(sdk, cluster.group(), topic)
    assert sorted(bodies_of(receive(sdk, 10))) == sorted(sent)
