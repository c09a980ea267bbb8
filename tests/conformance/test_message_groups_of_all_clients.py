"""A message group that official SDKs and the Python client send to together: it lies in one queue,
and each of them gets it in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

from aerobee_client import (
    AdminClient,
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from support.clock.polling import until_sync
from support.proxy.official_sdk import Sdk, newest
from support.proxy.sdk_cluster import ALL, SOON_S, Cluster, delivered, sdk_cluster

pytestmark = pytest.mark.slow

LANGUAGES = ("python", "node")
GROUPS = [f"order {number}" for number in range(6)]
ROUNDS = 8


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    for language in LANGUAGES:
        assert newest(language).built
    with sdk_cluster(tmp_path_factory.mktemp("groups"), brokers=2) as cluster:
        yield cluster


def own_consumer(
    cluster: Cluster,
    topic: str,
    seen: list[ReceivedMessage],
    order_by: Literal["queue", "message_group"],
) -> PushConsumer:
    """Of this client, in order."""
    consumer = PushConsumer(
        cluster.group(),
        seen.append,
        namesrv=cluster.namesrv.address,
        orderly=True,
        order_by=order_by,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    return consumer


def test_all_senders_keep_a_message_group_in_one_queue(cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.topic("FIFO")
    sent: dict[str, list[str]] = defaultdict(list)
    by_queue: list[ReceivedMessage] = []
    by_group: list[ReceivedMessage] = []
    with ExitStack() as stack:
        sdks = {
            language: stack.enter_context(Sdk(newest(language), proxy.address, tmp_path))
            for language, proxy in zip(LANGUAGES, cluster.proxies, strict=True)
        }
        for sdk in sdks.values():
            sdk.do("push", id="c", group=cluster.group(), subscriptions={topic: ALL})
            sdk.do("producer", id="p", topics=[topic])
        producer = stack.enter_context(Producer(namesrv=cluster.namesrv.address))
        stack.enter_context(own_consumer(cluster, topic, by_queue, "queue"))
        stack.enter_context(own_consumer(cluster, topic, by_group, "message_group"))
        for number in range(ROUNDS):
            for group in GROUPS:
                for language, sdk in sdks.items():
                    body = f"{group}: {number} by {language}"
                    sdk.do("send", id="p", topic=topic, body=body, group=group)
                    sent[group].append(body)
                body = f"{group}: {number} by aerobee"
                producer.send(Message(topic, body.encode(), message_group=group))
                sent[group].append(body)
        count = sum(map(len, sent.values()))
        with AdminClient(cluster.namesrv.address) as admin:
            places = [
                (queue.broker_name, queue.queue_id, message)
                for queue in admin.topic_status(topic)
                for message in admin.browse(
                    topic, queue.broker_name, queue.queue_id, 0, max_messages=count
                ).messages()
            ]
        for sdk in sdks.values():
            delivered(sdk, "c", count)
        until_sync(
            lambda: min(len(by_queue), len(by_group)) >= count, "all messages", timeout_s=SOON_S
        )
        for group in GROUPS:
            stored = [
                (place, m.body) for *place, m in places if m.properties["__SHARDINGKEY"] == group
            ]
            assert len({tuple(place) for place, _ in stored}) == 1
            assert [body.decode() for _, body in stored] == sent[group]
            for seen in (by_queue, by_group):
                own = [m.body.decode() for m in seen if m.properties["__SHARDINGKEY"] == group]
                assert own == sent[group]
            for language, sdk in sdks.items():
                events = [e["body"] for e in sdk.events("delivered", "c") if e["group"] == group]
                assert events == sent[group], language
        assert {name for name, _, _ in places} == {"broker-a", "broker-b"}
