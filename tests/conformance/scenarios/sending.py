"""Scenarios of producers: normal messages, their limits and types, delivery times, recall."""

from __future__ import annotations

import time
from typing import Any

import pytest

from conformance.runner import scenario
from support.proxy.official_sdk import LARGEST_BODY, SdkError, raises_sdk_code
from support.proxy.sdk_cluster import (
    ALL,
    NUMBERS,
    Cluster,
    Commands,
    bodies_of,
    delivered,
    receive,
    simple,
)

ILLEGAL_DELIVERY_TIME = 40012


@scenario()
def f1_a_producer_starts_and_closes(cluster: Cluster, sdk: Commands) -> None:
    sdk.do("producer", id="p", topics=[cluster.topic()])
    sdk.do("close", id="p")


@scenario()
def f1_a_client_of_two_topics_starts(cluster: Cluster, sdk: Commands) -> None:
    """Node.js' SDK misses an answer to its settings that comes while it still asks for routes."""
    topics = [cluster.topic(), cluster.topic()]
    every = dict.fromkeys(topics, ALL)
    sdk.do("simple", id="c", group=cluster.group(), subscriptions=every, await_s=5)
    sdk.do("producer", id="p", topics=topics)
    for topic in topics:
        sdk.do("send", id="p", topic=topic, body=topic)
    assert sorted(bodies_of(receive(sdk, 2))) == sorted(topics)


@scenario(needs="push")
def f1_a_push_consumer_of_two_topics_starts(cluster: Cluster, sdk: Commands) -> None:
    topics = [cluster.topic(), cluster.topic()]
    sdk.do("push", id="f", group=cluster.group(), subscriptions=dict.fromkeys(topics, ALL))
    sdk.do("producer", id="p", topics=topics)
    for topic in topics:
        sdk.do("send", id="p", topic=topic, body=topic)
    assert sorted(bodies_of(delivered(sdk, "f", 2))) == sorted(topics)


@scenario()
def f2_messages_keep_the_ids_of_their_producer(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    sdk.do("producer", id="p", topics=[topic])
    receipts = [
        sdk.do(
            "send", id="p", topic=topic, body="grüße 😀", tag="a", keys="k", properties={"x": "1"}
        )
        for _ in range(10)
    ]
    ids = {receipt["message_id"] for receipt in receipts}
    assert len(ids) == 10 and all(len(text) == 34 and int(text, 16) for text in ids)
    # Rust's SDK tells none.
    assert all(receipt["offset"] is None or receipt["offset"] >= 0 for receipt in receipts)


@scenario()
def f23_a_message_of_a_wrong_type_is_refused(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic("NORMAL")
    sdk.do("producer", id="p", topics=[topic])
    with pytest.raises(SdkError):
        sdk.do("send", id="p", topic=topic, body="ordered", group="g")


@scenario()
def f24_limits_of_a_message(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    sdk.do("producer", id="p", topics=[topic])
    many = {f"k{number}": "v" for number in range(128)}
    sdk.do("send", id="p", topic=topic, size=LARGEST_BODY)
    sdk.do("send", id="p", topic=topic, body="x", properties=many)
    sdk.do("send", id="p", topic=topic, body="x", properties={"k": "v" * 16_383})
    refused: list[dict[str, Any]] = [
        {"size": LARGEST_BODY + 1},
        {"body": "x", "properties": {**many, "one": "more"}},
        {"body": "x", "properties": {"k": "v" * 16_384}},
        {"body": "x", "properties": {"UNIQ_KEY": "mine"}},
        {"body": "x", "tag": "a\x01"},
    ]
    for fields in refused:
        with pytest.raises(SdkError):
            sdk.do("send", id="p", topic=topic, **fields)


@scenario()
def f24_the_largest_body_is_received(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic)
    sdk.do("producer", id="p", topics=[topic])
    body = "b" * LARGEST_BODY
    sdk.do("send", id="p", topic=topic, body=body)
    (message,) = receive(sdk, 1)
    assert message["body"] == body and not message["corrupted"]


@scenario()
def f24_an_empty_body_is_refused(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    sdk.do("producer", id="p", topics=[topic])
    with pytest.raises(SdkError):
        sdk.do("send", id="p", topic=topic, body="")
    sdk.do("send", id="p", topic=topic, body="x")


@scenario()
def f23_an_auto_created_topic_takes_the_type_of_its_first_message(
    _: Cluster, sdk: Commands
) -> None:
    topic = f"fresh_{next(NUMBERS)}"
    sdk.do("producer", id="p", topics=[topic])
    sdk.do("send", id="p", topic=topic, body="ordered", group="g")
    sdk.do("send", id="p", topic=topic, body="ordered too", group="h")
    with pytest.raises(SdkError):
        sdk.do("send", id="p", topic=topic, body="normal")


@scenario()
def f15_a_delivery_time_beyond_a_day_is_refused(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic("DELAY")
    sdk.do("producer", id="p", topics=[topic])
    with raises_sdk_code(ILLEGAL_DELIVERY_TIME):
        sdk.do("send", id="p", topic=topic, body="x", deliver_at=int(time.time()) + 25 * 3_600)


@scenario(needs="recall")
def f16_a_recalled_message_is_not_delivered(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic("DELAY")
    simple(sdk, cluster.group(), topic)
    sdk.do("producer", id="p", topics=[topic])
    soon = int(time.time()) + 10
    sent = sdk.do("send", id="p", topic=topic, body="recalled", deliver_at=soon)
    sdk.do("send", id="p", topic=topic, body="later", deliver_at=soon + 1)
    recall = {"id": "p", "topic": topic, "handle": sent["recall_handle"]}
    assert sdk.do("recall", **recall) == sent["message_id"]
    with pytest.raises(SdkError):
        sdk.do("recall", **recall)
    (found,) = receive(sdk, 1)
    assert found["body"] == "later"
