"""Scenarios of push consumers: retries, dead letters, message groups in order."""

from __future__ import annotations

from aerobee.broker.v1 import admin_pb2

from conformance.runner import scenario
from support.clock.polling import until_sync
from support.proxy.sdk_cluster import (
    ALL,
    RETRY_DELAY_S,
    SOON_S,
    Cluster,
    Commands,
    bodies_of,
    dead_letters,
    delivered,
    reasons,
    receive,
    send,
    simple,
)

CLOCK_S = 0.2  # by which the SDK may see a delivery later than the broker made it


@scenario(needs="push")
def f9_a_listener_gets_every_message_once(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    sdk.do("push", id="c", group=cluster.group(), subscriptions={topic: ALL})
    sent = send(sdk, topic, 10)
    assert sorted(bodies_of(delivered(sdk, "c", 10))) == sorted(sent)


@scenario(needs="push")
def f10_a_failed_message_is_redelivered(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    sdk.do("push", id="c", group=cluster.group(), subscriptions={topic: ALL}, succeed_from=2)
    send(sdk, topic, 1)
    first, again = delivered(sdk, "c", 2)
    assert (first["attempt"], again["attempt"]) == (1, 2)
    # Not before its group's retry delay, which Node.js' SDK does not ask for.
    assert again["at"] - first["at"] >= RETRY_DELAY_S - CLOCK_S


@scenario(needs="push")
def f10_the_waits_of_an_exponential_retry_policy_grow(cluster: Cluster, sdk: Commands) -> None:
    retry = admin_pb2.ExponentialRetry(initial_ms=500, max_ms=60_000, multiplier=4)
    group = cluster.group(exponential_retry=retry, retry_delays_ms=[], retry_max_times=3)
    topic = cluster.topic()
    sdk.do("push", id="c", group=group, subscriptions={topic: ALL}, succeed_from=3)
    send(sdk, topic, 1)
    at = [event["at"] for event in delivered(sdk, "c", 3)]
    assert at[1] - at[0] >= 0.5 - CLOCK_S
    assert at[2] - at[1] >= 2 - CLOCK_S


@scenario(needs="push")
def f11_a_message_that_always_fails_is_dead_lettered(cluster: Cluster, sdk: Commands) -> None:
    topic, group = cluster.topic(), cluster.group(retry_max_times=2)
    sdk.do("push", id="f", group=group, subscriptions={topic: ALL}, succeed_from=99)
    (body,) = send(sdk, topic, 1)
    delivered(sdk, "f", 3)
    assert dead_letters(cluster, sdk, group) == [body]
    assert [event["attempt"] for event in sdk.events("delivered", "f")] == [1, 2, 3]
    ((reason, description),) = reasons(cluster, group)
    # The SDK had shortened its last lease, because the listener failed.
    assert reason == "ConsumeFailed"
    assert "delivery attempt 3" in description and "client" in description


BECAUSE = ("CardStolen", "in Köln: 100 %")


@scenario(needs="push reason")
def f11_a_listener_gives_the_reason_of_a_dead_letter(cluster: Cluster, sdk: Commands) -> None:
    topic, group = cluster.topic(), cluster.group(retry_max_times=1)
    subscriptions = {topic: ALL}
    sdk.do(
        "push", id="f", group=group, subscriptions=subscriptions, succeed_from=99, because=BECAUSE
    )
    (body,) = send(sdk, topic, 1)
    assert dead_letters(cluster, sdk, group) == [body]
    assert reasons(cluster, group) == [BECAUSE]


@scenario(needs="reason")
def f11_a_simple_consumer_gives_the_reason_of_a_dead_letter(
    cluster: Cluster, sdk: Commands
) -> None:
    topic, group = cluster.topic(), cluster.group(retry_max_times=0)
    simple(sdk, group, topic)
    (body,) = send(sdk, topic, 1)
    (message,) = receive(sdk, 1, ack=False, most=1)
    sdk.do("change", id="c", message_id=message["message_id"], invisible_s=1, because=BECAUSE)
    assert dead_letters(cluster, sdk, group) == [body]
    assert reasons(cluster, group) == [BECAUSE]


@scenario({"groups": 1}, {"groups": 3}, needs="push")
def f12_messages_of_a_message_group_come_in_order(
    cluster: Cluster, sdk: Commands, groups: int
) -> None:
    topic, group = cluster.topic("FIFO"), cluster.group()
    sdk.do("push", id="c", group=group, subscriptions={topic: ALL})
    sdk.do("producer", id="p", topics=[topic])
    for number in range(20):
        sdk.do("send", id="p", topic=topic, body=str(number), group=f"g{number % groups}")
    delivered(sdk, "c", 20)
    for name in range(groups):
        own = [
            int(event["body"])
            for event in sdk.events("delivered", "c")
            if event["group"] == f"g{name}"
        ]
        assert own == list(range(name, 20, groups))


def ordered_with_failures(cluster: Cluster, sdk: Commands, *others: str) -> list[str]:
    """The bodies as the listener got them: of 0 to 4; 1 and 3 fail at their first delivery.
    `others`: topics that the consumer subscribes to as well."""
    topic, group = cluster.topic("FIFO"), cluster.group()
    subscriptions, only = dict.fromkeys((topic, *others), ALL), ["1", "3"]
    sdk.do("push", id="c", group=group, subscriptions=subscriptions, succeed_from=2, only=only)
    sdk.do("producer", id="p", topics=[topic])
    for number in range(5):
        sdk.do("send", id="p", topic=topic, body=str(number), group="g")
    return bodies_of(delivered(sdk, "c", 7))


@scenario(needs="push")
def f12_a_failed_message_is_retried_in_order(cluster: Cluster, sdk: Commands) -> None:
    assert ordered_with_failures(cluster, sdk) == ["0", "1", "1", "2", "3", "3", "4"]


@scenario(needs="push")
def f12_order_holds_beside_a_topic_without_one(cluster: Cluster, sdk: Commands) -> None:
    """The SDK consumes side by side: the broker gives it one message of a message group."""
    found = ordered_with_failures(cluster, sdk, cluster.topic("NORMAL"))
    assert found == ["0", "1", "1", "2", "3", "3", "4"]


@scenario(needs="push")
def f12_first_deliveries_are_in_order_while_some_fail(cluster: Cluster, sdk: Commands) -> None:
    """And none is lost: what holds also where an SDK does not wait for a retry."""
    found = ordered_with_failures(cluster, sdk)
    assert list(dict.fromkeys(found)) == ["0", "1", "2", "3", "4"]
    assert sorted(found) == ["0", "1", "1", "2", "3", "3", "4"]


@scenario(needs="push")
def f13_after_a_dead_letter_the_next_message_comes(cluster: Cluster, sdk: Commands) -> None:
    topic, group = cluster.topic("FIFO"), cluster.group(consume_message_orderly=True)
    subscriptions = {topic: ALL}
    sdk.do("push", id="f", group=group, subscriptions=subscriptions, succeed_from=99, only=["bad"])
    sdk.do("producer", id="p", topics=[topic])
    sdk.do("send", id="p", topic=topic, body="bad", group="g")
    delivered(sdk, "f", 1)  # so that no SDK has both at once: Go's would not wait for the retry
    sdk.do("send", id="p", topic=topic, body="next", group="g")
    until_sync(
        lambda: "next" in bodies_of(sdk.events("delivered", "f")), "the next", timeout_s=SOON_S
    )
    assert bodies_of(sdk.events("delivered", "f"))[:3] == ["bad"] * 3  # all its attempts
    assert dead_letters(cluster, sdk, group) == ["bad"]
    ((reason, description),) = reasons(cluster, group)
    assert reason in ("ForwardedByClient", "ConsumeFailed") and "client" in description
