"""Names of topics and consumer groups: with a namespace, and which are legal."""

from __future__ import annotations

import pytest
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code, Resource

from aerobee_proxy.v2.resources import group_name, known_name, stored_name, topic_name
from support.proxy.harness import refused


@pytest.mark.parametrize(
    ("namespace", "name", "stored"),
    [
        ("", "orders", "orders"),
        ("eu", "orders", "eu%orders"),
        ("eu", "%DLQ%billing", "%DLQ%eu%billing"),
        ("eu", "%RETRY%billing", "%RETRY%eu%billing"),
    ],
)
def test_stored_name_and_back(namespace: str, name: str, stored: str) -> None:
    resource = Resource(resource_namespace=namespace, name=name)
    assert stored_name(resource) == stored
    assert known_name(stored, namespace) == (namespace, name)


def test_namespace_in_the_name_is_not_repeated() -> None:
    assert stored_name(Resource(resource_namespace="eu", name="eu%orders")) == "eu%orders"


def test_empty_name_stays_empty() -> None:
    assert stored_name(Resource(resource_namespace="eu")) == ""


def test_stored_name_of_another_namespace_stays() -> None:
    assert known_name("us%orders", "eu") == ("eu", "us%orders")


# ---- legal names ----

SYSTEM_TOPICS = [
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "BenchmarkTest",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRACE_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "CHECKPOINT_TOPIC",
    "rmq_sys_anything",
]


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a.b", "grüße", "a/b", "a\n", "x" * 128, "../etc", "٣", *SYSTEM_TOPICS]
)
def test_illegal_topic(name: str) -> None:
    """StatusCode table: QueryRoute, SendMessage, ReceiveMessage, AckMessage … × ILLEGAL_TOPIC."""
    refused(Code.ILLEGAL_TOPIC, topic_name, Resource(name=name))


@pytest.mark.parametrize("name", ["a", "x" * 127, "a-B_9|%", "%DLQ%billing", "%RETRY%billing"])
def test_legal_topic(name: str) -> None:
    assert topic_name(Resource(name=name)) == name


def test_namespace_counts_for_the_length() -> None:
    assert topic_name(Resource(resource_namespace="eu", name="orders")) == "eu%orders"
    long = Resource(resource_namespace="n" * 64, name="x" * 64)
    refused(Code.ILLEGAL_TOPIC, topic_name, long)


def test_namespace_cannot_make_a_system_name() -> None:
    topic = Resource(resource_namespace="rmq_sys_REVIVE_LOG_", name="x")
    refused(Code.ILLEGAL_TOPIC, topic_name, topic)
    group = Resource(resource_namespace="CID_RMQ_SYS_", name="TRANS")
    refused(Code.ILLEGAL_CONSUMER_GROUP, group_name, group)


@pytest.mark.parametrize("name", ["", " ", "a b", "a.b", "x" * 121, "CID_RMQ_SYS_x", "a\u0000"])
def test_illegal_consumer_group(name: str) -> None:
    """StatusCode table: Heartbeat, ReceiveMessage, AckMessage … × ILLEGAL_CONSUMER_GROUP."""
    refused(Code.ILLEGAL_CONSUMER_GROUP, group_name, Resource(name=name))


@pytest.mark.parametrize("name", ["g", "x" * 120, "GID_a-b|c%"])
def test_legal_consumer_group(name: str) -> None:
    assert group_name(Resource(name=name)) == name
