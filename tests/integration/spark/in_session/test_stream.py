"""The stream inside Spark, against a real broker: triggers, checkpoints, limits; and what Spark
adds to the batch read: SQL, filters, errors. One session for all tests here.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import chain
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from aerobee_client import AdminClient, Message, Producer
from aerobee_spark import lag
from aerobee_spark.lag import LagListener
from aerobee_wire import record
from aerobee_wire.status import Code
from support.clock.polling import until_sync
from support.codes import raises_code

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TIMEOUT_S = 120
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
Batch = list[tuple[int, int]]  # queue id, queue offset
Send = Callable[..., None]


@pytest.fixture(scope="module")
def send(namesrv: str, admin: AdminClient) -> Iterator[Send]:
    """`send(topic, count)`: creates the topic when it is new, with two queues."""
    created: set[str] = set()
    with Producer("tests", namesrv=namesrv) as producer:

        def messages(topic: str, count: int, **fields: Any) -> None:
            if topic not in created:
                admin.create_topic(topic, queues=2)
                created.add(topic)
            producer.send_batch([Message(topic, b"%d" % i, **fields) for i in range(count)])

        yield messages


def run(spark: SparkSession, namesrv: str, checkpoint: Path, **options: str) -> dict[int, Batch]:
    """What a run under Trigger.AvailableNow reads, batch by batch."""
    batches: dict[int, Batch] = {}

    def take(rows: DataFrame, number: int) -> None:
        found = rows.select("queueId", "queueOffset").collect()
        batches[number] = sorted((row.queueId, row.queueOffset) for row in found)

    rows = spark.readStream.format("rocketmq").options(nameServer=namesrv, **options).load()
    query = (
        rows.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    finished(query)
    return batches


def finished(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(TIMEOUT_S), "the query does not end"
    finally:
        query.stop()


def all_of(admin: AdminClient, topic: str) -> Batch:
    return sorted(
        (queue.queue_id, offset)
        for queue in admin.topic_status(topic)
        for offset in range(queue.max_offset)
    )


def rows_of(batches: Iterable[Batch]) -> Batch:
    return sorted(chain.from_iterable(batches))


def last_line(error: Exception) -> str:
    """The last line of the Python traceback; Spark adds its SQLSTATE and the state of the query."""
    text, _, _ = str(error).partition("\n SQLSTATE")
    return text.strip().splitlines()[-1]


# ---- the stream ----


def test_runs_read_each_message_once_and_a_replayed_batch_the_same_range(
    spark: SparkSession, namesrv: str, admin: AdminClient, send: Send, tmp_path: Path
) -> None:
    send("orders", 100)
    first = run(spark, namesrv, tmp_path, topic="orders", maxOffsetsPerTrigger="40")
    assert len(first) == 3
    assert max(map(len, first.values())) <= 40
    assert rows_of(first.values()) == all_of(admin, "orders")
    # As a kill between the output and the commit of a batch leaves it.
    last = max(first)
    for commit in (tmp_path / "commits").glob(f"*{last}*"):
        commit.unlink()
    send("orders", 30)
    options = {"maxOffsetsPerTrigger": "1000", "maxRecordsPerPartition": "7"}
    options |= {"startingOffsets": "latest", "failOnDataLoss": "false"}
    second = run(spark, namesrv, tmp_path, topic="orders", **options)
    assert second.pop(last) == first[last]
    assert rows_of([*first.values(), *second.values()]) == all_of(admin, "orders")
    assert run(spark, namesrv, tmp_path, topic="orders") == {}


def test_a_checkpoint_of_other_topics_is_refused_in_the_last_line(
    spark: SparkSession, namesrv: str, send: Send, tmp_path: Path
) -> None:
    send("before", 5)
    send("after", 5)
    run(spark, namesrv, tmp_path, topic="before")
    with pytest.raises(Exception) as refused:
        run(spark, namesrv, tmp_path, topic="after")
    for name in ("CheckpointError", "before", "after", "checkpointLocation"):
        assert name in last_line(refused.value)


def test_a_running_stream_takes_new_queues(
    spark: SparkSession, namesrv: str, admin: AdminClient, send: Send, tmp_path: Path
) -> None:
    send("growing", 10)
    rows = spark.readStream.format("rocketmq").options(nameServer=namesrv).load("growing")
    query = (
        rows.writeStream.format("memory")
        .queryName("growing")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        query.processAllAvailable()
        admin.update_topic("growing", queues=4)
        with Producer("more", namesrv=namesrv) as producer:
            for i in range(8):
                producer.send(Message("growing", b"%d" % i))
        query.processAllAvailable()
        found = spark.sql("SELECT queueId, queueOffset FROM growing").collect()
    finally:
        query.stop()
    assert sorted((row.queueId, row.queueOffset) for row in found) == all_of(admin, "growing")
    assert {row.queueId for row in found} == {0, 1, 2, 3}


# ---- bodies ----


def test_compressed_bodies_are_plain_or_as_they_are_stored(
    spark: SparkSession, namesrv: str, admin: AdminClient
) -> None:
    body = b"a body that is worth it " * 100
    admin.create_topic("packed", queues=1)
    for method in ("zlib", "lz4", "zstd"):
        with Producer(method, namesrv=namesrv, compression=method, compress_over=100) as producer:
            producer.send(Message("packed", body))

    def read(**options: str) -> list[Any]:
        rows = spark.read.format("rocketmq").options(nameServer=namesrv, **options).load("packed")
        return rows.select("body", "bodySize", "sysFlag").orderBy("queueOffset").collect()

    for row in read():
        assert (bytes(row.body), row.bodySize) == (body, len(body))
        assert not row.sysFlag & record.COMPRESSED
    assert {bytes(row.body) for row in read(maxBodyBytes="6")} == {body[:6]}
    stored = read(bodyEncoding="stored")
    assert all(row.sysFlag & record.COMPRESSED for row in stored)
    assert zlib.decompress(bytes(stored[0].body)) == body


# ---- SQL and filters ----


def test_a_temporary_view_is_a_table_in_sql(spark: SparkSession, namesrv: str, send: Send) -> None:
    send("viewed", 12, tag="T")
    spark.sql(
        f"CREATE TEMPORARY VIEW viewed USING rocketmq OPTIONS (nameServer '{namesrv}', "
        "topic 'viewed')"
    )
    found = spark.sql("SELECT tags, count(*) FROM viewed GROUP BY tags").collect()
    assert [tuple(row) for row in found] == [("T", 12)]


def test_a_table_whose_options_spark_drops_says_what_to_write(
    spark: SparkSession, namesrv: str, send: Send
) -> None:
    send("tabled", 3)
    spark.sql(
        f"CREATE TABLE tabled USING rocketmq OPTIONS (nameServer '{namesrv}', topic 'tabled')"
    )
    with pytest.raises(Exception) as refused:
        spark.sql("SELECT count(*) FROM tabled").collect()
    assert "OptionError" in last_line(refused.value)
    found = spark.sql(
        f"SELECT count(*) FROM tabled WITH (nameServer = '{namesrv}', topic = 'tabled')"
    )
    assert found.collect()[0][0] == 3


def test_spark_refuses_a_topic_as_the_path_of_a_file(spark: SparkSession, namesrv: str) -> None:
    from pyspark.errors import AnalysisException

    for options in ("", f" WITH (nameServer = '{namesrv}')"):
        with pytest.raises(AnalysisException) as refused:
            spark.sql(f"SELECT * FROM rocketmq.`viewed`{options}")
        assert refused.value.getCondition() == "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"


def test_filters_that_are_pushed_down_change_no_result(
    spark: SparkSession, namesrv: str, send: Send
) -> None:
    send("filtered", 60)
    spark.conf.set(PUSHDOWN, "true")

    def read(**options: str) -> DataFrame:
        reader = spark.read.format("rocketmq").options(nameServer=namesrv, **options)
        return reader.load("filtered").select("queueId", "queueOffset")

    try:
        for where in (
            "queueId = 1",
            "queueOffset >= 7 AND queueOffset < 11",
            "queueId IN (0, 5) AND queueOffset > 20",
            "topic = 'other'",
            "storeTimestamp < current_timestamp() AND queueOffset = 3",
            "storeTimestamp >= timestamp'2999-01-01'",
            "queueId = 1 OR queueOffset = 2",
        ):
            plain, pushed = (read(pushdown=pushdown).where(where) for pushdown in ("false", "true"))
            assert sorted(plain.collect()) == sorted(pushed.collect()), where
        assert read(pushdown="true").where("topic = 'other'").rdd.getNumPartitions() <= 1
    finally:
        spark.conf.unset(PUSHDOWN)


# ---- errors ----


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endingOffsets": "latest"}, ["OptionError", "endingOffsets"]),
        ({"startingOffset": "latest"}, ["OptionError", "startingOffsets"]),
        ({"topic": "nowhere"}, ["nowhere"]),
    ],
)
def test_the_last_line_of_a_stream_that_fails_is_our_sentence(
    spark: SparkSession, namesrv: str, tmp_path: Path, options: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(Exception) as refused:
        run(spark, namesrv, tmp_path, **{"topic": "any", **options})
    assert all(word in last_line(refused.value) for word in words), refused.value
    assert "During handling" not in str(refused.value)


def test_the_last_line_of_a_batch_that_fails_is_our_sentence(
    spark: SparkSession, namesrv: str
) -> None:
    reader = spark.read.format("rocketmq").options(nameServer=namesrv, maxOffsetsPerTrigger="5")
    rows = reader.load("any")
    with pytest.raises(Exception) as refused:
        rows.count()
    assert "OptionError" in last_line(refused.value)
    assert "During handling" not in str(refused.value)


def test_offsets_in_a_checkpoint_are_those_of_the_documentation(
    spark: SparkSession, namesrv: str, send: Send, tmp_path: Path
) -> None:
    send("kept", 10)
    run(spark, namesrv, tmp_path, topic="kept")
    newest = max((tmp_path / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    value = json.loads(newest.read_text().splitlines()[-1])
    queues = value["topics"]["kept"]["broker-a"]
    assert (value["v"], sum(queues.values())) == (1, 10)
    rows = spark.read.format("rocketmq").options(nameServer=namesrv, topic="kept")
    assert rows.option("startingOffsets", json.dumps(value)).load().count() == 0


# ---- lag ----


def test_the_lag_falls_to_zero_in_progress_gauge_and_group(
    spark: SparkSession, namesrv: str, admin: AdminClient, send: Send, tmp_path: Path
) -> None:
    send("lagging", 60)
    admin.create_group("shown")
    listener = LagListener(port=0, progressGroup="shown", nameServer=namesrv, queryName="lagging")
    spark.streams.addListener(listener)
    try:
        rows = spark.readStream.format("rocketmq").option("maxOffsetsPerTrigger", "20")
        query = (
            rows.options(nameServer=namesrv)
            .load("lagging")
            .writeStream.format("noop")
            .queryName("lagging")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        finished(query)
        totals = [lag.of(progress).total for progress in query.recentProgress]
        assert totals[0] >= 40 and totals[-1] == 0
        assert totals == sorted(totals, reverse=True)
        for progress in query.recentProgress:
            behind = list(lag.of(progress).by_queue.values())
            (source,) = progress.sources
            assert json.loads(source.latestOffset)["metrics"] == {
                "minOffsetsBehindLatest": min(behind),
                "maxOffsetsBehindLatest": max(behind),
                "avgOffsetsBehindLatest": sum(behind) / len(behind),
            }
        until_sync(lambda: gauge(listener) == [0, 0], "the gauge shows that nothing waits")
        until_sync(
            lambda: sum(each.lag for each in admin.consume_progress("shown", "lagging")) == 0,
            "the group shows how far the query is",
        )
    finally:
        spark.streams.removeListener(listener)
        listener.close()


def test_the_lag_is_within_one_trigger_of_the_truth_while_producers_run(
    spark: SparkSession, namesrv: str, send: Send, tmp_path: Path
) -> None:
    send("busy", 600)
    listener = LagListener(port=0, queryName="busy")
    spark.streams.addListener(listener)
    rows = spark.readStream.format("rocketmq").option("maxOffsetsPerTrigger", "200")
    with Sending(namesrv, "busy", 600) as sending:
        query = (
            rows.options(nameServer=namesrv)
            .load("busy")
            .writeStream.format("noop")
            .queryName("busy")
            .option("checkpointLocation", str(tmp_path))
            .start()
        )
        try:
            until_sync(
                lambda: sum(gauge(listener)) > 0 and len(query.recentProgress) >= 3,
                "some triggers have passed, and the gauge has shown a lag",
                timeout_s=TIMEOUT_S,
            )
            sending.stop()
            query.processAllAvailable()
            until_sync(lambda: gauge(listener) == [0, 0], "the gauge shows that nothing waits")
            progresses = query.recentProgress
        finally:
            query.stop()
            spark.streams.removeListener(listener)
            listener.close()
    read = 0
    for progress in progresses:
        read += progress.numInputRows
        seen = read + lag.of(progress).total
        began = datetime.fromisoformat(progress.timestamp).timestamp()
        ended = began + (progress.durationMs["triggerExecution"] + 1) / 1000
        assert sending.acknowledged_before(began) <= seen <= sending.begun_before(ended), progress
    assert (lag.of(progresses[-1]).total, read) == (0, sending.begun_before(inf))


class Sending:
    """Sends to a topic all the time, in a thread, and notes how many messages it has at the broker
    when."""

    def __init__(self, namesrv: str, topic: str, before: int) -> None:
        """`before`: messages that are there."""
        self._namesrv, self._topic = namesrv, topic
        self._begun, self._acknowledged = [(0.0, before)], [(0.0, before)]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def begun_before(self, when: float) -> int:
        return max(count for at, count in self._begun if at <= when)

    def acknowledged_before(self, when: float) -> int:
        return max(count for at, count in self._acknowledged if at <= when)

    def _run(self) -> None:
        with Producer("busy", namesrv=self._namesrv) as producer:
            while not self._stopped.wait(0.05):
                count = self._begun[-1][1] + 10
                self._begun.append((time.time(), count))
                producer.send_batch([Message(self._topic, b"%d" % i) for i in range(10)])
                self._acknowledged.append((time.time(), count))


def gauge(listener: LagListener) -> list[float]:
    """The values that a Prometheus would see."""
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics") as page:
        lines = page.read().decode().splitlines()
    return [float(line.split()[-1]) for line in lines if line.startswith(lag.GAUGE + "{")]


def test_a_group_that_is_not_there_shows_no_progress(namesrv: str) -> None:
    with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
        LagListener(progressGroup="nowhere", nameServer=namesrv)
