"""Odd messages on two brokers with the same queue ids, in a batch, a stream and the sink: bodies
that are no text, as large as they may be, compressed, and compressed and damaged; messages without
keys. And topics that are empty, and a broker that does not answer. One session for all tests here.
"""

from __future__ import annotations

import json
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aerobee_client import AdminClient
from aerobee_wire import record
from support.clock.polling import until_sync
from support.processes.service import ServiceProcess, broker_process, namesrv_process
from support.spark.sink import MIB, TIMEOUT_S, last_line, numbers, stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BROKERS = ("broker-a", "broker-b")
QUEUES = 2
TEXT = b"a body that is worth it " * 50
DAMAGED = zlib.compress(TEXT)[:-9]
# Body and sys flag as they are written, and as `spark.read` gives them.
ODD = [
    ((b"\xff\xfe\x00", 0), (b"\xff\xfe\x00", 0)),
    ((b"x" * 4 * MIB, 0), (b"x" * 4 * MIB, 0)),
    ((zlib.compress(TEXT), record.COMPRESSED), (TEXT, 0)),
    ((DAMAGED, record.COMPRESSED), (DAMAGED, record.COMPRESSED)),
]
EXPECTED = [
    (broker, queue_id, offset, body, compressed, None, None)
    for broker in BROKERS
    for queue_id in range(QUEUES)
    for offset, (_, (body, compressed)) in enumerate(ODD)
]
COLUMNS = ("body", "sysFlag", "brokerName", "queueId", "tags", "keys")


