"""The reader of a stream over real sockets, without Spark: what it asks, and what comes and
goes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from aerobee_spark.errors import CheckpointError, DataLossError, OptionError
from aerobee_spark.reading.offsets import Queue
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.reading.planning import connect
from aerobee_spark.reading.schema import SCHEMA
from aerobee_spark.stream import watch
from aerobee_spark.stream.reader import RocketMqStreamReader
from aerobee_spark.stream.watch import Watch
from aerobee_wire import topics
from aerobee_wire.status import Code
from support.client.fake_broker import FakeBroker, FakeCluster
from support.codes import raises_about, raises_code

ALL = ReadAllAvailable()
Offsets = dict[str, Any]
Make = Callable[..., RocketMqStreamReader]


@pytest.fixture
def make(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Readers of the fake cluster, which look for topics and brokers at each trigger."""
    monkeypatch.setattr(watch, "DISCOVERY_INTERVAL_S", 0.0)
    made: list[RocketMqStreamReader] = []

    def reader(**given: str) -> RocketMqStreamReader:
        options = ReadOptions.parse({"nameServer": cluster.namesrv, **(given or {"topic": "t"})})
        options.check_stream()
        made.append(RocketMqStreamReader(options, tuple(SCHEMA.names)))
        return made[-1]

    yield reader
    for each in made:
        each.stop()


def put(broker: FakeBroker, count: int, topic: str = "t", queue_id: int = 0) -> None:
    for i in range(count):
        broker.put(topic, b"%d" % i, queue_id=queue_id, store_timestamp_ms=1000 * (i + 1))


def offsets(**topics: Any) -> Offsets:
    return {"v": 1, "topics": topics}


def behind(least: float, most: float, mean: float) -> dict[str, float]:
    """Return the metrics of a progress, with the names of Kafka's connector."""
    values = {"min": least, "max": most, "avg": mean}
    return {f"{name}OffsetsBehindLatest": value for name, value in values.items()}


def rows(reader: RocketMqStreamReader, start: Offsets, end: Offsets) -> list[tuple[str, int, int]]:
    found = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            columns = (batch.column(name) for name in ("brokerName", "queueId", "queueOffset"))
            found += list(zip(*(column.to_pylist() for column in columns), strict=True))
    return sorted(found)


def test_a_stream_reads_what_is_there_then_what_comes(cluster: FakeCluster, make: Make) -> None:
    put(cluster["broker-a"], 3)
    put(cluster["broker-b"], 2)
    reader = make()
    first = reader.initialOffset()
    assert first == offsets(t={"broker-a": {"0": 0}, "broker-b": {"0": 0}})
    second = reader.latestOffset(first, ALL)
    assert rows(reader, first, second) == [
        *(("broker-a", 0, i) for i in range(3)),
        *(("broker-b", 0, i) for i in range(2)),
    ]
    latest = reader.reportLatestOffset()
    assert latest == second | {"metrics": behind(0, 0, 0)}
    assert json.dumps(reader.latestOffset(second, ALL)) == json.dumps(second)
    put(cluster["broker-b"], 1)
    third = reader.latestOffset(second, ALL)
    assert rows(reader, second, third) == [("broker-b", 0, 2)]
    put(cluster["broker-a"], 9)
    reader.latestOffset(third, ReadMaxRows(1))
    latest = reader.reportLatestOffset()
    assert latest is not None and latest["metrics"] == behind(0, 8, 4)


def test_one_call_asks_for_all_queues_of_a_topic_on_a_broker(
    cluster: FakeCluster, make: Make
) -> None:
    for queue_id in range(50):
        put(cluster["broker-a"], 1, queue_id=queue_id)
        put(cluster["broker-b"], 1, "u", queue_id=queue_id)
    reader = make(topic="t,u")
    start = reader.initialOffset()
    for broker in cluster.brokers.values():
        broker.bounds_asked.clear()
    reader.latestOffset(start, ALL)
    assert (cluster["broker-a"].bounds_asked, cluster["broker-b"].bounds_asked) == (["t"], ["u"])
    assert not any(broker.pulls for broker in cluster.brokers.values())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 2),
        ({"startingOffsets": "latest"}, 9),
        ({"startingOffsets": '{"v": 1, "topics": {"t": {"broker-a": {"0": 4}}}}'}, 4),
        ({"startingTimestamp": "6000"}, 5),
    ],
)
def test_the_first_run_starts_where_the_options_say(
    cluster: FakeCluster, make: Make, given: dict[str, str], expected: int
) -> None:
    put(cluster["broker-a"], 9)
    cluster["broker-a"].queue("t").min_offset = 2
    start = make(topic="t", **given).initialOffset()
    assert start == offsets(t={"broker-a": {"0": expected}})


