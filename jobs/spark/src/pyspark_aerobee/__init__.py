"""Lets Spark find the data source: it looks for `DefaultSource` in packages named pyspark_*.

Only that. Spark skips every data source when one such package fails to import, so this one imports
neither grpc nor pyarrow.
"""

from __future__ import annotations

from aerobee_spark.source import RocketMqSource as DefaultSource

__all__ = ["DefaultSource"]
