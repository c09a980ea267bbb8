"""The figures of the demo by Spark SQL over its topics: the flights themselves, and what died.

    python -m support.spark.flights_in_sql NAMESRV

prints a JSON object: `figures` as those of the demo, `reasons` of the dead letters, and `rows`, the
messages that were read.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerobee_cli.demo.job import GROUP, TOPIC
from aerobee_cli.demo.progress import Figures
from aerobee_spark.jvm.session import keep_out_pandas, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEW = "CREATE TEMPORARY VIEW {name} USING rocketmq OPTIONS (nameServer '{namesrv}', {what})"
FLIGHTS = """
    WITH parsed AS (
      SELECT tags, from_json(CAST(body AS STRING), 'arr_time INT, arr_delay INT') AS flight
      FROM flights)
    SELECT tags, count(*) AS sent, count(flight.arr_time + flight.arr_delay) AS arrived,
      sum(IF(flight.arr_time IS NULL, NULL, flight.arr_delay)) AS delay
    FROM parsed GROUP BY tags ORDER BY tags"""
FAILED = """
    SELECT tags, startswith(topic, '%DLQ%') AS dead, properties['DLQ_REASON'] AS reason,
      count(*) AS records, count(DISTINCT msgId) AS messages
    FROM failed GROUP BY ALL ORDER BY tags"""


def main(namesrv: str) -> None:
    keep_out_pandas()
    from aerobee_spark import source

    with (
        tempfile.TemporaryDirectory() as folder,
        session(Path(folder), Path(folder, "log"), brief=False) as spark,
    ):
        source.register(spark)
        for name, what in (
            ("flights", f"topic '{TOPIC}'"),
            ("failed", f"consumerGroup '{GROUP}', kind 'both'"),
        ):
            spark.sql(VIEW.format(name=name, namesrv=namesrv, what=what))
        print(json.dumps(found(spark)))


def found(spark: SparkSession) -> dict[str, Any]:
    flown, failed = spark.sql(FLIGHTS).collect(), spark.sql(FAILED).collect()
    dead, reasons, retried = Counter[str](), Counter[str](), 0
    for row in failed:
        if row.dead:
            dead[row.tags] += row.messages
            reasons[row.reason] += row.records
        else:
            retried += row.records
    figures = Figures(
        messages_sent=sum(row.sent for row in flown),
        messages_consumed=sum(row.arrived for row in flown),
        retried=retried,
        dead_letters=dead.total(),
        dead_letters_by_tag=dict(dead),
        mean_arrival_delay_by_tag={
            row.tags: float(Fraction(row.delay, row.arrived)) for row in flown if row.arrived
        },
    )
    rows = figures.messages_sent + sum(row.records for row in failed)
    return {"figures": asdict(figures), "reasons": reasons, "rows": rows}


if __name__ == "__main__":
    main(sys.argv[1])
