"""Whether spark-submit started this process, and its session then.

spark-submit starts a JVM, and the JVM starts this process: master, memory and logs are its
business. What the rows depend on is set here, so that they are the same everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Set by spark-submit; PySpark connects to the JVM by it.
GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
# Of the session: times are UTC in SQL, and not INT96 in files, which is deprecated and has no
# statistics.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def is_submitted(environ: Mapping[str, str] = os.environ) -> bool:
    return GATEWAY_PORT in environ


@contextmanager
def submitted_session() -> Iterator[SparkSession]:
    """The session of spark-submit; it ends with the block, and the application with it."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    try:
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
        yield spark
    finally:
        spark.stop()
