"""The facts: every message of the report as one row of Parquet, read from the broker once.

All figures are computed from these files, so they agree with each other and with the files. Besides
the columns of the data source a row has the history of the message, from its properties.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerobee_spark.reading.offsets import OffsetRange
from aerobee_spark.reading.schema import SCHEMA
from aerobee_spark.report.request import DLQ, RETRY, ReportRequest
from aerobee_spark.source import FORMAT, register
from aerobee_wire import properties as props
from aerobee_wire import topics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Below this a second task costs more than it saves.
MESSAGES_FOR_TWO_TASKS = 20_000
# A broker that restarts is back within this.
PULL_TIMEOUT_MS = 30_000


def write(
    spark: SparkSession, request: ReportRequest, ranges: Sequence[OffsetRange], folder: Path
) -> StructType:
    """Reads `ranges` and writes `folder`; returns the schema of the files.

    Neither data loss nor a broker that is down makes it fail: missing messages show in the number
    of rows, and the report is then not complete.
    """
    register(spark)
    if ranges:
        threads = spark.sparkContext.defaultParallelism
        read = spark.read.format(FORMAT).options(**read_options(request, ranges, threads)).load()
    else:
        read = spark.createDataFrame([], SCHEMA)
    rows = _with_history(read, request)
    rows.write.parquet(str(folder))
    return rows.schema


def read_options(
    request: ReportRequest, ranges: Sequence[OffsetRange], threads: int
) -> dict[str, str]:
    """Options of the data source that read exactly `ranges`."""
    messages = sum(map(len, ranges))
    return {
        "nameServer": request.name_server,
        "assign": json.dumps(_nested((*wanted.queue, None) for wanted in ranges)),
        "startingOffsets": json.dumps(_nested((*wanted.queue, wanted.start) for wanted in ranges)),
        "endingOffsets": json.dumps(_nested((*wanted.queue, wanted.end) for wanted in ranges)),
        "minPartitions": str(threads if messages >= MESSAGES_FOR_TWO_TASKS else 1),
        "failOnDataLoss": "false",
        "failOnUnreachableBroker": "false",
        "pullTimeoutMs": str(PULL_TIMEOUT_MS),
        "includeBody": str(request.include_bodies).lower(),
    }


def _nested(rows: Iterable[tuple[str, str, int, int | None]]) -> dict[str, dict[str, Any]]:
    """topic → broker name → queue id → offset, as the options have it."""
    nested: dict[str, dict[str, Any]] = {}
    for topic, broker_name, queue_id, offset in rows:
        nested.setdefault(topic, {}).setdefault(broker_name, {})[str(queue_id)] = offset
    return nested


def _with_history(rows: DataFrame, request: ReportRequest) -> DataFrame:
    """Adds the columns that come from the properties of a dead letter or retry."""
    from pyspark.sql import functions as F

    def first_of(*names: str) -> Column:
        return F.coalesce(*(F.col("properties")[name] for name in names))

    dead = topics.dead_letter_topic(request.consumer_group)
    history = {
        "kind": F.when(F.col("topic") == dead, F.lit(DLQ)).otherwise(F.lit(RETRY)),
        "consumerGroup": F.lit(request.consumer_group),
        "originTopic": first_of(props.DLQ_ORIGIN_TOPIC, props.RETRY_TOPIC),
        "originMsgId": first_of(props.DLQ_ORIGIN_MESSAGE_ID, props.ORIGIN_MESSAGE_ID),
        "reason": first_of(props.DLQ_REASON),
        "reasonDescription": first_of(props.DLQ_REASON_DESCRIPTION),
        # Without the port, which changes with every connection.
        "producerHost": F.regexp_replace("bornHost", ":[0-9]+$", ""),
    }
    return rows.withColumns(history)


def time_span(folder: Path) -> tuple[int, int] | None:
    """First and last store time in ms of the facts in `folder`, from the statistics of the files;
    None when there is no message."""
    import pyarrow.dataset as ds

    bounds: list[datetime] = []
    for fragment in ds.dataset(folder, format="parquet").get_fragments():
        for group in fragment.row_groups:
            stored = (group.statistics or {}).get("storeTimestamp")
            if stored:
                bounds += [stored["min"], stored["max"]]
    if not bounds:
        return None
    times = [round(bound.timestamp() * 1000) for bound in bounds]
    return min(times), max(times)
