"""Scenarios of a proxy that asks for credentials."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.runner import SECRET, scenario
from support.proxy.official_sdk import Sdk, SdkError
from support.proxy.sdk_cluster import (
    ALL,
    Cluster,
    bodies_of,
    delivered,
    receive,
    send,
    simple,
)

UNAUTHORIZED = 40100


Make = Callable[[tuple[str, str]], Sdk]


@scenario(credentials=True)
def f25_the_right_secret_is_accepted(cluster: Cluster, make: Make) -> None:
    topic = cluster.topic()
    with make(("app", SECRET)) as sdk:
        sent = send(sdk, topic, 3)
        simple(sdk, cluster.group(), topic)
        assert sorted(bodies_of(receive(sdk, 3))) == sorted(sent)


@scenario(credentials=True, needs="push")
def f25_the_right_secret_is_accepted_of_a_push_consumer(cluster: Cluster, make: Make) -> None:
    topic = cluster.topic()
    with make(("app", SECRET)) as sdk:
        sdk.do("push", id="f", group=cluster.group(), subscriptions={topic: ALL})
        sent = send(sdk, topic, 3)
        assert sorted(bodies_of(delivered(sdk, "f", 3))) == sorted(sent)


@scenario(
    *({"given": given} for given in (("app", "wrong-horse"), ("other", SECRET), ("", ""))),
    credentials=True,
)
def f25_a_wrong_secret_is_refused(cluster: Cluster, make: Make, given: tuple[str, str]) -> None:
    """Node.js' SDK does not even start; Python's does, and can do nothing."""
    topic = cluster.topic()

    def consume(sdk: Sdk) -> None:
        simple(sdk, cluster.group(), topic)
        receive(sdk, 1)

    with make(given) as sdk:
        with pytest.raises(SdkError):
            send(sdk, topic, 1)
        with pytest.raises(SdkError):
            consume(sdk)


@scenario(credentials=True)
def f25_a_user_without_pub_cannot_send(cluster: Cluster, make: Make) -> None:
    topic = cluster.topic()
    with make(("app", SECRET)) as app, make(("reader", SECRET)) as reader:
        with pytest.raises(SdkError):
            send(reader, topic, 1)
        sent = send(app, topic, 1)
        simple(reader, cluster.group(), topic)
        assert bodies_of(receive(reader, 1)) == sent


@scenario(credentials=True)
def f25_a_user_is_told_what_is_lacking(cluster: Cluster, make: Make) -> None:
    with make(("reader", SECRET)) as reader:
        with pytest.raises(SdkError, match="lacks Pub on") as caught:
            send(reader, cluster.topic(), 1)
        assert caught.value.code in (UNAUTHORIZED, None)  # Go's SDK tells the text only
