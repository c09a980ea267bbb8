"""Implement the data source `format("rocketmq")`: reads by queue offset, and writes.

`spark.read` and `spark.readStream` read; `df.write` and `df.writeStream` send. Spark loads this
module in planner processes and on workers. It must not import the client or pyarrow at its top,
because planner processes live for a moment and need neither.

`reading/options.py` and `writing/options.py` define the options. `reading/schema.py` and
`writing/message_columns.py` define the columns. Streams are read by `stream/reader.py`, and
messages are sent by `writing/writer.py`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from aerobee_spark.errors import OptionError
from aerobee_spark.options import WRITE_ONLY, of_table
from aerobee_spark.reading import batches
from aerobee_spark.reading import schema as schemas
from aerobee_spark.reading.filters import narrowing_of
from aerobee_spark.reading.offsets import Narrowing
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.writing.options import WriteOptions
from aerobee_spark.writing.writer import RocketMqStreamWriter, RocketMqWriter, WritePlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

FORMAT = "rocketmq"
# Either one names the Python of Spark's workers.
PYTHON_VARIABLE, PYTHON_OPTION = "PYSPARK_PYTHON", "spark.pyspark.python"


def register(spark: SparkSession) -> None:
    """Register the format "rocketmq" with a session.

    Call this if Spark does not find the format itself. Spark does not search packages of
    `--py-files`, and its search fails if another package named `pyspark_*` is broken. If Spark has
    the format already, it stays.

    Spark's workers run `python3` of the PATH, where this package may be missing. In a local
    session, they run the Python of this process from now on, also for functions of the user. If
    PYSPARK_PYTHON or spark.pyspark.python is set, or on a cluster, their Python does not change.

    Args:
        spark: the session in which `format("rocketmq")` becomes available.

    Example:
        register(spark)
        spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9876").load("orders")
    """
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect: the server chooses the Python
        spark.dataSource.register(RocketMqSource)
        return
    # A format that Spark has found runs with the Python of the JVM's environment.
    if _use_this_python(spark.sparkContext) or not _has_format(spark):
        spark.dataSource.register(RocketMqSource)


def _use_this_python(context: SparkContext) -> bool:
    """Let the workers of a local session run the Python of this process, if none is chosen.

    Return whether this changes their Python.
    """
    is_chosen = bool(os.environ.get(PYTHON_VARIABLE)) or context.getConf().contains(PYTHON_OPTION)
    if (
        is_chosen
        or not (context.master or "").startswith("local")
        or _is_this_python(context.pythonExec)
    ):
        return False
    context.pythonExec = sys.executable  # PySpark reads the variable only when a session starts
    return True


def _is_this_python(program: str) -> bool:
    """Return whether `program` on the PATH is the Python of this process.

    A Python of another virtual environment is not, because it has other packages.
    """
    found = shutil.which(program)
    own = Path(sys.executable)
    return found is not None and Path(found).parent == own.parent and own.samefile(found)


def _has_format(spark: SparkSession) -> bool:
    """Return whether the session has the format, by Spark's search or an earlier `register`."""
    state: Any = spark._jsparkSession.sessionState()
    return bool(state.dataSourceManager().dataSourceExists(FORMAT))


class RocketMqSource(DataSource):
    """The data source `format("rocketmq")`.

    The methods `schema`, `reader` and `streamReader` check the options of a read. The methods
    `writer` and `streamWriter` check the options of a write. docs/spark.md lists all options.

    Args:
        options: option → text, as Spark passes them.

    Raises:
        OptionError: an option is unknown, missing or invalid (raised by each method that checks).
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of a read. Spark also calls this for a view that is only written."""
        if self._is_of_a_write():
            return schemas.SCHEMA
        return schemas.of(include_headers=ReadOptions.parse(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.parse(self.options)
        options.check_batch()
        schemas.check(schema, include_headers=options.include_headers)
        kind = NarrowingReader if options.pushdown else RocketMqReader
        return kind(options, tuple(schema.names))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from aerobee_spark.stream.reader import RefusedStreamReader, RocketMqStreamReader

        try:
            options = ReadOptions.parse(self.options)
            options.check_stream()
            schemas.check(schema, include_headers=options.include_headers)
        except OptionError as error:
            return RefusedStreamReader(error)
        return RocketMqStreamReader(options, tuple(schema.names))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return RocketMqWriter(self._plan(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return RocketMqStreamWriter(self._plan(schema, overwrite=overwrite))

    def _plan(self, schema: StructType, *, overwrite: bool) -> WritePlan:
        return WritePlan.of(WriteOptions.parse(self.options), schema, overwrite=overwrite)

    def _is_of_a_write(self) -> bool:
        given = {name.lower() for name in of_table(self.options)}
        return any(name.lower() in given for name in WRITE_ONLY)


class RocketMqReader(DataSourceReader):
    """Plans and reads a batch. A reader holds only plain values: Spark pickles it for workers."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self.options = options
        # The names of the columns to read. A user's schema may select some of the columns.
        self.names = names
        self.narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        """Split the read into partitions of at most maxRecordsPerPartition messages each.

        Raises:
            MqError: the offsets cannot be looked up, or an option does not match the topic.
        """
        from aerobee_spark.reading.planning import connect, plan

        with connect(self.options.name_server, self.options.access) as admin:
            ranges = plan(admin, self.options, self.narrowing)
        return batches.partitions(ranges, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield RecordBatches with the selected columns.

        Raises:
            MqError: the messages cannot be read.
            CorruptRecord: a broker returned a damaged record.
        """
        return batches.read(partition, self.options, self.names)


class NarrowingReader(RocketMqReader):
    """Reads a batch, and uses filters of the query to read fewer messages (option `pushdown`).

    It is a separate class because Spark rejects a reader with pushFilters unless
    spark.sql.python.filterPushdown.enabled is set.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use the filters to narrow the ranges to read. Return all filters to Spark.

        Spark applies the returned filters to the rows. So the result of the query is the same with
        and without `pushdown`.
        """
        self.narrowing = narrowing_of(filters)
        return filters
