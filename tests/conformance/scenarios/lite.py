"""Scenarios of lite topics, rows L1 to L20. Each consumer is a lite push consumer, in order.

What no SDK offers a call for is tested by the protocol itself, in
tests/unit/aerobee_proxy/v2/test_lite_clients.py.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

from aerobee_client import AdminClient
from conformance.runner import LEASE_S, scenario
from support.clock.polling import until_sync
from support.proxy.official_sdk import SdkError
from support.proxy.sdk_cluster import (
    INVISIBLE_S,
    SOON_S,
    Cluster,
    Commands,
    bodies_of,
    delivered,
    letters,
    receive,
)

LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 42902
QUOTA_CODES = (LITE_SUBSCRIPTION_QUOTA_EXCEEDED, 429)  # Node.js has a number of its own
NOTIFIED_S = 20.0
HELD_S = 20  # longer than a busy machine takes to receive something else
EXPIRED_S = 150.0  # a minute, until that is looked for, and what a busy machine adds
ALL_OF_THEM_S = 35.0  # SDKs synchronise their whole subscription every 30 s
MANY = 500  # of which RocketMQ 5.5.0 delivers 495 within 70 s
TEN_THOUSAND = 10_000
# Where a group begins, and which of the messages 0 to 9 of a lite topic it then gets: one that has
# no offset yet, and one that consumed them all.
EVERYTHING, NOTHING = range(10), range(0)
BEGINNINGS: dict[str, tuple[list[Any], range, range]] = {
    "last": (["policy", "LAST"], EVERYTHING, NOTHING),
    "min": (["policy", "MIN"], EVERYTHING, EVERYTHING),
    "max": (["policy", "MAX"], NOTHING, NOTHING),
    "offset": (["offset", 4], range(4, 10), range(4, 10)),
    "beyond": (["offset", 99], NOTHING, NOTHING),
    "tail": (["tail", 3], range(7, 10), range(7, 10)),
}


def lite_group(cluster: Cluster, parent: str, **fields: Any) -> str:
    """A new group that is bound to the parent; `fields`: those of any group, and attributes with
    their dots as double underscores."""
    attributes = {
        name.replace("__", "."): fields.pop(name) for name in [*fields] if name.startswith("lite__")
    }
    return cluster.group(attributes={"lite.bind.topic": parent, **attributes}, **fields)


def consumer(
    sdk: Commands, group: str, parent: str, *names: str, id: str = "c", **how: Any
) -> None:
    """One that subscribes to these lite topics."""
    sdk.do("lite", id=id, group=group, topic=parent, **how)
    sdk.do("subscribe", id=id, lite=names)


def lite_simple(sdk: Commands, group: str, parent: str, *names: str) -> None:
    """A simple consumer "c" that subscribes to these lite topics: at first Python's takes its quota
    for 0, because it does not wait for its settings."""
    sdk.do("lite_simple", id="c", group=group, topic=parent, await_s=5)

    def subscribed() -> bool:
        sdk.do("subscribe", id="c", lite=names)
        return True

    until_sync(subscribed, "settings", timeout_s=SOON_S, retry_on=(SdkError,))


class Sender:
    """Sends to lite topics of a parent, and knows what."""

    def __init__(self, sdk: Commands, parent: str) -> None:
        self._sdk, self._parent = sdk, parent
        self.sent = defaultdict[str, list[str]](list)
        sdk.do("producer", id="p", topics=[parent])

    def send(self, name: str, body: str = "") -> str:
        body = body or f"{name} {len(self.sent[name])}"
        self._sdk.do("send", id="p", topic=self._parent, body=body, lite=name)
        self.sent[name].append(body)
        return body

    def round(self, names: Iterable[str], rounds: int = 1) -> None:
        """One to each, that many times."""
        names = [*names]
        for _ in range(rounds):
            for name in names:
                self.send(name)


def by_name(events: Iterable[Any]) -> dict[str, list[str]]:
    """The bodies of each lite topic, as they came."""
    found = defaultdict[str, list[str]](list)
    for event in events:
        found[event["lite"]].append(event["body"])
    return found


def until_delivered(sdk: Commands, body: str, id: str = "c") -> None:
    until_sync(lambda: body in bodies_of(sdk.events("delivered", id)), body, timeout_s=SOON_S)


def until_settled(cluster: Cluster, parent: str, group: str) -> None:
    """Until all that was delivered is acknowledged too."""
    with AdminClient(cluster.namesrv.address) as admin:

        def settled() -> bool:
            held = admin.list_lite_topics(parent, group=group).topics
            return not any(each.lag for each in held)

        until_sync(settled, "settled", timeout_s=SOON_S)


@scenario(needs="lite", lasting=True)
def l17_an_idle_lite_topic_expires(cluster: Cluster, sdk: Commands) -> None:
    """With what nobody consumed; its subscriber gets what is sent later."""
    parent = cluster.topic("LITE", attributes={"lite.topic.expiration": "1"})
    sender, group = Sender(sdk, parent), lite_group(cluster, parent)
    sender.round("a", 3)
    consumer(sdk, group, parent, "b", id="early")
    with AdminClient(cluster.namesrv.address) as admin:
        until_sync(
            lambda: admin.list_lite_topics(parent).total == 0, "none is left", timeout_s=EXPIRED_S
        )
    sender.round("b", 2)
    assert by_name(delivered(sdk, "early", 2)) == {"b": sender.sent["b"]}
    consumer(sdk, group, parent, "a", id="late")
    until_delivered(sdk, sender.send("a"), "late")
    assert by_name(sdk.events("delivered", "late")) == {"a": ["a 3"]}


@scenario(needs="lite", lasting=True)
def l6_who_was_evicted_does_not_take_it_back(cluster: Cluster, sdk: Commands) -> None:
    """Also by the synchronisation of its whole subscription, and whatever it was told."""
    parent = cluster.topic("LITE")
    group = lite_group(cluster, parent, lite__sub__model="Exclusive")
    consumer(sdk, group, parent, "a", "b", id="former")
    consumer(sdk, group, parent, "a", id="newest")
    time.sleep(ALL_OF_THEM_S)
    sender = Sender(sdk, parent)
    sender.round(("a", "b"), 3)
    until_delivered(sdk, "a 2", "newest")
    until_delivered(sdk, "b 2", "former")
    assert by_name(sdk.events("delivered", "newest")) == {"a": sender.sent["a"]}
    assert by_name(sdk.events("delivered", "former")) == {"b": sender.sent["b"]}


@scenario(needs="lite", lasting=True)
def l18_a_wildcard_group_gets_every_lite_topic(cluster: Cluster, sdk: Commands) -> None:
    """Once its client synchronised its subscription, which is empty."""
    parent = cluster.topic("LITE")
    group = lite_group(cluster, parent, lite__sub__wildcard="true")
    consumer(sdk, group, parent)
    sender = Sender(sdk, parent)
    sender.round("abc", 5)
    assert by_name(delivered(sdk, "c", 15)) == sender.sent


@scenario(needs="lite", lasting=True)
def l15_ten_thousand_lite_topics_of_one_client(cluster: Cluster, sdk: Commands) -> None:
    each_is_delivered_once(cluster, sdk, TEN_THOUSAND)


@scenario(needs="lite")
def l16_the_lease_is_renewed_while_the_listener_runs(cluster: Cluster, sdk: Commands) -> None:
    """What came again would be delivered while the listener sleeps."""
    parent = cluster.topic("LITE")
    consumer(sdk, lite_group(cluster, parent), parent, "a", sleep_s=LEASE_S + 5)
    Sender(sdk, parent).send("a")
    delivered(sdk, "c", 1)
    time.sleep(LEASE_S + 7)
    assert len(sdk.events("delivered", "c")) == 1


@scenario(needs="lite")
def l15_many_lite_topics_of_one_client(cluster: Cluster, sdk: Commands) -> None:
    each_is_delivered_once(cluster, sdk, MANY)


def each_is_delivered_once(cluster: Cluster, sdk: Commands, count: int) -> None:
    parent = cluster.topic("LITE")
    names = [f"device-{number}" for number in range(count)]
    group = lite_group(cluster, parent, lite__sub__client__quota=str(2 * count))
    sdk.do("lite", id="c", group=group, topic=parent)
    for first in range(0, count, 1_000):
        sdk.do("subscribe", id="c", lite=names[first : first + 1_000])
    sender = Sender(sdk, parent)
    sender.round(names)
    assert by_name(delivered(sdk, "c", count)) == sender.sent


@scenario(needs="lite")
def l1_a_client_gets_what_it_subscribes_to(cluster: Cluster, sdk: Commands) -> None:
    parent = cluster.topic("LITE")
    consumer(sdk, lite_group(cluster, parent), parent, "a", "c")
    sender = Sender(sdk, parent)
    sender.round("ab", 2)
    for event in delivered(sdk, "c", 2):
        assert (event["topic"], event["lite"], event["attempt"]) == (parent, "a", 1)
    sdk.do("unsubscribe", id="c", lite=["a"])
    sender.send("a")
    until_delivered(sdk, sender.send("c"))
    assert by_name(sdk.events("delivered", "c"))["a"] == sender.sent["a"][:2]
    sdk.do("subscribe", id="c", lite=["a"])
    until_delivered(sdk, "a 2")
    assert by_name(sdk.events("delivered", "c")) == {"a": sender.sent["a"], "c": ["c 0"]}


@scenario(needs="lite")
def l4_each_lite_topic_comes_in_order(cluster: Cluster, sdk: Commands) -> None:
    parent = cluster.topic("LITE")
    consumer(sdk, lite_group(cluster, parent), parent, *"abcd")
    sender = Sender(sdk, parent)
    sender.round("abcd", 50)
    assert by_name(delivered(sdk, "c", 200)) == sender.sent


@scenario(needs="lite")
def l5_two_clients_of_a_group_share_and_another_group_gets_all(
    cluster: Cluster, sdk: Commands
) -> None:
    parent = cluster.topic("LITE")
    group, names = lite_group(cluster, parent), [f"n{number}" for number in range(6)]
    for member in ("one", "two"):
        consumer(sdk, group, parent, *names, id=member)
    consumer(sdk, lite_group(cluster, parent), parent, *names, id="other")
    sender = Sender(sdk, parent)
    sender.round(names, 10)
    assert by_name(delivered(sdk, "other", 60)) == sender.sent

    def shared() -> list[Any]:
        events = [event for member in ("one", "two") for event in sdk.events("delivered", member)]
        return sorted(events, key=lambda event: event["at"])  # both are in one process

    until_sync(lambda: len(shared()) >= 60, "all messages", timeout_s=SOON_S)
    assert {name: sorted(bodies) for name, bodies in by_name(shared()).items()} == sender.sent


@scenario(needs="lite")
def l6_the_newest_client_of_an_exclusive_group_takes_over(cluster: Cluster, sdk: Commands) -> None:
    parent = cluster.topic("LITE")
    group = lite_group(cluster, parent, lite__sub__model="Exclusive")
    sender = Sender(sdk, parent)
    consumer(sdk, group, parent, "a", "b", id="former")
    until_delivered(sdk, sender.send("a"), "former")
    consumer(sdk, group, parent, "a", id="newest")
    sender.round("ab")
    until_delivered(sdk, "a 1", "newest")
    until_delivered(sdk, "b 0", "former")
    assert by_name(sdk.events("delivered", "former")) == {"a": ["a 0"], "b": ["b 0"]}
    assert by_name(sdk.events("delivered", "newest")) == {"a": ["a 1"]}


@scenario(needs="lite set")
def l6_the_former_client_is_told(cluster: Cluster, sdk: Commands) -> None:
    """And nobody evicts itself."""
    parent = cluster.topic("LITE")
    group = lite_group(cluster, parent, lite__sub__model="Exclusive")
    consumer(sdk, group, parent, "a", "b", id="former")
    consumer(sdk, group, parent, "a", id="newest")
    until_sync(lambda: sdk.do("subscribed", id="former") == ["b"], "told", timeout_s=NOTIFIED_S)
    assert sdk.do("subscribed", id="newest") == ["a"]


@scenario(needs="lite")
def l7_a_client_has_a_quota(cluster: Cluster, sdk: Commands) -> None:
    parent = cluster.topic("LITE")
    group = lite_group(cluster, parent, lite__sub__client__quota="3")
    consumer(sdk, group, parent, "a", "b", "c")
    with pytest.raises(SdkError, check=lambda error: error.code in QUOTA_CODES):
        sdk.do("subscribe", id="c", lite=["d"])
    sdk.do("unsubscribe", id="c", lite=["a"])
    sdk.do("subscribe", id="c", lite=["d"])


@scenario(needs="lite offset")
def l8_where_a_new_group_begins(cluster: Cluster, sdk: Commands) -> None:
    """At a time too, which RocketMQ ignores."""
    parent = cluster.topic("LITE")
    sender = Sender(sdk, parent)
    sender.round(BEGINNINGS, 10)
    sender.round(["timestamp"], 4)
    time.sleep(0.05)
    since_ms = int(time.time() * 1_000)
    sender.round(["timestamp"], 6)
    sdk.do("lite", id="c", group=lite_group(cluster, parent), topic=parent)
    for name, (option, _, _) in BEGINNINGS.items():
        sdk.do("subscribe", id="c", lite=[name], offset=option)
    sdk.do("subscribe", id="c", lite=["timestamp"], offset=["timestamp", since_ms])
    wanted = {name: fresh for name, (_, fresh, _) in BEGINNINGS.items()}
    check_beginnings(sdk, sender, {**wanted, "timestamp": range(4, 10)})


@scenario(needs="lite offset")
def l8_where_a_group_begins_that_consumed_all(cluster: Cluster, sdk: Commands) -> None:
    parent = cluster.topic("LITE")
    sender, group = Sender(sdk, parent), lite_group(cluster, parent)
    consumer(sdk, group, parent, *BEGINNINGS, id="before")
    sender.round(BEGINNINGS, 10)
    delivered(sdk, "before", 10 * len(BEGINNINGS))
    until_settled(cluster, parent, group)
    sdk.do("unsubscribe", id="before", lite=[*BEGINNINGS])
    sdk.do("lite", id="c", group=group, topic=parent)
    for name, (option, _, _) in BEGINNINGS.items():
        sdk.do("subscribe", id="c", lite=[name], offset=option)
    check_beginnings(sdk, sender, {name: then for name, (_, _, then) in BEGINNINGS.items()})


def check_beginnings(sdk: Commands, sender: Sender, wanted: dict[str, range]) -> None:
    """That it gets those messages of each lite topic, then a new one, and nothing else."""
    sender.round(wanted)
    for name in wanted:
        until_delivered(sdk, sender.sent[name][-1])
    assert by_name(sdk.events("delivered", "c")) == {
        name: [sender.sent[name][number] for number in (*numbers, 10)]
        for name, numbers in wanted.items()
    }


@scenario(needs="lite")
def l9_a_new_client_goes_on_where_the_last_one_ended(cluster: Cluster, sdk: Commands) -> None:
    parent = cluster.topic("LITE")
    sender, group = Sender(sdk, parent), lite_group(cluster, parent)
    consumer(sdk, group, parent, "a")
    sender.round("a", 5)
    delivered(sdk, "c", 5)
    until_settled(cluster, parent, group)
    sdk.do("close", id="c")
    sender.round("a", 5)
    consumer(sdk, group, parent, "a", id="next")
    until_delivered(sdk, "a 9", "next")
    # Java's takes messages until its last long poll ends, and may consume them.
    found = [body for id in ("c", "next") for body in bodies_of(sdk.events("delivered", id))]
    assert [*dict.fromkeys(found)] == sender.sent["a"]
    assert bodies_of(sdk.events("delivered", "c"))[:5] == sender.sent["a"][:5]


@scenario(needs="lite")
def l11_a_message_that_always_fails_is_dead_lettered(cluster: Cluster, sdk: Commands) -> None:
    """With its lite topic, and those behind it are delivered."""
    parent = cluster.topic("LITE")
    group = lite_group(cluster, parent, retry_max_times=1)
    sender = Sender(sdk, parent)
    consumer(sdk, group, parent, "a", "b", id="f", succeed_from=99, only=["bad"])
    sender.send("a", "bad")
    delivered(sdk, "f", 1)  # so that no SDK has both at once: Go's would not wait for the retry
    sender.round("ab")
    until_delivered(sdk, "a 1", "f")
    until_delivered(sdk, "b 0", "f")
    found = by_name(sdk.events("delivered", "f"))
    assert found == {"a": ["bad", "bad", "a 1"], "b": ["b 0"]}
    (letter,) = letters(cluster, sdk, group)
    assert (letter["body"], letter["lite"]) == ("bad", "a")


@scenario(needs="lite simple")
def l10_redelivery_begins_with_the_first_that_was_not_acknowledged(
    cluster: Cluster, sdk: Commands
) -> None:
    """In place, each with its own attempt; other lite topics go on meanwhile."""
    parent = cluster.topic("LITE")
    lite_simple(sdk, lite_group(cluster, parent), parent, "a", "b")
    sender = Sender(sdk, parent)
    sender.round("a", 3)
    held: list[Any] = until_sync(
        lambda: sdk.do("receive", id="c", most=16, invisible_s=HELD_S), "a batch", timeout_s=SOON_S
    )
    assert by_name(held) == {"a": sender.sent["a"]}
    sender.round("ab")
    assert by_name(receive(sdk, 1)) == {"b": sender.sent["b"]}
    sdk.do("ack", id="c", message_id=held[0]["message_id"])
    again = receive(sdk, 3)
    assert by_name(again) == {"a": sender.sent["a"][1:]}
    assert [message["attempt"] for message in again] == [2, 2, 1]


@scenario(needs="lite simple")
def l20_a_lite_simple_consumer_is_served(cluster: Cluster, sdk: Commands) -> None:
    parent = cluster.topic("LITE")
    lite_simple(sdk, lite_group(cluster, parent), parent, "a", "b")
    sender = Sender(sdk, parent)
    sender.round("abc", 20)
    found = receive(sdk, 40)
    assert by_name(found) == {"a": sender.sent["a"], "b": sender.sent["b"]}
    assert sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S) == []
