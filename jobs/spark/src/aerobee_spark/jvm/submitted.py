"""Detect spark-submit, and open its session.

spark-submit starts a JVM, and the JVM starts this process. The user configures master, memory and
logs there. This module sets the options that affect rows, so that they are the same everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# spark-submit sets this variable. PySpark uses it to connect to the JVM.
GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
# Session settings: UTC times in SQL, and no INT96 times in files, which are deprecated and have no
# statistics.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def is_submitted(environ: Mapping[str, str] = os.environ) -> bool:
    return GATEWAY_PORT in environ


@contextmanager
def submitted_session() -> Iterator[SparkSession]:
    """Open the session of spark-submit. It ends with the block, and with it the application."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    try:
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
        yield spark
    finally:
        spark.stop()
