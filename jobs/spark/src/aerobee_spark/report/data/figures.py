"""Compute the figures of a report with SQL queries over its messages, in Spark or DuckDB.

One query counts messages by all dimensions (GROUPING SETS). Four other queries find messages that
were dead-lettered again, dead letters that had been redriven, keys that many dead letters share,
and samples. The queries run concurrently, because each is short and is planned on one core. The
results are plain rows. `summary.py` gives the figures their names.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from aerobee_spark.reading.offsets import Queue
from aerobee_spark.report.data.sql_dialect import Dialect
from aerobee_spark.report.request import DLQ
from aerobee_wire import properties as props
from aerobee_wire.record import COMPRESSED

Row = dict[str, Any]
# A function that runs an SQL query and returns its rows, each as column name → value.
Query = Callable[[str], list[Row]]

# The largest number of distinct values of a dimension. Further values count only in the totals.
MOST_VALUES = 1000
# The largest number of reasons of which the samples contain a dead letter in any case.
MOST_SAMPLED_REASONS = 200
# The number of bytes of a body in a sample. A compressed body needs more bytes, because its first
# block must be complete.
SAMPLE_BYTES = 2048
COMPRESSED_SAMPLE_BYTES = 256 * 1024
NEWEST_OF_A_TAG = 3
OLDEST = 5

# dimension → the columns to group by, in addition to kind
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
    """The results of the queries of a report.

    `groups` has the rows of each dimension, such as the counts for each tag. Each other field has
    the result of one query.
    """

    groups: dict[str, list[Row]] = field(default_factory=dict)
    messages: Row = field(default_factory=dict)
    poison_keys: list[Row] = field(default_factory=list)
    samples: list[Row] = field(default_factory=list)
    redriven: list[Row] = field(default_factory=list)  # dead letters by number of redrives

    def rows_by_queue(self) -> dict[Queue, int]:
        return {
            Queue(row["topic"], row["brokerName"], row["queueId"]): row["messages"]
            for row in self.groups.get("queue", [])
        }

    def of(self, dimension: str, kind: str) -> list[Row]:
        """Return the rows of a dimension for one kind of topic, those with most messages first."""
        return [row for row in self.groups.get(dimension, []) if row["kind"] == kind]

    def total(self, kind: str) -> Row:
        """Return the totals for one kind of topic, or {} if it has no messages."""
        return next(iter(self.of("total", kind)), {})


def compute(query: Query, dialect: Dialect, *, bucket_ms: int, top: int) -> Figures:
    """Compute the figures from the SQL table or view `facts`.

    Args:
        query: runs one query. It is called by several threads at the same time.
        dialect: the SQL dialect of `query`.
        bucket_ms: width of a bucket of the timeline, in milliseconds.
        top: the largest number of poison keys, and of samples.
    """
    questions: tuple[Callable[[], Any], ...] = (
        lambda: _groups(query, dialect, bucket_ms),
        lambda: query(_MESSAGES)[0],
        lambda: query(poison_key_query(dialect, top)),
        lambda: _samples(query, dialect, top),
        lambda: query(_redriven(dialect)),
    )
    with ThreadPoolExecutor(len(questions), "aerobee figures") as executor:
        results = [executor.submit(question) for question in questions]
        return Figures(*(result.result() for result in results))


def _groups(query: Query, dialect: Dialect, bucket_ms: int) -> dict[str, list[Row]]:
    """Run the query that counts messages by all dimensions. Return the rows of each dimension."""
    ids = {_grouping_id(names): dimension for dimension, names in DIMENSIONS.items()}
    groups: dict[str, list[Row]] = {dimension: [] for dimension in DIMENSIONS}
    for row in query(_group_query(dialect, bucket_ms)):
        groups[ids[row["dimension"]]].append(row)
    return groups


def _grouping_id(names: tuple[str, ...]) -> int:
    """Return the value of SQL's grouping_id() in rows that are grouped by these columns.

    It has a bit for each column of (kind, *_COLUMNS). The bit is 1 if the column is not grouped.
    """
    bits = ["0", *("0" if name in names else "1" for name in _COLUMNS)]
    return int("".join(bits), 2)


def _group_query(dialect: Dialect, bucket_ms: int) -> str:
    columns = ", ".join(["kind", *_COLUMNS])
    sets = ", ".join(f"({', '.join(['kind', *names])})" for names in DIMENSIONS.values())
    stored = dialect.millis("storeTimestamp")
    # The duration is at least 0, even if the producer's clock is ahead of the broker's clock. It is
    # null if the born time is unknown.
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


# This query counts by message id, because retries and dead letters keep the id of their message.
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
    """Return the SQL that counts redriven dead letters by their number of redrives."""
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


def _samples(query: Query, dialect: Dialect, top: int) -> list[Row]:
    """Select samples: the newest dead letter of each reason, more new ones, and the oldest.

    The number of new ones is at most `top`, or the number of reasons if there are more reasons.
    """
    rows = query(_sample_query(dialect, top))
    newest = [row for row in rows if row["chosen"] == "newest"]
    reasons = sum(row["newest_of_reason"] == 1 for row in newest)
    chosen = newest[: max(top, reasons)]
    chosen += [row for row in rows if row["chosen"] == "oldest"]
    return [{k: v for k, v in row.items() if k != "newest_of_reason"} for row in chosen]


def _sample_query(dialect: Dialect, top: int) -> str:
    """Return the SQL that selects the newest dead letters of each tag and reason, and the oldest.

    The newest of each reason come first. Each tag and reason has a limit, so that the samples show
    several of them.
    """
    columns = _sample_columns(dialect)
    newest_first = "storeTimestamp DESC, brokerName, queueId, queueOffset DESC"
    return f"""
      SELECT * FROM (
        SELECT 'newest' AS chosen, newest_of_reason, {columns} FROM (
          SELECT
            *,
            row_number() OVER (PARTITION BY reason ORDER BY {newest_first}) AS newest_of_reason,
            row_number() OVER (PARTITION BY tags, reason ORDER BY {newest_first}) AS newest
          FROM facts WHERE kind = '{DLQ}'
        )
        WHERE newest <= {NEWEST_OF_A_TAG}
        ORDER BY
          newest_of_reason > 1, newest,
          storeTimestamp DESC, tag, reason, brokerName, queueId, queueOffset DESC
        LIMIT {top + MOST_SAMPLED_REASONS}
      )
      UNION ALL
      SELECT * FROM (
        SELECT 'oldest' AS chosen, 0 AS newest_of_reason, {columns} FROM facts WHERE kind = '{DLQ}'
        ORDER BY storeTimestamp, brokerName, queueId, queueOffset
        LIMIT {OLDEST}
      )
    """


def _sample_columns(dialect: Dialect) -> str:
    """Return the SQL columns of a sample.

    They have the names and the order of summary.json. Times are in milliseconds since the epoch.
    """
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


# ---- poison keys ----
#
# Find poison keys: message keys that several dead-lettered messages share.


# The largest number of tags, and of reasons, that are listed with a poison key.
MOST_NAMED = 5


def poison_key_query(dialect: Dialect, top: int) -> str:
    """Return the SQL that finds the poison keys in the table or view `facts`.

    The input with such a key is probably invalid. Each key has its most frequent tags and reasons.
    Each row also has the number of all poison keys, of which only the first `top` are rows.
    """
    ordered = {
        name: dialect.ordered("value", "place", f"name = '{name}' AND place <= {MOST_NAMED}")
        for name in ("tag", "reason")
    }
    return f"""
      WITH words AS (
        SELECT * FROM (
          SELECT
            {dialect.distinct_words("keys")} AS key, msgId,
            coalesce(tags, '') AS tag, coalesce(reason, '') AS reason,
            {dialect.millis("storeTimestamp")} AS stored
          FROM facts WHERE kind = '{DLQ}'
        )
        WHERE key != ''
      ),
      poison AS (
        SELECT
          key,
          count(*) AS dead_letters,
          count(DISTINCT msgId) AS messages,
          min(stored) AS first_ms,
          max(stored) AS last_ms,
          count(*) OVER () AS poison_keys
        FROM words
        GROUP BY key HAVING count(DISTINCT msgId) >= 2
        ORDER BY messages DESC, dead_letters DESC, key
        LIMIT {top}
      ),
      named AS (
        SELECT key, 'tag' AS name, tag AS value, count(*) AS times
        FROM words WHERE key IN (SELECT key FROM poison) GROUP BY key, tag
        UNION ALL
        SELECT key, 'reason' AS name, reason AS value, count(*) AS times
        FROM words WHERE key IN (SELECT key FROM poison) GROUP BY key, reason
      )
      SELECT poison.*, tags, reasons, number_of_tags, number_of_reasons
      FROM poison JOIN (
        SELECT
          key,
          {ordered["tag"]} AS tags,
          {ordered["reason"]} AS reasons,
          count_if(name = 'tag') AS number_of_tags,
          count_if(name = 'reason') AS number_of_reasons
        FROM (
          SELECT *, row_number() OVER (
            PARTITION BY key, name ORDER BY times DESC, value
          ) AS place
          FROM named
        )
        GROUP BY key
      ) AS most ON poison.key = most.key
      ORDER BY messages DESC, dead_letters DESC, poison.key
    """
