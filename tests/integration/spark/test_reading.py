"""Planning and reading over real sockets, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from aerobee_client import AdminClient
from aerobee_spark.errors import DataLossError, OptionError
from aerobee_spark.reading import columns
from aerobee_spark.reading.chunks import Pull, read_ranges
from aerobee_spark.reading.offsets import OffsetRange, Queue
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.reading.planning import connect, plan
from aerobee_wire import topics
from aerobee_wire.status import Code
from support.client.fake_broker import FakeBroker, FakeCluster
from support.codes import raises_about, raises_code

TOPIC = "flights"
GROUP = "arrivals"
DEAD, RETRY = topics.dead_letter_topic(GROUP), topics.retry_topic(GROUP)
A0 = Queue(TOPIC, "broker-a", 0)


@pytest.fixture
def broker(cluster: FakeCluster) -> FakeBroker:
    return cluster["broker-a"]


@pytest.fixture
def admin(cluster: FakeCluster) -> Iterator[AdminClient]:
    with connect(cluster.namesrv) as client:
        yield client


def options(**given: str) -> ReadOptions:
    return ReadOptions.parse({"nameServer": "unused:1"} | (given or {"topic": TOPIC}))


def put(broker: FakeBroker, count: int, topic: str = TOPIC, queue_id: int = 0) -> None:
    for i in range(count):
        broker.put(
            topic, f"body {i}".encode(), queue_id=queue_id, store_timestamp_ms=1000 * (i + 1)
        )


def planned(admin: AdminClient, **given: str) -> list[tuple[Any, ...]]:
    return [(*each.queue, each.start, each.end) for each in plan(admin, options(**given))]


def read(admin: AdminClient, wanted: OffsetRange, **given: str) -> list[int]:
    chunks = read_ranges(admin, [wanted], options(topic=TOPIC, **given))
    batches = [columns.decode(chunk.records, "broker-a") for _, chunk in chunks]
    table = pa.Table.from_batches(batches, columns.ARROW_SCHEMA)
    found: list[int] = table.column("queueOffset").to_pylist()
    return found


# ---- planning ----


def test_a_topic_is_read_on_every_broker_and_queue(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    put(cluster["broker-a"], 3)
    put(cluster["broker-a"], 2, queue_id=1)
    put(cluster["broker-b"], 4)
    assert planned(admin, topic=TOPIC) == [
        (TOPIC, "broker-a", 0, 0, 3),
        (TOPIC, "broker-a", 1, 0, 2),
        (TOPIC, "broker-b", 0, 0, 4),
    ]


def test_an_unknown_topic_is_an_error(broker: FakeBroker, admin: AdminClient) -> None:
    with raises_code(Code.TOPIC_NOT_EXIST):
        planned(admin, topic="nowhere")


def test_topics_are_found_by_a_pattern_for_the_whole_name(
    broker: FakeBroker, admin: AdminClient
) -> None:
    for topic in ("flights", "flights-2", "weather"):
        put(broker, 1, topic)
    assert [row[0] for row in planned(admin, topicPattern="flights.*")] == ["flights", "flights-2"]
    assert [row[0] for row in planned(admin, topicPattern="flights")] == ["flights"]
    with raises_about(OptionError, "topicPattern"):
        planned(admin, topicPattern="light")


def test_a_group_is_its_dead_letter_and_retry_topics(
    broker: FakeBroker, admin: AdminClient
) -> None:
    put(broker, 2, DEAD)
    put(broker, 5, RETRY)
    put(broker, 1, topics.dead_letter_topic("others"))
    assert planned(admin, consumerGroup=GROUP) == [(DEAD, "broker-a", 0, 0, 2)]
    both = planned(admin, consumerGroup=GROUP, kind="both")
    assert [row[0] for row in both] == [DEAD, RETRY]
    everyone = planned(admin, consumerGroup="*")
    assert [row[0] for row in everyone] == [DEAD, topics.dead_letter_topic("others")]


def test_only_an_unknown_group_is_an_error(broker: FakeBroker, admin: AdminClient) -> None:
    broker.groups.add(GROUP)
    assert planned(admin, consumerGroup=GROUP) == []
    with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
        planned(admin, consumerGroup="nobody")


def test_offsets_may_be_given_queue_by_queue(broker: FakeBroker, admin: AdminClient) -> None:
    put(broker, 9)
    put(broker, 9, queue_id=1)
    start = '{"flights": {"broker-a": {"0": 4}}}'
    end = '{"flights": {"broker-a": {"0": 6, "1": 2}}}'
    found = planned(admin, topic=TOPIC, startingOffsets=start, endingOffsets=end)
    assert found == [(TOPIC, "broker-a", 0, 4, 6), (TOPIC, "broker-a", 1, 0, 2)]
    with raises_about(OptionError, "startingOffsets"):
        planned(admin, topic=TOPIC, startingOffsets='{"flights": {"broker-a": {"7": 0}}}')


def test_a_time_window_takes_messages_by_their_store_time(
    broker: FakeBroker, admin: AdminClient
) -> None:
    put(broker, 9)  # stored at 1000, 2000, … ms
    window = {"startingTimestamp": "3000", "endingTimestamp": "5001"}
    assert planned(admin, topic=TOPIC, **window) == [(TOPIC, "broker-a", 0, 2, 5)]
    assert planned(admin, topic=TOPIC, startingTimestamp="99000") == [(TOPIC, "broker-a", 0, 9, 9)]


def test_a_start_that_is_expired_is_data_loss(broker: FakeBroker, admin: AdminClient) -> None:
    put(broker, 9)
    broker.queue(TOPIC).min_offset = 5
    given = {"topic": TOPIC, "startingOffsets": '{"flights": {"broker-a": {"0": 1}}}'}
    with raises_about(DataLossError, str(A0)) as caught:
        planned(admin, **given)
    assert caught.value.lost == range(1, 5)
    assert planned(admin, failOnDataLoss="false", **given) == [(TOPIC, "broker-a", 0, 5, 9)]
    assert planned(admin, topic=TOPIC) == [(TOPIC, "broker-a", 0, 5, 9)]


def test_a_broker_that_is_down_fails_the_plan_by_default(
    cluster: FakeCluster, admin: AdminClient
) -> None:
    put(cluster["broker-a"], 1)
    put(cluster["broker-b"], 1)
    cluster["broker-b"].stop()
    with raises_code(Code.BROKER_UNREACHABLE):
        planned(admin, topic=TOPIC)
    start = '{"flights": {"broker-a": {"0": 0}, "broker-b": {"0": 0}}}'
    lenient = {"failOnUnreachableBroker": "false", "startingOffsets": start}
    assert planned(admin, topic=TOPIC, **lenient) == [(TOPIC, "broker-a", 0, 0, 1)]


# ---- reading ----


def test_a_range_is_read_exactly(broker: FakeBroker, admin: AdminClient) -> None:
    put(broker, 100)
    assert read(admin, OffsetRange(A0, 10, 90)) == list(range(10, 90))


def test_small_responses_are_combined(broker: FakeBroker, admin: AdminClient) -> None:
    put(broker, 100)
    broker.most_messages = 7
    chunks = list(read_ranges(admin, [OffsetRange(A0, 0, 100)], options(topic=TOPIC)))
    assert len(chunks) == 1
    assert read(admin, OffsetRange(A0, 3, 97), pullBatchSize="20") == list(range(3, 97))


def test_bodies_larger_than_a_pull_are_read(broker: FakeBroker, admin: AdminClient) -> None:
    for _ in range(3):
        broker.put(TOPIC, bytes(5 * 1024 * 1024))
    assert read(admin, OffsetRange(A0, 0, 3), maxBytesPerPull="1024") == [0, 1, 2]


def test_reading_registers_no_group_and_commits_nothing(
    broker: FakeBroker, admin: AdminClient
) -> None:
    put(broker, 10)
    plan(admin, options(topic=TOPIC))
    read(admin, OffsetRange(A0, 0, 10))
    assert broker.pulls and broker.bounds_asked == [TOPIC]
    assert all(pull.browse for pull in broker.pulls)
    assert not any(pull.consumer_group or pull.HasField("commit_offset") for pull in broker.pulls)


def test_a_broker_that_restarts_is_asked_again(broker: FakeBroker, admin: AdminClient) -> None:
    put(broker, 10)
    broker.failures = 2
    assert read(admin, OffsetRange(A0, 0, 10)) == list(range(10))


def test_a_broker_that_no_name_server_knows_meanwhile_is_asked_again(
    broker: FakeBroker, admin: AdminClient
) -> None:
    put(broker, 10)
    there = dict(broker.queues)
    waits: list[float] = []

    def dies(request: Any) -> None:
        broker.queues.clear()
        broker.failures, broker.before_pull = 1, None

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            broker.queues.update(there)

    broker.before_pull = dies
    options = ReadOptions.parse({"nameServer": "n:1", "topic": TOPIC})
    chunk = Pull(admin, OffsetRange(A0, 0, 10), options, broker.address, sleep=sleep).chunk(0)
    assert (chunk.next_offset, len(waits)) == (10, 3)


def test_a_broker_that_stays_down_fails_the_read_by_default(
    broker: FakeBroker, admin: AdminClient
) -> None:
    put(broker, 10)
    broker.failures = 1000
    with raises_code(Code.BROKER_UNREACHABLE):
        read(admin, OffsetRange(A0, 0, 10), pullTimeoutMs="300")
    lenient = {"pullTimeoutMs": "300", "failOnUnreachableBroker": "false"}
    assert read(admin, OffsetRange(A0, 0, 10), **lenient) == []


def test_messages_that_expire_while_reading_are_data_loss(
    broker: FakeBroker, admin: AdminClient
) -> None:
    put(broker, 30)

    def expire(request: Any) -> None:
        if request.queue_offset == 10:
            broker.queue(TOPIC).min_offset = 15

    broker.before_pull = expire
    with raises_about(DataLossError, str(A0)) as caught:
        read(admin, OffsetRange(A0, 0, 30), pullBatchSize="10")
    assert caught.value.lost == range(10, 15)
    broker.queue(TOPIC).min_offset = 0
    left = read(admin, OffsetRange(A0, 0, 30), pullBatchSize="10", failOnDataLoss="false")
    assert left == [*range(10), *range(15, 30)]


def test_corrupt_records_are_data_loss_that_says_so(broker: FakeBroker, admin: AdminClient) -> None:
    put(broker, 10)
    broker.queue(TOPIC).corrupt = {4, 5}
    with raises_about(DataLossError, str(A0)) as caught:
        read(admin, OffsetRange(A0, 0, 10))
    assert (caught.value.code, caught.value.lost) == (Code.MESSAGE_CORRUPTED, range(10))
    left = read(admin, OffsetRange(A0, 0, 10), failOnDataLoss="false")
    assert left == [0, 1, 2, 3, 6, 7, 8, 9]


def test_a_queue_that_lost_its_end_is_data_loss(broker: FakeBroker, admin: AdminClient) -> None:
    put(broker, 10)
    with raises_about(DataLossError, str(A0)) as caught:
        read(admin, OffsetRange(A0, 0, 12))
    assert caught.value.lost == range(10, 12)
    assert read(admin, OffsetRange(A0, 0, 12), failOnDataLoss="false") == list(range(10))
