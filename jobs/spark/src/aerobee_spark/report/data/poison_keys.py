"""Find poison keys: message keys that several dead-lettered messages share."""

from __future__ import annotations

from aerobee_spark.report.data.sql_dialect import Dialect
from aerobee_spark.report.request import DLQ

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
