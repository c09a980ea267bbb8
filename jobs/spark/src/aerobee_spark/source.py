"""The data source: `spark.read` and `spark.readStream`, `.format("rocketmq")`, by queue offset, and
the sink, `df.write` and `df.writeStream`.

Spark loads this module in planner processes and on workers, so it imports neither grpc nor pyarrow
at its top: grpc must not be loaded before a worker is forked. The options: `reading/options.py` and
`writing/options.py`; the columns of a row: `reading/schema.py` and `writing/message_columns.py`;
the stream: `stream/reader.py`; the sink: `writing/writer.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

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
from aerobee_spark.reading.narrowing import Narrowing
from aerobee_spark.reading.offsets import shared
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.writing.options import WriteOptions
from aerobee_spark.writing.writer import RocketMqStreamWriter, RocketMqWriter, WritePlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

FORMAT = "rocketmq"


def register(spark: SparkSession) -> None:
    """Registers the format. Spark's own discovery does not look into `--py-files`, and fails when
    any package named pyspark_* is broken."""
    spark.dataSource.register(RocketMqSource)


class RocketMqSource(DataSource):
    """`format("rocketmq")`. Options are checked by what Spark asks for first: `schema` or a reader
    those of a read, a writer those of a write. Each raises OptionError."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Also of a view that is only written to."""
        if not self._is_of_a_write():
            ReadOptions.parse(self.options)
        return schemas.SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.parse(self.options)
        options.check_batch()
        schemas.check(schema)
        kind = NarrowingReader if options.pushdown else RocketMqReader
        return kind(options, tuple(schema.names))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from aerobee_spark.stream.reader import RefusedStreamReader, RocketMqStreamReader

        try:
            options = ReadOptions.parse(self.options)
            options.check_stream()
            schemas.check(schema)
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
    """Plans and reads. It is pickled for the workers, so it holds only values."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self.options = options
        # The columns to read; a schema of the user's selects some of them.
        self.names = names
        self.narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        """Of at most maxRecordsPerPartition messages each. Raises MqError."""
        from aerobee_spark.reading.planning import connect, plan

        with connect(self.options.name_server) as admin:
            ranges = plan(admin, self.options, self.narrowing)
        tasks = shared(
            ranges,
            max_records=self.options.max_records_per_partition,
            min_partitions=self.options.min_partitions,
        )
        return [batches.RangesPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """RecordBatches with the columns of the schema. Raises MqError, CorruptRecord."""
        return batches.read(partition, self.options, self.names)


class NarrowingReader(RocketMqReader):
    """With `pushdown`: takes filters. A class of its own, because Spark refuses a reader that has
    pushFilters unless spark.sql.python.filterPushdown.enabled is set."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrows the ranges. Spark applies all the filters again, so that the rows are the same
        with and without."""
        self.narrowing = narrowing_of(filters)
        return filters
