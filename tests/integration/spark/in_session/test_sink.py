"""The sink inside Spark: what is at the brokers after a write, a repeated one, a broker's death,
and a failure. One session for all tests here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aerobee_client import AdminClient, Message, Producer
from aerobee_spark.report import job
from aerobee_spark.report.request import LOCAL, ReportRequest
from aerobee_wire import record
from aerobee_wire.compression import decompress
from aerobee_wire.record import Record
from support.clock.polling import until_sync
from support.processes import redriving
from support.processes.command import aerobee_json
from support.spark.sink import MIB, TIMEOUT_S, Write, columns_of, ids, last_line, numbers, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = """cast(id as string) body, concat('T', id % 3) tags, array('all', cast(id as string)) keys,
    map('number', cast(id as string), 'note', 'Zürich') properties, cast(id as int) flag"""


def users(properties: dict[str, str]) -> dict[str, str]:
    """The properties without the message id, which another message has another of."""
    return {name: value for name, value in properties.items() if name != "UNIQ_KEY"}


@pytest.fixture
def write(namesrv: str) -> Write:
    """`write(rows, **options)`."""
    return lambda rows, **options: (
        rows.write.format("rocketmq")
        .options(**{"nameServer": namesrv} | options)
        .mode("append")
        .save()
    )


# ---- a batch ----


def test_each_row_is_at_the_broker_as_it_was(
    spark: SparkSession, admin: AdminClient, write: Write, topic: str
) -> None:
    count = 30_000  # so that each of the two tasks has five requests, more than there are queues
    write(spark.range(count, numPartitions=2).selectExpr(*columns_of(ROWS)), topic=topic)
    found = {int(each.body): each for each in stored(admin, topic)}
    assert sorted(found) == list(range(count))
    assert len(ids(list(found.values()))) == count
    assert {each.queue_id for each in found.values()} == {0, 1, 2, 3}
    for number, each in found.items():
        assert each.flag == number
        assert users(dict(each.properties)) == {
            "TAGS": f"T{number % 3}",
            "KEYS": f"all {number}",
            "number": str(number),
            "note": "Zürich",
        }
    (by_key,) = admin.query_messages(topic, key="777", max_messages=2)
    assert by_key.message_id == found[777].unique_message_id


def test_a_frame_that_was_read_is_written_as_it_is(
    spark: SparkSession, namesrv: str, admin: AdminClient, write: Write, topic: str
) -> None:
    with Producer("tests", namesrv=namesrv, compression="zlib", compress_over=500) as producer:
        for number in range(200):
            body = b"%d" % number + b" " * (1000 if number % 5 == 0 else 0)
            note = {"note": "ü" * (number % 4 + 1)} if number % 7 else None
            tag, keys = f"T{number % 3}" if number % 4 else "", ["a", "b"] if number % 5 else ()
            group = f"g{number % 3}" if number % 2 else ""
            producer.send(
                Message(
                    topic,
                    body,
                    tag=tag,
                    keys=keys,
                    properties=note,
                    flag=number,
                    message_group=group,
                )
            )
    before = stored(admin, topic)
    assert any(each.sys_flag & record.COMPRESSED for each in before)
    for encoding in ("stored", "plain"):
        rows = spark.read.format("rocketmq").options(
            nameServer=namesrv, topic=topic, bodyEncoding=encoding
        )
        copy = f"{topic}_{encoding}"
        admin.create_topic(copy, queues=4)
        write(rows.load(), topic=copy)
        after = stored(admin, copy)
        assert [comparable(each, encoding) for each in after] == [
            comparable(each, encoding) for each in before
        ]
        assert not ids(after) & ids(before)


def comparable(found: Record, encoding: str) -> tuple[Any, ...]:
    """What a copy has in common, in the order of its queue. Brokers add to single sends alone, and
    the client to none: where and whether traced."""
    added = ("UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON")
    named = {name: value for name, value in found.properties.items() if name not in added}
    compressed = found.sys_flag & (record.COMPRESSED | 0x700)
    body, flags = found.body, compressed
    if encoding == "plain" and compressed:
        body, flags = decompress(found.body, found.sys_flag), 0
    if encoding == "plain":
        flags = 0
    return (found.queue_id, bytes(body), flags, found.flag, named)


def test_bodies_up_to_the_limit_are_sent(
    spark: SparkSession, admin: AdminClient, write: Write, topic: str
) -> None:
    sizes = [1, 4 * MIB, 3 * MIB, 4 * MIB, 1]
    values = ", ".join(str(row) for row in enumerate(sizes))
    rows = spark.sql(f"SELECT * FROM VALUES {values} AS (id, size)")
    write(rows.selectExpr("repeat(cast(id as string), size) body"), topic=topic)
    found = sorted((bytes(each.body[:1]), len(each.body)) for each in stored(admin, topic))
    assert found == [(b"%d" % i, size) for i, size in enumerate(sizes)]


def test_the_topic_may_be_a_column_and_the_option_wins(
    spark: SparkSession, admin: AdminClient, write: Write, topic: str
) -> None:
    other = f"{topic}_other"
    admin.create_topic(other, queues=1)
    rows = spark.range(100).selectExpr(
        "cast(id as string) body", f"if(id % 3 = 0, '{other}', '{topic}') topic"
    )
    write(rows)
    assert numbers(stored(admin, other)) == list(range(0, 100, 3))
    assert len(stored(admin, topic)) == 66
    write(rows, topic=other)
    assert len(stored(admin, other)) == 134


def test_messages_of_a_group_stay_in_order_in_the_queue_that_clients_choose(
    spark: SparkSession, namesrv: str, admin: AdminClient, write: Write, topic: str
) -> None:
    rows = spark.range(20_000, numPartitions=1).selectExpr(
        "cast(id as string) body", "concat('g', id % 7) messageGroup"
    )
    write(rows, topic=topic)
    queue_of: dict[str, int] = {}
    last: dict[str, int] = {}
    for each in stored(admin, topic):
        group = each.properties["__SHARDINGKEY"]
        assert queue_of.setdefault(group, each.queue_id) == each.queue_id
        assert last.get(group, -1) < int(each.body)
        last[group] = int(each.body)
    assert len(last) == 7
    with Producer("tests", namesrv=namesrv) as producer:
        for group, queue_id in queue_of.items():
            sent = producer.send(Message(topic, b"0", message_group=group))
            assert sent.queue.queue_id == queue_id


def test_delayed_rows_are_delivered_in_time(
    spark: SparkSession, admin: AdminClient, write: Write, topic: str
) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=2)).timestamp()
    write(spark.range(50).selectExpr("cast(id as string) body", "1.5D delaySeconds"), topic=topic)
    at = spark.range(50, 100).selectExpr(
        "cast(id as string) body", f"timestamp_seconds({soon}) deliverAt"
    )
    write(at, topic=topic)
    until_sync(lambda: len(stored(admin, topic)) == 100, timeout_s=TIMEOUT_S)
    found = stored(admin, topic)
    assert numbers(found) == list(range(100))
    delivered = [each.store_timestamp_ms for each in found if int(each.body) >= 50]
    assert min(delivered) >= soon * 1000


def test_the_rate_is_that_of_all_tasks_together(
    spark: SparkSession, admin: AdminClient, write: Write, topic: str
) -> None:
    """No time is asserted of this machine, but that brokers stored them no faster."""
    rows = spark.range(2000, numPartitions=2).selectExpr("cast(id as string) body")
    write(rows, topic=topic, maxMessagesPerSecond="1000")
    times = [each.store_timestamp_ms for each in stored(admin, topic)]
    assert len(times) == 2000
    assert max(times) - min(times) >= 1500
    assert not [each for each in admin.list_clients() if each.producer_groups]


# ---- again ----


def test_a_repeated_write_has_equal_message_ids(
    spark: SparkSession, admin: AdminClient, write: Write, topic: str
) -> None:
    rows = spark.range(5000, numPartitions=3).selectExpr("cast(id as string) body")
    for _ in range(2):
        write(rows, topic=topic, writeId="july")
    found = stored(admin, topic)
    by_id: dict[str, list[bytes]] = {}
    for each in found:
        by_id.setdefault(each.unique_message_id, []).append(bytes(each.body))
    assert len(found) == 10_000
    assert len(by_id) == 5000
    assert all(first == second for first, second in by_id.values())
    write(rows, topic=topic)
    assert len(ids(stored(admin, topic))) == 10_000


def test_a_stream_sends_each_row_and_a_repeated_batch_under_equal_ids(
    spark: SparkSession, namesrv: str, admin: AdminClient, topic: str, tmp_path: Path
) -> None:
    with Producer("tests", namesrv=namesrv) as producer:
        producer.send_batch([Message(topic, b"%d" % i) for i in range(3000)])
    copy = f"{topic}_copy"
    admin.create_topic(copy, queues=2)

    def run() -> None:
        rows = spark.readStream.format("rocketmq").options(
            nameServer=namesrv, topic=topic, maxOffsetsPerTrigger="1000"
        )
        stream = rows.load().select("body", "properties", "queueOffset").writeStream
        query = (
            stream.format("rocketmq")
            .queryName("copy")
            .options(nameServer=namesrv, topic=copy, checkpointLocation=str(tmp_path / "point"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_S)

    run()
    first = stored(admin, copy)
    assert numbers(first) == list(range(3000))
    # As a kill between the output and the commit of the last batch leaves it.
    commits = sorted((tmp_path / "point" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    assert len(commits) >= 3
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    run()
    again = stored(admin, copy)
    assert 3000 < len(again) <= 4000
    assert ids(again) == ids(first)
    assert len({(each.unique_message_id, bytes(each.body)) for each in again}) == 3000


# ---- redrive by query, and SQL ----


def test_a_query_redrives_what_the_command_redrives(
    spark: SparkSession, namesrv: str, admin: AdminClient, write: Write, topic: str
) -> None:
    redriving.fill(namesrv, "billing", f"{topic}_origin", 700)
    by_query, by_command = f"{topic}_query", f"{topic}_command"
    for name in (by_query, by_command):
        admin.create_topic(name, queues=2)
    read = spark.read.format("rocketmq").options(nameServer=namesrv, consumerGroup="billing")
    some = read.load().where("tags = 'tag-3' AND cast(body AS string) LIKE '%.'")
    write(some, redrive=f"topic:{by_query}")
    chosen = ("--all", "--tag", "tag-3", "--to", f"topic:{by_command}")
    assert aerobee_json("dlq", "redrive", "billing", *chosen, namesrv=namesrv)["sent"] == 100
    assert redriven(admin, by_query) == redriven(admin, by_command)
    write(some, redrive="origin")
    assert redriven(admin, f"{topic}_origin") == redriven(admin, by_query)
    with pytest.raises(Exception, match="add the column offsetMsgId"):
        write(some.drop("offsetMsgId"), redrive="origin")


def test_rows_of_a_facts_table_are_redriven(
    write: Write, spark: SparkSession, namesrv: str, topic: str, tmp_path: Path
) -> None:
    """As `aerobee report` and `aerobee facts` write them. The broker has deleted them."""
    redriving.fill(namesrv, "archivists", f"{topic}_origin", 50)
    request = ReportRequest(namesrv, "archivists", tmp_path / "report", engine=LOCAL)
    job.run(request, lambda step: None)
    aerobee_json("dlq", "purge", "archivists", "--yes", namesrv=namesrv)
    facts = spark.read.parquet(str(tmp_path / "report" / "facts")).where("kind = 'dlq'")
    write(facts, redrive="origin")
    assert redriving.message_ids(namesrv, f"{topic}_origin").total() == 50


def redriven(admin: AdminClient, topic: str) -> dict[str, tuple[Any, ...]]:
    """What differs between two redrives is when, and what a broker adds to single sends."""
    aside = ("REDRIVE_TIMESTAMP", "CLUSTER", "MSG_REGION", "TRACE_ON")
    return {
        each.unique_message_id: (
            bytes(each.body),
            each.flag,
            {name: value for name, value in each.properties.items() if name not in aside},
        )
        for each in stored(admin, topic)
    }


def test_sql_inserts_into_a_view(
    spark: SparkSession, namesrv: str, admin: AdminClient, topic: str
) -> None:
    options = f"(nameServer '{namesrv}', topic '{topic}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW read_view USING rocketmq OPTIONS {options}")
    spark.sql("INSERT INTO read_view (tags, body) VALUES ('sql', cast('1' AS binary))")
    columns = "body STRING, keys ARRAY<STRING>, messageGroup STRING"
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW own_view({columns}) USING rocketmq OPTIONS "
        f"(nameServer '{namesrv}', topic '{topic}', writeId 'sql')"
    )
    spark.sql("INSERT INTO own_view VALUES ('2', array('a', 'b'), 'g'), ('3', null, null)")
    found = {int(each.body): users(dict(each.properties)) for each in stored(admin, topic)}
    assert found == {1: {"TAGS": "sql"}, 2: {"KEYS": "a b", "__SHARDINGKEY": "g"}, 3: {}}
    assert spark.table("read_view").count() == 3
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        spark.sql("INSERT OVERWRITE own_view VALUES ('4', null, null)")
    spark.sql(f"CREATE TABLE sink_table USING rocketmq OPTIONS {options}")
    with pytest.raises(Exception) as raised:
        spark.sql("INSERT INTO sink_table (body) VALUES (cast('5' AS binary))")
    assert "CREATE TEMPORARY VIEW v USING rocketmq OPTIONS" in last_line(raised.value)
    assert len(stored(admin, topic)) == 3


# ---- what cannot be written ----


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ("cast(id as string) body, id as tagz", {}, "the column tagz cannot be written"),
        ("cast(id as string) body", {"startingOffsets": "latest"}, "is only for spark.read"),
    ],
)
def test_what_no_row_can_mend_is_refused_before_any_task(  # noqa: PLR0917
    spark: SparkSession,
    admin: AdminClient,
    write: Write,
    topic: str,
    columns: str,
    options: dict[str, str],
    sentence: str,
) -> None:
    rows = spark.range(10).selectExpr(*columns_of(columns))
    with pytest.raises(Exception) as raised:
        write(rows, topic=topic, **options)
    assert last_line(raised.value).startswith("aerobee_spark.errors.OptionError: ")
    assert sentence in last_line(raised.value)
    assert stored(admin, topic) == []


def test_a_failure_says_how_many_were_sent_and_they_stay(
    spark: SparkSession, admin: AdminClient, write: Write, topic: str
) -> None:
    rows = spark.range(25_000, numPartitions=1).selectExpr("if(id = 24999, null, 'x') body")
    with pytest.raises(Exception) as raised:
        write(rows, topic=topic)
    line = last_line(raised.value)
    count = len(stored(admin, topic))
    assert "partition 0, row 24999: the body is null" in line
    assert f"({count} messages of this task were sent before and remain stored)" in line
    assert 0 < count < 25_000


def test_a_topic_cannot_be_overwritten(spark: SparkSession, namesrv: str, topic: str) -> None:
    rows = spark.range(10).selectExpr("cast(id as string) body").write.format("rocketmq")
    with pytest.raises(Exception) as raised:
        rows.options(nameServer=namesrv, topic=topic).mode("overwrite").save()
    assert "OptionError: a topic cannot be overwritten" in last_line(raised.value)


def test_the_case_of_columns_is_as_spark_says(
    spark: SparkSession, admin: AdminClient, write: Write, topic: str
) -> None:
    rows = spark.range(10).selectExpr("cast(id as string) BODY")
    write(rows, topic=topic)
    assert len(stored(admin, topic)) == 10
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(Exception) as raised:
            write(rows, topic=topic)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert "OptionError: the column BODY cannot be written: did you mean body?" in last_line(
        raised.value
    )
    assert len(stored(admin, topic)) == 10


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ("'x' body, 1 as flags", {}, "the column flags cannot be written"),
        ("if(value = 3, '', 'x') body", {}, "the body is empty"),
    ],
)
def test_a_stream_ends_with_the_same_sentences(  # noqa: PLR0917
    spark: SparkSession,
    namesrv: str,
    admin: AdminClient,
    topic: str,
    tmp_path: Path,
    columns: str,
    options: dict[str, str],
    sentence: str,
) -> None:
    rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=10, numPartitions=1)
    stream = rows.load().selectExpr(*columns_of(columns)).writeStream.format("rocketmq")
    given = {"nameServer": namesrv, "topic": topic, "checkpointLocation": str(tmp_path)} | options
    query = stream.options(**given).start()
    try:
        with pytest.raises(Exception) as raised:
            query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()
    assert sentence in str(raised.value)
    assert stored(admin, topic) == []


def test_a_stream_with_another_mode_is_refused(
    spark: SparkSession, namesrv: str, topic: str, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    counted = rows.groupBy("value").count().selectExpr("cast(count as string) body")
    stream = counted.writeStream.format("rocketmq").outputMode("complete")
    query = stream.options(
        nameServer=namesrv, topic=topic, checkpointLocation=str(tmp_path)
    ).start()
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        query.awaitTermination(TIMEOUT_S)
    query.stop()
