"""The figures of a report, computed in SQL from the facts in few passes, by Spark or by DuckDB.

One pass groups by every dimension at once (GROUPING SETS); four more find messages that were
dead-lettered again, dead letters that had been redriven, keys that many dead letters share, and
samples. They run concurrently: each is small, and takes most of its time for planning, on one core.
The results are plain rows; `summary.py` names the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from aerobee_spark.reading.offsets import Queue
from aerobee_spark.report.data.dialect import Dialect
from aerobee_spark.report.request import DLQ
from aerobee_wire import properties as props
from aerobee_wire.record import COMPRESSED

Row = dict[str, Any]
# Runs a query and returns its rows, each by the names of its columns.
Query = Callable[[str], list[Row]]

# Different values of one dimension that are counted; further ones are only in the totals.
MOST_VALUES = 1000
# Tags and reasons that are named with a poison key.
MOST_NAMED = 5
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


@dataclass(frozen=True, slots=True)
class Figures:
    """`groups`: rows by dimension, each with `kind` and the measures. The others: one query
    each."""

    groups: dict[str, list[Row]] = field(default_factory=dict)
    messages: Row = field(default_factory=dict)
    poison_keys: list[Row] = field(default_factory=list)
    samples: list[Row] = field(default_factory=list)
    redriven: list[Row] = field(default_factory=list)  # dead letters, by their redrive times

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


def compute(query: Query, dialect: Dialect, *, bucket_ms: int, top: int) -> Figures:
    """Computes the figures from the table or view `facts`. `query` is called on several threads at
    once."""
    questions: tuple[Callable[[], Any], ...] = (
        lambda: _groups(query, dialect, bucket_ms),
        lambda: query(_MESSAGES)[0],
        lambda: query(_poison_keys(dialect, top)),
        lambda: query(_samples(dialect, top)),
        lambda: query(_redriven(dialect)),
    )
    with ThreadPoolExecutor(len(questions), "aerobee figures") as executor:
        results = [executor.submit(question) for question in questions]
        return Figures(*(result.result() for result in results))


def _groups(query: Query, dialect: Dialect, bucket_ms: int) -> dict[str, list[Row]]:
    """Rows by dimension, which the grouping id of a row names."""
    ids = {_grouping_id(names): dimension for dimension, names in DIMENSIONS.items()}
    groups: dict[str, list[Row]] = {dimension: [] for dimension in DIMENSIONS}
    for row in query(_group_query(dialect, bucket_ms)):
        groups[ids[row["dimension"]]].append(row)
    return groups


def _grouping_id(names: tuple[str, ...]) -> int:
    """SQL's grouping_id() over (kind, *_COLUMNS): a bit for each column that is not grouped."""
    bits = ["0", *("0" if name in names else "1" for name in _COLUMNS)]
    return int("".join(bits), 2)


def _group_query(dialect: Dialect, bucket_ms: int) -> str:
    columns = ", ".join(["kind", *_COLUMNS])
    sets = ", ".join(f"({', '.join(['kind', *names])})" for names in DIMENSIONS.values())
    stored = dialect.millis("storeTimestamp")
    # Not below 0, also when the clock of the producer is ahead; null when the born time is unknown.
    duration = (
        "CASE WHEN bornTimestamp IS NOT NULL THEN "
        f"greatest({stored} - {dialect.millis('bornTimestamp')}, 0) END"
    )
    return f"""
      SELECT * FROM (
        SELECT *, row_number() OVER (
          PARTITION BY dimension, kind ORDER BY messages DESC, first_ms, {", ".join(_COLUMNS)}
        ) AS place
        FROM (
          SELECT
            {columns}, grouping_id({columns}) AS dimension,
            count(*) AS messages,
            sum(bodySize) AS body_bytes,
            min({stored}) AS first_ms,
            max({stored}) AS last_ms,
            {dialect.quantiles(duration)} AS quantiles,
            max({duration}) AS longest_ms
          FROM (SELECT *, {dialect.quotient(stored, bucket_ms)} * {bucket_ms} AS bucket FROM facts)
          GROUP BY GROUPING SETS ({sets})
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


def _redriven(dialect: Dialect) -> str:
    """Dead letters that died after a redrive: how many, for each number of redrives."""
    return f"""
      SELECT times, count(*) AS messages
      FROM (
        SELECT {dialect.value("properties", props.REDRIVE_TIMES)} AS times
        FROM facts WHERE kind = '{DLQ}'
      )
      WHERE times IS NOT NULL
      GROUP BY times
      ORDER BY messages DESC, times
      LIMIT {MOST_VALUES}
    """


def _poison_keys(dialect: Dialect, top: int) -> str:
    """Keys that different dead-lettered messages have in common: probably bad input."""
    return f"""
      SELECT
        key,
        count(*) AS dead_letters,
        count(DISTINCT msgId) AS messages,
        {dialect.first_distinct("coalesce(tags, '')", MOST_NAMED)} AS tags,
        {dialect.first_distinct("coalesce(reason, '')", MOST_NAMED)} AS reasons,
        min(stored) AS first_ms,
        max(stored) AS last_ms
      FROM (
        SELECT
          {dialect.distinct_words("keys")} AS key, msgId, tags, reason,
          {dialect.millis("storeTimestamp")} AS stored
        FROM facts WHERE kind = '{DLQ}'
      )
      WHERE key != ''
      GROUP BY key HAVING count(DISTINCT msgId) >= 2
      ORDER BY messages DESC, dead_letters DESC, key
      LIMIT {top}
    """


def _samples(dialect: Dialect, top: int) -> str:
    """The newest of each tag and reason, so that no tag fills the list, and the oldest of all."""
    columns = _sample_columns(dialect)
    return f"""
      SELECT * FROM (
        SELECT 'newest' AS chosen, {columns} FROM (
          SELECT *, row_number() OVER (
            PARTITION BY tags, reason
            ORDER BY storeTimestamp DESC, brokerName, queueId, queueOffset DESC
          ) AS newest
          FROM facts WHERE kind = '{DLQ}'
        )
        WHERE newest <= {NEWEST_OF_A_TAG}
        ORDER BY newest, storeTimestamp DESC, tag, reason, brokerName, queueId, queueOffset DESC
        LIMIT {top}
      )
      UNION ALL
      SELECT * FROM (
        SELECT 'oldest' AS chosen, {columns} FROM facts WHERE kind = '{DLQ}'
        ORDER BY storeTimestamp, brokerName, queueId, queueOffset
        LIMIT {OLDEST}
      )
    """


def _sample_columns(dialect: Dialect) -> str:
    """In the names and the order of summary.json; times in ms."""
    length = (
        f"CASE WHEN (sysFlag & {COMPRESSED}) = 0 THEN {SAMPLE_BYTES} "
        f"ELSE {COMPRESSED_SAMPLE_BYTES} END"
    )
    return f"""
      msgId AS message_id, originMsgId AS origin_message_id, originTopic AS origin_topic,
      coalesce(tags, '') AS tag, coalesce(keys, '') AS keys, coalesce(reason, '') AS reason,
      coalesce(reasonDescription, '') AS description, reconsumeTimes AS reconsume_times,
      {dialect.millis("bornTimestamp")} AS born_at, {dialect.millis("storeTimestamp")} AS stored_at,
      producerHost AS producer, topic, brokerName AS broker_name, queueId AS queue_id,
      queueOffset AS queue_offset, properties, bodySize AS body_size,
      {dialect.start("body", length)} AS body, sysFlag AS sys_flag
    """