@pytest.fixture(scope="module")
def services(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    """The name server, and the second of two brokers."""
    homes = [tmp_path_factory.mktemp(name) for name in ("n", "a", "b")]
    with (
        namesrv_process(homes[0]) as namesrv,
        broker_process(homes[1], namesrv=namesrv.address),
        broker_process(homes[2], "--set=brokerName=broker-b", namesrv=namesrv.address) as second,
    ):
        yield namesrv, second


@pytest.fixture(scope="module")
def namesrv(services: tuple[ServiceProcess, ServiceProcess]) -> str:
    return services[0].address


@pytest.fixture(scope="module")
def odd(spark: SparkSession, namesrv: str, admin: AdminClient) -> str:
    """The topic with the odd messages, in this order in each queue of each broker."""
    admin.create_topic("odd", queues=QUEUES)
    rows = [
        (body, flags, broker, queue_id, None, None)
        for broker in BROKERS
        for queue_id in range(QUEUES)
        for (body, flags), _ in ODD
    ]
    write(frame(spark, rows).coalesce(1), namesrv, topic="odd")
    return "odd"


def frame(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    """Rows with COLUMNS. Spark reads an Arrow table without Python workers.

    Workers that make rows of Python's objects do not import our package. They print a traceback
    when Spark closes them after a minute, and another test finds it in the log.
    """
    import pyarrow as pa

    types = (pa.binary(), pa.int32(), pa.string(), pa.int32(), pa.string(), pa.string())
    schema = pa.schema(zip(COLUMNS, types, strict=True))
    named = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    return spark.createDataFrame(pa.Table.from_pylist(named, schema))


def write(rows: DataFrame, namesrv: str, **options: str) -> None:
    given = {"nameServer": namesrv} | options
    rows.write.format("rocketmq").options(**given).mode("append").save()


def read(spark: SparkSession, namesrv: str, topic: str, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").options(nameServer=namesrv, **options).load(topic)


def run(
    spark: SparkSession, namesrv: str, topic: str, checkpoint: Path, **options: str
) -> list[tuple[Any, ...]]:
    """What a run of the stream under Trigger.AvailableNow reads."""
    found: list[tuple[Any, ...]] = []
    rows = spark.readStream.format("rocketmq").options(nameServer=namesrv, **options).load(topic)
    query = (
        rows.writeStream.foreachBatch(lambda batch, _: found.extend(comparable(batch)))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S)
    return sorted(found, key=lambda row: row[:3])


def comparable(rows: DataFrame) -> list[tuple[Any, ...]]:
    found = rows.selectExpr(
        *("brokerName", "queueId", "queueOffset", "body"),
        *(f"sysFlag & {record.COMPRESSED}", "tags", "keys"),
    ).collect()
    return sorted(((*row[:3], bytes(row[3]), *row[4:]) for row in found), key=lambda row: row[:3])


def test_a_batch_reads_them_as_they_are(spark: SparkSession, namesrv: str, odd: str) -> None:
    assert comparable(read(spark, namesrv, odd)) == EXPECTED


def test_a_stream_reads_them_as_they_are(
    spark: SparkSession, namesrv: str, odd: str, tmp_path: Path
) -> None:
    assert run(spark, namesrv, odd, tmp_path, maxOffsetsPerTrigger="5") == EXPECTED


@pytest.mark.parametrize("encoding", ["plain", "stored"])
def test_a_stream_writes_them_as_it_reads_them(  # noqa: PLR0917
    spark: SparkSession, namesrv: str, admin: AdminClient, odd: str, tmp_path: Path, encoding: str
) -> None:
    copy = f"odd_{encoding}"
    admin.create_topic(copy, queues=QUEUES)
    rows = spark.readStream.format("rocketmq").options(nameServer=namesrv, bodyEncoding=encoding)
    query = (
        rows.load(odd)
        .writeStream.format("rocketmq")
        .options(nameServer=namesrv, checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
        .start(copy)
    )
    assert query.awaitTermination(TIMEOUT_S)
    assert comparable(read(spark, namesrv, copy)) == EXPECTED


def test_an_empty_topic_is_empty_in_batch_stream_and_sink(
    spark: SparkSession, namesrv: str, admin: AdminClient, tmp_path: Path
) -> None:
    admin.create_topic("empty", queues=QUEUES)
    assert run(spark, namesrv, "empty", tmp_path) == []
    rows = read(spark, namesrv, "empty")
    write(rows, namesrv, topic="empty")
    write(frame(spark, []), namesrv, topic="empty")
    assert rows.count() == 0 == len(stored(admin, "empty"))


def test_a_broker_that_does_not_answer_is_named_and_caught_up_with(
    spark: SparkSession,
    services: tuple[ServiceProcess, ServiceProcess],
    admin: AdminClient,
    tmp_path: Path,
) -> None:
    namesrv, second = services[0].address, services[1]
    admin.create_topic("away", queues=QUEUES)
    rows = spark.range(8, numPartitions=1).selectExpr(
        "cast(id AS string) body",
        f"if(id < 4, '{BROKERS[0]}', '{BROKERS[1]}') brokerName",
        "cast(id % 2 AS int) queueId",
    )
    write(rows, namesrv, topic="away")
    assert len(run(spark, namesrv, "away", tmp_path)) == 8
    write(rows, namesrv, topic="away")
    second.send_signal(signal.SIGSTOP)  # the name server still names it
    with pytest.raises(Exception) as batch:
        read(spark, namesrv, "away").count()
    assert second.address in last_line(batch.value)
    left = comparable(read(spark, namesrv, "away", failOnUnreachableBroker="false"))
    assert [row[:3] for row in left] == [(BROKERS[0], q, n) for q in (0, 1) for n in range(4)]
    second.kill()
    until_sync(lambda: BROKERS[1] not in [each.broker_name for each in admin.cluster().brokers])
    # Of a broker that has died no name server tells: only what names it knows that it is away.
    assert comparable(read(spark, namesrv, "away")) == left
    named = {
        "assign": json.dumps({"away": {name: [0, 1] for name in BROKERS}}),
        "startingOffsets": json.dumps({"away": {name: {"0": -2, "1": -2} for name in BROKERS}}),
        "endingOffsets": json.dumps({"away": {name: {"0": -1, "1": -1} for name in BROKERS}}),
    }
    for option, text in named.items():
        given = {"nameServer": namesrv, option: text}
        if option != "assign":
            given["topic"] = "away"
        with pytest.raises(Exception) as missing:
            spark.read.format("rocketmq").options(**given).load().count()
        assert BROKERS[1] in last_line(missing.value)
    streamed = run(spark, namesrv, "away", tmp_path)
    assert [row[:3] for row in streamed] == [(BROKERS[0], q, n) for q in (0, 1) for n in (2, 3)]
    with pytest.raises(Exception) as sink:
        write(rows, namesrv, topic="away", sendTimeoutMs="1500")
    assert BROKERS[1] in last_line(sink.value)
    write(rows.select("body"), namesrv, topic="away")  # goes to any queue
    second.start()
    caught_up = run(spark, namesrv, "away", tmp_path)
    places = [row[:3] for row in caught_up if row[0] == BROKERS[1]]
    assert places == [(BROKERS[1], q, n) for q in (0, 1) for n in (2, 3)]
    assert set(numbers(stored(admin, "away"))) == set(range(8))
