"""Expose the data source to Spark, which searches packages named `pyspark_*` for `DefaultSource`.

This package must not import pyarrow or protobuf, which may be missing. If one `pyspark_*` package
fails to import, Spark skips every data source.

Example:
    A user does not import this package. Once the package is installed, the format is
    available:

        spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9876").load("orders")
"""

from __future__ import annotations

from aerobee_spark.source import RocketMqSource as DefaultSource

__all__ = ["DefaultSource"]
