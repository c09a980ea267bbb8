"""Spark's classes in an archive that JVMs share, with which a session starts in half of the time.

`python -m support.spark.class_archive FILE` makes it, by Java's class data sharing, of the classes
that one session loads: it reads and writes files, runs SQL, a stream, and a source in Python. A JVM
of another version, or with other jars, leaves the archive aside. Where Java cannot do it, the file
is empty.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aerobee_spark.jvm.session import BRIEF
from support.repository.tree import ROOT

ARCHIVE = ROOT / "build" / "spark.jsa"
VARIABLE = "SPARK_SUBMIT_OPTS"
# A JVM that leaves the archive aside says nothing of it.
SHARED = "-XX:SharedArchiveFile={} -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def java_options() -> str:
    """Of a JVM that has little to do in a test."""
    return f"{BRIEF} {SHARED.format(ARCHIVE)}" if _is_there() else BRIEF


def share() -> None:
    """The JVMs that this process and its children start use the archive, if it was made."""
    if _is_there():
        os.environ.setdefault(VARIABLE, SHARED.format(ARCHIVE))


def _is_there() -> bool:
    return ARCHIVE.exists() and ARCHIVE.stat().st_size > 0


def make(archive: Path) -> None:
    unfinished = archive.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    os.environ[VARIABLE] = f"{BRIEF} -XX:ArchiveClassesAtExit={unfinished} -Xlog:cds=off"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        _use_spark(Path(folder))
    unfinished.touch()
    unfinished.rename(archive)


def _use_spark(folder: Path) -> None:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    def land(batch: DataFrame, _: int) -> None:
        batch.persist().count()

    class Reader(DataSourceReader):
        def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
            yield from ((number, "a") for number in range(10))

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "number bigint, name string"

        def reader(self, schema: object) -> Reader:
            return Reader()

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.dataSource.register(Source)
    numbers = spark.read.format("numbers").load()
    rows = numbers.selectExpr(
        "number", "map(name, cast(number AS string)) AS properties", "cast(name AS binary) AS body",
        "timestamp_millis(number) AS stored", "to_json(struct(number)) AS json",
    )  # fmt: skip
    rows.write.parquet(str(folder / "rows"))
    read = spark.read.parquet(str(folder / "rows"))
    read.createOrReplaceTempView("rows")
    counted = spark.sql(
        "SELECT number % 3 AS third, count(*) AS found, max(stored) AS last FROM rows "
        "WHERE get_json_object(json, '$.number') > 0 GROUP BY 1 ORDER BY 1"
    )
    counted.write.json(str(folder / "counted"))
    counted.join(read, counted["third"] == read["number"]).toPandas()
    stream = spark.readStream.schema(read.schema).parquet(str(folder / "rows"))
    query = (
        stream.writeStream.foreachBatch(land)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
    _end_jvm()


def _end_jvm() -> None:
    """It writes the archive at its end."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
