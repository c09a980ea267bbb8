"""The data source and the figures of the report inside Spark, against real services and, for what
only age or damage brings, a fake broker. One session for all tests here.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aerobee_client import AdminClient, Message, Producer
from aerobee_spark.reading.offsets import Queue
from aerobee_spark.report.data import facts, plan
from aerobee_spark.report.data.coverage import Coverage, with_rows
from aerobee_spark.report.data.forecast import Forecast
from aerobee_spark.report.data.summary import Summary, build
from aerobee_spark.report.engines.spark_engine import figures_of, write_facts
from aerobee_spark.report.request import DLQ, RETRY, SPARK, ReportRequest
from aerobee_spark.report.view import listing
from aerobee_wire import record, topics
from support.client.fake_broker import FakeBroker, FakeCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GROUP = "arrivals"
DEAD, RETRIES = topics.dead_letter_topic(GROUP), topics.retry_topic(GROUP)
NOW_MS = 1_760_000_100_000
Read = Callable[..., "DataFrame"]


@pytest.fixture
def read(spark: SparkSession, cluster: FakeCluster) -> Read:
    """Reads from the fake cluster; named arguments are options."""
    return lambda **options: (
        spark.read.format("rocketmq").options(nameServer=cluster.namesrv, **options).load()
    )


def offsets(rows: DataFrame) -> list[tuple[str, int, int]]:
    found = rows.select("brokerName", "queueId", "queueOffset").collect()
    return sorted(tuple(row) for row in found)


# ---- on the fake cluster ----


def test_a_read_that_has_enough_rows_prints_no_traceback(
    read: Read, cluster: FakeCluster, spark_log: Path
) -> None:
    for number in range(20_000):
        cluster["broker-a"].put("many", b"x" * 300, named={"KEYS": f"k{number}"})
    printed = len(spark_log.read_text())
    for _ in range(2):
        assert len(read(topic="many", pullBatchSize="512").take(3)) == 3
    assert read(topic="many").count() == 20_000
    assert "Traceback" not in spark_log.read_text()[printed:]


def test_kafkas_options_select_by_time_and_add_headers(read: Read, cluster: FakeCluster) -> None:
    broker = cluster["broker-a"]
    for number in range(6):
        named = {"TAGS": "UA", "color": "é"}
        broker.put("t", b"x", queue_id=number % 2, named=named, store_timestamp_ms=1000 * number)
    by_time = json.dumps({"t": {"broker-a": {"1": 2000}}})
    rows = read(topic="t", startingOffsetsByTimestamp=by_time, includeHeaders="true")
    assert offsets(rows) == [("broker-a", 0, n) for n in range(3)] + [
        ("broker-a", 1, n) for n in (1, 2)
    ]
    (first, *_) = rows.select("headers", "properties").collect()
    assert {each.key: bytes(each.value) for each in first.headers} == {
        name: value.encode() for name, value in first.properties.items()
    }
    assert {each.key for each in first.headers} >= {"TAGS", "color"}


# ---- the data source, on real services ----


def test_every_column_of_every_row_is_what_the_broker_stored(
    spark: SparkSession, namesrv: str
) -> None:
    sent = [
        Message(
            "flights",
            f"body {i} ü".encode() * (1 + i % 7),
            tag=f"T{i % 3}" if i % 4 else "",
            keys=[f"k{i}", "all"] if i % 5 else (),
            properties={"note": "Zürich"} if i % 2 else None,
            flag=i,
        )
        for i in range(300)
    ]
    with AdminClient(namesrv) as admin, Producer("tests", namesrv=namesrv) as producer:
        admin.create_topic("flights", queues=3)
        producer.send_batch(sent)
        stored = [
            row
            for status in admin.topic_status("flights")
            for row in record.iter_records(browse_all(admin, status.queue_id))
        ]
    rows = (
        spark.read.format("rocketmq")
        .options(nameServer=namesrv, topic="flights", maxRecordsPerPartition="40")
        .load()
    )
    assert rows.rdd.getNumPartitions() >= len(sent) // 40
    found = rows.selectExpr(
        "*", "unix_millis(bornTimestamp) AS born_ms", "unix_millis(storeTimestamp) AS store_ms"
    ).orderBy("queueId", "queueOffset")
    assert [comparable(row.asDict()) for row in found.collect()] == [
        {
            "topic": "flights",
            "brokerName": "broker-a",
            "queueId": row.queue_id,
            "queueOffset": row.queue_offset,
            "msgId": row.unique_message_id,
            "offsetMsgId": row.offset_message_id,
            "tags": row.properties.get("TAGS"),
            "keys": row.properties.get("KEYS"),
            "body": row.body,
            "bodySize": len(row.body),
            "flag": row.flag,
            "sysFlag": row.sys_flag,
            "born_ms": row.born_timestamp_ms,
            "store_ms": row.store_timestamp_ms,
            "bornHost": row.born_host,
            "storeHost": row.store_host,
            "reconsumeTimes": row.reconsume_times,
            "properties": row.properties,
        }
        for row in stored
    ]
    assert len(stored) == len(sent)


def browse_all(admin: AdminClient, queue_id: int) -> bytes:
    """The records of a queue of flights, as the client browses them."""
    records, offset = b"", 0
    while True:
        page = admin.browse("flights", "broker-a", queue_id, offset)
        if not page.message_count:
            return records
        records, offset = records + page.records, page.next_begin_offset


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    row["body"] = bytes(row["body"])
    return {k: v for k, v in row.items() if k not in ("bornTimestamp", "storeTimestamp")}


def test_large_bodies_pass(spark: SparkSession, namesrv: str) -> None:
    """Two of them exceed the default limit of gRPC."""
    bodies = [bytes([i]) * 3_500_000 for i in range(3)]
    with AdminClient(namesrv) as admin, Producer("tests", namesrv=namesrv) as producer:
        admin.create_topic("large", queues=1)
        for body in bodies:
            producer.send(Message("large", body))
    rows = spark.read.format("rocketmq").options(nameServer=namesrv, topic="large").load()
    found = rows.selectExpr("bodySize", "crc32(body)").orderBy("queueOffset").collect()
    assert [tuple(row) for row in found] == [(len(body), zlib.crc32(body)) for body in bodies]


def test_an_empty_topic_has_no_rows_and_its_schema(spark: SparkSession, namesrv: str) -> None:
    with AdminClient(namesrv) as admin:
        admin.create_topic("empty", queues=2)
    rows = spark.read.format("rocketmq").options(nameServer=namesrv, topic="empty").load()
    assert rows.count() == 0
    assert "queueOffset" in rows.columns


def test_spark_finds_the_format_by_itself(spark: SparkSession, namesrv: str) -> None:
    with AdminClient(namesrv) as admin:
        admin.create_topic("found", queues=1)
    unregistered = spark.newSession()
    rows = unregistered.read.format("rocketmq").options(nameServer=namesrv, topic="found").load()
    assert rows.count() == 0


# ---- the data source, on a fake broker ----


def put(broker: FakeBroker, count: int, topic: str = "flights", queue_id: int = 0) -> None:
    for i in range(count):
        broker.put(topic, f"{i}".encode(), queue_id=queue_id, named={"TAGS": f"T{i % 3}"})


def test_ranges_of_several_brokers_are_read_once_each(cluster: FakeCluster, read: Read) -> None:
    put(cluster["broker-a"], 25)
    put(cluster["broker-a"], 10, queue_id=1)
    put(cluster["broker-b"], 7)
    found = offsets(read(topic="flights", maxRecordsPerPartition="10", minPartitions="3"))
    assert found == [
        *(("broker-a", 0, i) for i in range(25)),
        *(("broker-a", 1, i) for i in range(10)),
        *(("broker-b", 0, i) for i in range(7)),
    ]


def test_tags_and_columns_can_be_chosen(cluster: FakeCluster, read: Read) -> None:
    put(cluster["broker-a"], 30)
    rows = read(topic="flights", subExpression="T1 || T2", includeBody="false")
    assert {row.tags for row in rows.collect()} == {"T1", "T2"}
    assert rows.where("body IS NOT NULL").count() == 0
    assert rows.where("bodySize > 0").count() == 20


def test_a_schema_of_the_users_chooses_columns(
    spark: SparkSession, cluster: FakeCluster, read: Read
) -> None:
    put(cluster["broker-a"], 3)
    rows = (
        spark.read.format("rocketmq")
        .schema("tags STRING, queueOffset BIGINT")
        .options(nameServer=cluster.namesrv, topic="flights")
        .load()
    )
    assert sorted(tuple(row) for row in rows.collect()) == [("T0", 0), ("T1", 1), ("T2", 2)]


def test_data_loss_fails_the_read_and_names_queue_and_offsets(
    cluster: FakeCluster, read: Read
) -> None:
    put(cluster["broker-a"], 9)
    cluster["broker-a"].queue("flights").min_offset = 5
    start = json.dumps({"flights": {"broker-a": {"0": 2}}})
    with pytest.raises(Exception, match=str(Queue("flights", "broker-a", 0))):
        read(topic="flights", startingOffsets=start).count()
    assert read(topic="flights", startingOffsets=start, failOnDataLoss="false").count() == 4


def test_an_unknown_option_fails_with_the_nearest_name(read: Read) -> None:
    with pytest.raises(
        Exception, match="startingoffset does not exist: did you mean startingOffsets"
    ):
        read(topic="flights", startingOffset="earliest")


def test_the_last_line_of_a_failure_is_our_sentence_and_no_secret_is_reported(
    cluster: FakeCluster, read: Read
) -> None:
    put(cluster["broker-a"], 9)
    queue = cluster["broker-a"].queue("flights")

    def expire(request: Any) -> None:
        queue.min_offset = 5

    cluster["broker-a"].before_pull = expire
    secret = "that nobody may read"
    for options, error in (
        ({"secretKey": secret}, "OptionError: the option "),
        ({}, "DataLossError: queue 0 of flights "),  # in a task
    ):
        with pytest.raises(Exception) as caught:
            read(topic="flights", **options).collect()
        reported = str(caught.value).partition(" SQLSTATE")[0].strip()
        assert reported.splitlines()[-1].startswith(f"aerobee_spark.errors.{error}")
        assert "During handling" not in reported and "direct cause" not in reported
        assert secret not in reported


# ---- figures of the report ----


def died(broker: FakeBroker, number: int, tag: str, reason: str, **more: Any) -> None:
    """Message `number` is retried twice, then dead-lettered 10 s after it was born."""
    born = 1_760_000_000_000 + 1000 * number
    named = {
        "TAGS": tag,
        "KEYS": f"{tag}-{number % 2}",
        "UNIQ_KEY": f"ID{number}",
        "RETRY_TOPIC": "flights",
        "ORIGIN_MESSAGE_ID": f"O{number}",
        "DLQ_REASON": reason,
    } | more
    body = json.dumps({"number": number}).encode()
    for times in (1, 2):
        broker.put(
            RETRIES,
            body,
            named=named,
            born_timestamp_ms=born,
            store_timestamp_ms=born + 1000 * times,
            reconsume_times=times,
        )
    broker.put(
        DEAD,
        body,
        named=named,
        born_timestamp_ms=born,
        store_timestamp_ms=born + 10_000,
        reconsume_times=3,
    )


def report_on(
    spark: SparkSession, cluster: FakeCluster, folder: Path, **more: Any
) -> tuple[Summary, Path]:
    """Plan, facts, figures and summary, as the job makes them."""
    request = ReportRequest(cluster.namesrv, GROUP, folder, **more)
    planned = plan.queues(request)
    target = folder / "facts"
    schema = write_facts(spark, request, Coverage(tuple(planned)).to_read, target)
    found = figures_of(spark, target, schema, bucket_ms=10_000, top=request.top)
    rows = found.rows_by_queue()
    coverage = with_rows(planned, rows, plan.reasons(request, planned, rows))
    summary = build(
        request,
        coverage,
        found,
        engine=SPARK,
        forecast=Forecast(),
        now_ms=NOW_MS,
        bucket_ms=10_000,
        earlier=None,
    )
    return summary, target


def test_a_group_without_messages_has_files_with_the_same_columns(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster["broker-a"].groups.add(GROUP)
    summary, folder = report_on(spark, cluster, tmp_path / "none")
    assert (summary["complete"], summary["dead_letters"]) == (True, 0)
    columns = spark.read.parquet(str(folder)).schema
    died(cluster["broker-a"], 1, "UA", "NeverArrived")
    assert spark.read.parquet(str(report_on(spark, cluster, tmp_path / "one")[1])).schema == columns


def test_the_figures_are_those_of_the_messages(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    for number in range(12):
        died(cluster["broker-a"], number, "UA" if number % 3 else "AA", "NeverArrived")
    for number in range(12, 16):
        died(cluster["broker-b"], number, "B6", "ValueError")
    died(cluster["broker-b"], 12, "B6", "ValueError")  # redriven, and dead-lettered again
    summary, folder = report_on(spark, cluster, tmp_path)
    assert summary["complete"] and summary["problems"] == []
    assert (summary["rows"], summary["rows_expected"]) == (51, 51)
    assert summary["dead_letters"] == summary["new_dead_letters"] == 17
    assert (summary["dead_messages"], summary["dead_lettered_again"]) == (16, 1)
    assert summary["dead_letters_by_tag"] == {"UA": 8, "B6": 5, "AA": 4}
    assert summary["dead_letters_by_reason"] == {"NeverArrived": 12, "ValueError": 5}
    assert summary["dead_letters_by_origin_topic"] == {"flights": 17}
    assert summary["dead_letters_by_producer"] == {"10.0.0.9": 17}
    assert summary["reconsume_times"] == {"3": 17}
    assert summary["time_to_dead_letter_ms"] == {"p50": 10_000, "p95": 10_000, "max": 10_000}
    assert summary["oldest_dead_letter"]["store_timestamp_ms"] == 1_760_000_010_000
    assert summary["newest_dead_letter"]["age_ms"] == NOW_MS - 1_760_000_025_000
    assert summary["retries"]["records"] == 34
    assert summary["retries"]["messages"] == summary["retries"]["messages_dead_lettered"] == 16
    assert summary["retries"]["records_by_reconsume_times"] == {"1": 17, "2": 17}
    assert [(each["key"], each["messages"]) for each in summary["poison_keys"]] == [
        ("UA-0", 4),
        ("UA-1", 4),
        ("B6-0", 2),  # one of them was dead-lettered twice
        ("AA-0", 2),
        ("AA-1", 2),
        ("B6-1", 2),
    ]
    buckets = summary["timeline"]["buckets"]
    assert sum(each["dead_letters"] for each in buckets) == 17
    assert sum(each["retries"] for each in buckets) == 34
    assert buckets == sorted(buckets, key=lambda each: each["start_ms"])
    assert {sample["tag"] for sample in summary["samples"]} == {"UA", "AA", "B6"}
    assert json.loads(summary["samples"][0]["body"]).keys() == {"number"}
    assert len(list(listing.dead_letters(folder))) == 17
    assert facts.time_span(folder) == (1_760_000_001_000, 1_760_000_025_000)


def test_a_group_without_dead_letters_has_zeros(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster["broker-a"].groups.add(GROUP)
    summary, folder = report_on(spark, cluster, tmp_path, kinds=(DLQ,))
    assert summary["complete"]
    assert (summary["dead_letters"], summary["dead_letters_by_tag"]) == (0, {})
    assert summary["oldest_dead_letter"] is None
    assert summary["retries"] is None
    assert list(listing.dead_letters(folder)) == []
    assert facts.time_span(folder) is None


def test_a_time_window_selects_by_store_time(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    for number in range(10):
        died(cluster["broker-a"], number, "UA", "NeverArrived")
    window = {"since_ms": 1_760_000_012_000, "until_ms": 1_760_000_015_000}
    summary, _ = report_on(spark, cluster, tmp_path, kinds=(DLQ,), **window)
    assert (summary["complete"], summary["dead_letters"]) == (True, 3)


def test_messages_without_tag_reason_or_sane_times_are_counted(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    broker = cluster["broker-a"]
    for born in (-(2**62), -62_135_596_800_000, 2**62, 0):
        broker.put(DEAD, b"\xff\x00", born_timestamp_ms=born)
    summary, _ = report_on(spark, cluster, tmp_path, kinds=(DLQ,), include_bodies=False)
    assert summary["complete"]
    assert summary["dead_letters_by_tag"] == summary["dead_letters_by_reason"] == {"": 4}
    assert {sample["body_kind"] for sample in summary["samples"]} == {"omitted"}


def test_deletion_while_reading_makes_the_report_incomplete(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    for number in range(20):
        died(cluster["broker-a"], number, "UA", "NeverArrived")
    queue = cluster["broker-a"].queue(DEAD)

    def expire(request: Any) -> None:
        if request.topic == DEAD and request.queue_offset == 0:
            queue.min_offset = 5

    cluster["broker-a"].before_pull = expire
    summary, _ = report_on(spark, cluster, tmp_path)
    assert not summary["complete"]
    assert (summary["dead_letters"], summary["rows"], summary["rows_expected"]) == (15, 55, 60)
    (problem,) = summary["problems"]
    assert problem.startswith(str(Queue(DEAD, "broker-a", 0)))
    assert "15 of 20 " in problem


def test_corrupt_records_make_the_report_incomplete(
    spark: SparkSession, cluster: FakeCluster, tmp_path: Path
) -> None:
    for number in range(6):
        died(cluster["broker-a"], number, "UA", "NeverArrived")
    cluster["broker-a"].queue(DEAD).corrupt = {2}
    summary, _ = report_on(spark, cluster, tmp_path, kinds=(DLQ, RETRY))
    assert (summary["complete"], summary["dead_letters"]) == (False, 5)
    assert "5 of 6 " in summary["problems"][0]