def test_new_queues_and_topics_are_read_from_their_first_message(
    cluster: FakeCluster, make: Make
) -> None:
    put(cluster["broker-a"], 1, "t1")
    reader = make(topicPattern="t.*", startingOffsets="latest")
    start = reader.initialOffset()
    assert start == offsets(t1={"broker-a": {"0": 1}})
    put(cluster["broker-a"], 2, "t1", queue_id=1)
    put(cluster["broker-b"], 3, "t2")
    entered = reader.latestOffset(start, ALL)
    end = reader.latestOffset(entered, ALL)
    assert rows(reader, start, entered) + rows(reader, entered, end) == [
        *(("broker-a", 1, i) for i in range(2)),
        *(("broker-b", 0, i) for i in range(3)),
    ]


def test_a_group_without_dead_letters_is_a_stream_that_waits(
    cluster: FakeCluster, make: Make
) -> None:
    with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
        make(consumerGroup="g").initialOffset()
    cluster["broker-a"].groups.add("g")
    reader = make(consumerGroup="g")
    start = reader.initialOffset()
    assert start == reader.latestOffset(start, ALL) == offsets()
    put(cluster["broker-a"], 2, topics.dead_letter_topic("g"))
    end = reader.latestOffset(reader.latestOffset(start, ALL), ALL)
    assert end == offsets(**{"%DLQ%g": {"broker-a": {"0": 2}}})


