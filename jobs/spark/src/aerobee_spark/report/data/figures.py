"""The figures of a report, computed by Spark from the facts in few passes.

One pass groups by every dimension at once (GROUPING SETS); three more find messages that were
dead-lettered again, keys that many dead letters share, and samples. They run concurrently: each is
small, and takes most of its time for planning, on one core. The results are plain rows;
`summary.py` names the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerobee_spark.reading.offsets import Queue
from aerobee_spark.report.request import DLQ
from aerobee_wire.record import COMPRESSED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

Row = dict[str, Any]

# Different values of one dimension that are counted; further ones are only in the totals.
MOST_VALUES = 1000
# Of percentile_approx: a relative error of 1/10,000 of the rank.
ACCURACY = 10_000
# Of a body in a sample; of a compressed one more, because its first block is needed whole.
SAMPLE_BYTES = 2048
COMPRESSED_SAMPLE_BYTES = 256 * 1024
NEWEST_OF_A_TAG = 3
OLDEST = 5

# name → columns, besides kind
DIMENSIONS = {
    "queue": ("topic", "brokerName", "queueId"),
    "tag": ("tags",),
    "origin_topic": ("originTopic",),
    "reason": ("reason",),
    "reason_and_tag": ("reason", "tags"),
    "producer": ("producerHost",),
    "reconsume_times": ("reconsumeTimes",),
    "bucket": ("bucket",),
    "total": (),
}
_COLUMNS = list(dict.fromkeys(name for names in DIMENSIONS.values() for name in names))

# Not below 0, also when the clock of the producer is ahead.
_DURATION = "greatest(unix_millis(storeTimestamp) - unix_millis(bornTimestamp), 0)"
_MEASURES = f"""
  count(*) AS messages,
  sum(bodySize) AS body_bytes,
  min(unix_millis(storeTimestamp)) AS first_ms,
  max(unix_millis(storeTimestamp)) AS last_ms,
  percentile_approx({_DURATION}, array(0.5D, 0.95D), {ACCURACY}) AS quantiles,
  max({_DURATION}) AS longest_ms
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """`groups`: rows by dimension, each with `kind` and the measures. The others: one query
    each."""

    groups: dict[str, list[Row]] = field(default_factory=dict)
    messages: Row = field(default_factory=dict)
    poison_keys: list[Row] = field(default_factory=list)
    samples: list[Row] = field(default_factory=list)

    def rows_by_queue(self) -> dict[Queue, int]:
        return {
            Queue(row["topic"], row["brokerName"], row["queueId"]): row["messages"]
            for row in self.groups.get("queue", [])
        }

    def of(self, dimension: str, kind: str) -> list[Row]:
        """The rows of a dimension, most messages first."""
        return [row for row in self.groups.get(dimension, []) if row["kind"] == kind]

    def total(self, kind: str) -> Row:
        """The totals; empty when there is no message of this kind."""
        return next(iter(self.of("total", kind)), {})


def compute(
    spark: SparkSession, folder: Path, schema: StructType, *, bucket_ms: int, top: int
) -> Figures:
    """Computes the figures from the Parquet files in `folder`. `schema`: of the files, so that
    Spark does not have to find it."""
    spark.read.schema(schema).parquet(str(folder)).createOrReplaceTempView("facts")
    queries: tuple[Callable[[], Any], ...] = (
        lambda: _groups(spark, bucket_ms),
        lambda: _collect(spark, _MESSAGES)[0],
        lambda: _collect(spark, _POISON_KEYS.format(top=top)),
        lambda: _collect(spark, _SAMPLES.format(top=top)),
    )
    with ThreadPoolExecutor(len(queries), "aerobee figures") as executor:
        results = [executor.submit(query) for query in queries]
        return Figures(*(result.result() for result in results))


def _collect(spark: SparkSession, query: str) -> list[Row]:
    return [row.asDict() for row in spark.sql(query).collect()]


def _groups(spark: SparkSession, bucket_ms: int) -> dict[str, list[Row]]:
    """Rows by dimension, which the grouping id of a row names."""
    ids = {_grouping_id(names): dimension for dimension, names in DIMENSIONS.items()}
    groups: dict[str, list[Row]] = {dimension: [] for dimension in DIMENSIONS}
    for row in _collect(spark, _group_query(bucket_ms)):
        groups[ids[row["dimension"]]].append(row)
    return groups


