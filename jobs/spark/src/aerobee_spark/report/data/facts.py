"""The facts: every message of the report as one row of Parquet, read from the broker once.

Everything else is computed from these files, so that the figures agree with each other and with
what anyone finds in the files later. Besides the columns of the data source a row says what the
message went through, as far as its properties tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerobee_spark.reading.offsets import OffsetRange
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

    Neither data loss nor a broker that goes away fails it: what is missing shows in the count of
    rows, and the report then says so.
    """
    register(spark)
    if not ranges:
        rows = _with_history(spark.createDataFrame([], _source_schema()), request)
    else:
        reader = spark.read.format(FORMAT).options(**read_options(request, ranges, threads(spark)))
        rows = _with_history(reader.load(), request)
    rows.write.parquet(str(folder))
    return rows.schema


def threads(spark: SparkSession) -> int:
    return spark.sparkContext.defaultParallelism


def _source_schema() -> StructType:
    from aerobee_spark.reading.schema import SCHEMA

    return SCHEMA


def read_options(
    request: ReportRequest, ranges: Sequence[OffsetRange], threads: int
) -> dict[str, str]:
    """Exactly these offsets: what arrives meanwhile belongs to the next report."""
    messages = sum(map(len, ranges))
    return {
        "nameServer": request.name_server,
        "assign": json.dumps(_nested((*one.queue, None) for one in ranges)),
        "startingOffsets": json.dumps(_nested((*one.queue, one.start) for one in ranges)),
        "endingOffsets": json.dumps(_nested((*one.queue, one.end) for one in ranges)),
        "minPartitions": str(threads if messages >= MESSAGES_FOR_TWO_TASKS else 1),
        "failOnDataLoss": "false",
        "failOnUnreachableBroker": "false",
        "pullTimeoutMs": str(PULL_TIMEOUT_MS),
        "includeBody": str(request.include_bodies).lower(),
    }


def _nested(rows: Iterable[tuple[str, str, int, int | None]]) -> dict[str, dict[str, Any]]:
    """topic → broker name → queue id → offset, the shape of the options."""
    nested: dict[str, dict[str, Any]] = {}
    for topic, broker_name, queue_id, offset in rows:
        nested.setdefault(topic, {}).setdefault(broker_name, {})[str(queue_id)] = offset
    return nested


def _with_history(rows: DataFrame, request: ReportRequest) -> DataFrame:
    """Adds what the properties of a dead letter or retry tell of its past."""
    from pyspark.sql import functions as F

    def told(*names: str) -> Column:
        return F.coalesce(*(F.col("properties")[name] for name in names))

    dead = topics.dead_letter_topic(request.consumer_group)
    history = {
        "kind": F.when(F.col("topic") == dead, F.lit(DLQ)).otherwise(F.lit(RETRY)),
        "consumerGroup": F.lit(request.consumer_group),
        "originTopic": told(props.DLQ_ORIGIN_TOPIC, props.RETRY_TOPIC),
        "originMsgId": told(props.DLQ_ORIGIN_MESSAGE_ID, props.ORIGIN_MESSAGE_ID),
        "reason": told(props.DLQ_REASON),
        "reasonDescription": told(props.DLQ_REASON_DESCRIPTION),
        # The sender's address; its port changes with every connection.
        "producerHost": F.regexp_replace("bornHost", ":[0-9]+$", ""),
    }
    return rows.withColumns(history)