def test_a_broker_that_is_away_keeps_its_offsets_and_is_reported_once(
    cluster: FakeCluster, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    put(cluster["broker-a"], 3)
    put(cluster["broker-b"], 3)
    reader = make()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    cluster["broker-b"].stop()
    put(cluster["broker-a"], 1)
    with caplog.at_level(logging.WARNING, "aerobee_spark"):
        away = reader.latestOffset(reader.latestOffset(start, ALL), ALL)
    assert away == offsets(t={"broker-a": {"0": 4}, "broker-b": {"0": 3}})
    assert [record.message for record in caplog.records if "broker-b" in record.message] == [
        caplog.records[0].message
    ]
    put(cluster["broker-b"], 2)
    cluster["broker-b"].start()  # at another port
    back = reader.latestOffset(away, ALL)
    assert rows(reader, away, back) == [("broker-b", 0, 3), ("broker-b", 0, 4)]


def test_a_first_run_from_elsewhere_than_the_earliest_needs_every_broker(
    cluster: FakeCluster, make: Make
) -> None:
    put(cluster["broker-a"], 3)
    put(cluster["broker-b"], 3)
    cluster["broker-b"].stop()
    with raises_code(Code.BROKER_UNREACHABLE):
        make(topic="t", startingOffsets="latest").initialOffset()
    assert make().initialOffset() == offsets(t={"broker-a": {"0": 0}})


def test_queues_that_are_known_go_on_without_a_name_server(
    cluster: FakeCluster, make: Make
) -> None:
    put(cluster["broker-a"], 3)
    reader = make()
    start = reader.initialOffset()
    cluster.stop_namesrv()
    end = reader.latestOffset(start, ALL)
    assert rows(reader, start, end) == [("broker-a", 0, i) for i in range(3)]
    with raises_code(Code.NAMESRV_UNREACHABLE):
        make().initialOffset()


def test_data_loss_fails_the_stream_unless_it_may_go_on(cluster: FakeCluster, make: Make) -> None:
    put(cluster["broker-a"], 9)
    broker, about = cluster["broker-a"], str(Queue("t", "broker-a", 0))
    broker.queue("t").min_offset = 5
    start = offsets(t={"broker-a": {"0": 2}})
    with raises_about(DataLossError, about):
        make().latestOffset(start, ALL)
    lenient = make(topic="t", failOnDataLoss="false")
    assert rows(lenient, start, lenient.latestOffset(start, ALL)) == [
        ("broker-a", 0, i) for i in range(5, 9)
    ]
    beyond = offsets(t={"broker-a": {"0": 77}})
    with raises_about(DataLossError, about):
        make().latestOffset(beyond, ALL)
    again = lenient.latestOffset(beyond, ALL)
    assert rows(lenient, beyond, again) == []
    assert rows(lenient, again, lenient.latestOffset(again, ALL)) == [
        ("broker-a", 0, i) for i in range(5, 9)
    ]


def test_a_topic_that_was_deleted_is_data_loss(cluster: FakeCluster, make: Make) -> None:
    put(cluster["broker-a"], 9)
    reader, lenient = make(), make(topic="t", failOnDataLoss="false")
    start = reader.initialOffset()
    del cluster["broker-a"].queues["t", 0]
    put(cluster["broker-a"], 1, "other")
    with raises_about(DataLossError, str(Queue("t", "broker-a", 0))):
        reader.latestOffset(start, ALL)
    gone = lenient.latestOffset(start, ALL)
    assert gone == offsets(t={})
    put(cluster["broker-a"], 2)
    again = lenient.latestOffset(lenient.latestOffset(gone, ALL), ALL)
    assert again == offsets(t={"broker-a": {"0": 2}})


def test_limits_are_those_of_the_options_and_heeded(cluster: FakeCluster, make: Make) -> None:
    put(cluster["broker-a"], 30)
    put(cluster["broker-a"], 10, queue_id=1)
    assert make().getDefaultReadLimit() == ALL
    least = make(topic="t", minOffsetsPerTrigger="41")
    assert least.getDefaultReadLimit() == ReadMinRows(41)
    start = least.initialOffset()
    assert least.latestOffset(start, ReadMinRows(41)) == start
    assert least.latestOffset(start, ALL) != start  # Trigger.Once heeds no limit
    most = make(topic="t", maxOffsetsPerTrigger="20", minOffsetsPerTrigger="5")
    limit: ReadLimit = most.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    assert most.latestOffset(start, limit) == offsets(t={"broker-a": {"0": 14, "1": 6}})


def test_available_now_ends_where_the_queues_ended_at_its_start(
    cluster: FakeCluster, make: Make
) -> None:
    put(cluster["broker-a"], 30)
    reader = make(topic="t", maxOffsetsPerTrigger="20", minOffsetsPerTrigger="20")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    put(cluster["broker-a"], 5)
    put(cluster["broker-b"], 5)
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(start, limit)
    second = reader.latestOffset(first, limit)
    assert second == offsets(t={"broker-a": {"0": 30}}) == reader.latestOffset(second, limit)


def test_available_now_waits_for_a_broker_that_restarts(cluster: FakeCluster) -> None:
    """Spark ends such a run at the first trigger that finds nothing new."""
    for broker in cluster.brokers.values():
        put(broker, 30)
    options = ReadOptions.parse({"nameServer": cluster.namesrv, "topic": "t"})
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            cluster["broker-b"].start()

    with connect(cluster.namesrv) as admin:
        reader = RocketMqStreamReader(options, (), Watch(admin, options, sleep=sleep))
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        cluster["broker-b"].stop()
        end = reader.latestOffset(start, ReadMaxRows(20))
        end = reader.latestOffset(end, ReadMaxRows(40))
    assert end == offsets(t={"broker-a": {"0": 30}, "broker-b": {"0": 30}})
    assert len(waits) == 3


def test_available_now_ends_without_a_broker_that_stays_away(
    cluster: FakeCluster, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    for broker in cluster.brokers.values():
        put(broker, 30)
    reader = make(topic="t", maxOffsetsPerTrigger="20", pullTimeoutMs="300")
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    cluster["broker-b"].stop()
    second = reader.latestOffset(first, limit)
    third = reader.latestOffset(second, limit)
    assert third == offsets(t={"broker-a": {"0": 30}, "broker-b": {"0": 10}})
    assert reader.latestOffset(third, limit) == third
    warnings = [record for record in caplog.records if "is not read in this run" in record.message]
    assert len(warnings) == 1


def test_a_batch_is_the_same_for_a_reader_that_knows_nothing(
    cluster: FakeCluster, make: Make
) -> None:
    """As after a restart, with other limits and more messages."""
    put(cluster["broker-a"], 30)
    start, end = offsets(t={"broker-a": {"0": 3}}), offsets(t={"broker-a": {"0": 17}})
    expected = [("broker-a", 0, i) for i in range(3, 17)]
    assert rows(make(topic="t", maxOffsetsPerTrigger="5"), start, end) == expected
    put(cluster["broker-a"], 30)
    assert rows(make(topic="t", maxRecordsPerPartition="4"), start, end) == expected


def test_a_checkpoint_of_another_stream_is_refused(cluster: FakeCluster, make: Make) -> None:
    put(cluster["broker-a"], 1)
    put(cluster["broker-a"], 1, "u")
    other, newer = offsets(u={"broker-a": {"0": 1}}), {"v": 2, "topics": {}}
    for wrong in (other, newer):
        with raises_about(CheckpointError, "checkpoint"):
            make().latestOffset(wrong, ALL)
        with raises_about(CheckpointError, "checkpoint"):
            make().partitions(wrong, wrong)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets"),
        ({"endingTimestamp": "5"}, "endingTimestamp"),
        ({"failOnUnreachableBroker": "false"}, "failOnUnreachableBroker"),
        ({"pushdown": "true"}, "pushdown"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "0"}, "minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger"),
        ({"maxTriggerDelay": "5m"}, "maxTriggerDelay"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"startingOffsets": '{"v": 2, "topics": {}}'}, "startingOffsets"),
        ({"bodyEncoding": "gzip"}, "bodyEncoding"),
    ],
)
def test_bad_options_of_a_stream_are_refused(
    make: Make, given: dict[str, str], option: str
) -> None:
    with raises_about(OptionError, option):
        make(topic="t", **given)


@pytest.mark.parametrize("option", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
def test_options_of_a_stream_are_refused_in_a_batch(option: str) -> None:
    options = ReadOptions.parse({"nameServer": "n:1", "topic": "t", option: "5"})
    with raises_about(OptionError, option):
        options.check_batch()