def _grouping_id(names: tuple[str, ...]) -> int:
    """SQL's grouping_id() over (kind, *_COLUMNS): a bit for each column that is not grouped."""
    bits = ["0", *("0" if name in names else "1" for name in _COLUMNS)]
    return int("".join(bits), 2)


def _group_query(bucket_ms: int) -> str:
    columns = ", ".join(["kind", *_COLUMNS])
    sets = ", ".join(f"({', '.join(['kind', *names])})" for names in DIMENSIONS.values())
    return f"""
      SELECT * FROM (
        SELECT *, row_number() OVER (
          PARTITION BY dimension, kind ORDER BY messages DESC, first_ms, {", ".join(_COLUMNS)}
        ) AS place
        FROM (
          SELECT {columns}, grouping_id({columns}) AS dimension, {_MEASURES}
          FROM (
            SELECT *, unix_millis(storeTimestamp) DIV {bucket_ms} * {bucket_ms} AS bucket FROM facts
          )
          GROUP BY {columns} GROUPING SETS ({sets})
        )
      )
      WHERE place <= {MOST_VALUES}
      ORDER BY dimension, kind, place
    """


# By message id, which retries and dead letters keep.
_MESSAGES = f"""
  SELECT
    count_if(retries > 0) AS retried,
    count_if(retries > 0 AND deaths > 0) AS retried_and_dead,
    count_if(deaths > 0) AS dead,
    count_if(deaths > 1) AS dead_again
  FROM (
    SELECT msgId, count_if(kind != '{DLQ}') AS retries, count_if(kind = '{DLQ}') AS deaths
    FROM facts GROUP BY msgId
  )
"""

# Keys that different dead-lettered messages have in common: probably bad input.
_POISON_KEYS = f"""
  SELECT
    key,
    count(*) AS dead_letters,
    count(DISTINCT msgId) AS messages,
    array_sort(slice(collect_set(coalesce(tags, '')), 1, 5)) AS tags,
    array_sort(slice(collect_set(coalesce(reason, '')), 1, 5)) AS reasons,
    min(unix_millis(storeTimestamp)) AS first_ms,
    max(unix_millis(storeTimestamp)) AS last_ms
  FROM (
    SELECT explode(array_distinct(split(keys, ' '))) AS key, msgId, tags, reason, storeTimestamp
    FROM facts WHERE kind = '{DLQ}'
  )
  WHERE key != ''
  GROUP BY key HAVING count(DISTINCT msgId) >= 2
  ORDER BY messages DESC, dead_letters DESC, key
  LIMIT {{top}}
"""

# In the names and the order of summary.json; times in ms.
_SAMPLE_COLUMNS = f"""
  msgId AS message_id, originMsgId AS origin_message_id, originTopic AS origin_topic,
  coalesce(tags, '') AS tag, coalesce(keys, '') AS keys, coalesce(reason, '') AS reason,
  coalesce(reasonDescription, '') AS description, reconsumeTimes AS reconsume_times,
  unix_millis(bornTimestamp) AS born_at, unix_millis(storeTimestamp) AS stored_at,
  producerHost AS producer, topic, brokerName AS broker_name, queueId AS queue_id,
  queueOffset AS queue_offset, properties, bodySize AS body_size,
  substring(
    body, 1, if((sysFlag & {COMPRESSED}) = 0, {SAMPLE_BYTES}, {COMPRESSED_SAMPLE_BYTES})
  ) AS body, sysFlag AS sys_flag
"""

# The newest of each tag and reason, so that no tag fills the list, and the oldest of all.
_SAMPLES = f"""
  SELECT * FROM (
    SELECT 'newest' AS chosen, {_SAMPLE_COLUMNS} FROM (
      SELECT *, row_number() OVER (
        PARTITION BY tags, reason
        ORDER BY storeTimestamp DESC, brokerName, queueId, queueOffset DESC
      ) AS newest
      FROM facts WHERE kind = '{DLQ}'
    )
    WHERE newest <= {NEWEST_OF_A_TAG}
    ORDER BY newest, storeTimestamp DESC, tag, reason
    LIMIT {{top}}
  )
  UNION ALL
  SELECT * FROM (
    SELECT 'oldest' AS chosen, {_SAMPLE_COLUMNS} FROM facts WHERE kind = '{DLQ}'
    ORDER BY storeTimestamp, brokerName, queueId, queueOffset
    LIMIT {OLDEST}
  )
"""
