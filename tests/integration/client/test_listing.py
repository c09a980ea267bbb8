"""Topics and groups with their statistics, of two real brokers, then of the one that is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_client import AdminClient, Message, Producer, PushConsumer
from aerobee_wire.status import Code
from support.clock.polling import until_sync
from support.codes import raises_code
from support.processes.service import named_broker, namesrv_process


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    with namesrv_process(tmp_path) as process:
        yield process.address


def test_what_two_brokers_know_and_what_one_does_not(namesrv: str, tmp_path: Path) -> None:
    with named_broker(tmp_path, "broker-a", namesrv=namesrv), AdminClient(namesrv) as admin:
        with named_broker(tmp_path, "broker-b", namesrv=namesrv):
            for number in range(3):
                admin.create_topic(f"topic-{number}", queues=2)
            admin.create_group("behind")
            with Producer(namesrv=namesrv) as producer:
                for number in range(8):
                    producer.send(Message("topic-1", b"%d" % number))
            consumer = PushConsumer("reading", lambda message: None, namesrv=namesrv)
            consumer.subscribe("topic-1")
            with consumer:
                until_sync(lambda: reading(admin) == (8, 0, 1))
                page = admin.topic_page(name_part="TOPIC", limit=2)
                assert ([row.topic for row in page.rows], page.total) == (["topic-0", "topic-1"], 3)
                statistics = page.rows[1].statistics
                assert (statistics.messages_in, statistics.bytes_in) == (8, 8)
                assert (statistics.stored_messages, statistics.members) == (8, 1)
                until_sync(lambda: bool(rate_after_a_send(admin, namesrv)))
                most = admin.topic_page(sort="stored_messages", descending=True, limit=1)
                assert [row.topic for row in most.rows] == ["topic-1"]
                details = admin.describe_topic("topic-1")
                assert [each.consumer_group for each in details.groups] == ["reading"]
                assert len(details.queues) == 4
                group = admin.describe_group("reading")
                (member,) = group.members
                assert member.brokers == ("broker-a", "broker-b")
                topics = {each.progress.topic for each in group.queues}
                assert topics == {"topic-1", "%RETRY%reading"}
        page = admin.topic_page(name_part="topic-1")
        (row,) = page.rows
        assert list(page.unanswered) == ["broker-b"] and page.total is None
        assert row.statistics.messages_in is None and row.by_broker["broker-a"].messages_in
        assert admin.describe_group("reading").statistics.lag is None
        with raises_code(Code.BROKER_NOT_EXIST):
            admin.describe_topic("unknown")


def test_a_broker_remembers_its_last_minute_and_streams_each_second(
    namesrv: str, tmp_path: Path
) -> None:
    with (
        named_broker(tmp_path, "broker-a", namesrv=namesrv),
        AdminClient(namesrv) as admin,
        Producer(namesrv=namesrv) as producer,
    ):
        admin.create_topic("flights", queues=1)
        sent = 0
        for sample in admin.watch_stats(busiest_topics=5, groups=["none"]):
            if sample.topics.get("flights") and sample.topics["flights"].cluster["messages_in"]:
                break
            producer.send(Message("flights", b"body"))
            sent += 1
        assert not sample.unanswered and not sample.groups
        assert sample.brokers.by_broker["broker-a"].keys() == sample.brokers.cluster.keys()
        stats = admin.get_stats(topics=["flights"])
        rates = [each for each in stats.topics["flights"].cluster["messages_in"] if each]
        assert 0 < sum(rates) <= sent
        latencies = stats.brokers.by_broker["broker-a"]["send_latency_p99_ms"]
        assert any(latencies)


def reading(admin: AdminClient) -> tuple[int | None, int | None, int | None]:
    (group,) = admin.group_page(name_part="read").rows
    return group.statistics.messages_out, group.statistics.lag, group.statistics.members


def rate_after_a_send(admin: AdminClient, namesrv: str) -> float | None:
    with Producer(namesrv=namesrv) as producer:
        producer.send(Message("topic-1", b"body"))
    (topic,) = admin.topic_page(name_part="topic-1").rows
    return topic.statistics.messages_in_rate
