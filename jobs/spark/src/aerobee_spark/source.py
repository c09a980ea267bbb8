"""The data source: `spark.read` and `spark.readStream`, `.format("rocketmq")`, by queue offset.

Spark loads this module in planner processes and on workers, so it imports neither grpc nor pyarrow
at its top: grpc must not be loaded before a worker is forked. The options: `reading/options.py`;
the columns of a row: `reading/schema.py`; the stream: `stream/reader.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from aerobee_spark.errors import OptionError
from aerobee_spark.reading import batches
from aerobee_spark.reading import schema as schemas
from aerobee_spark.reading.filters import narrowing_of
from aerobee_spark.reading.narrowing import Narrowing
from aerobee_spark.reading.offsets import split
from aerobee_spark.reading.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

FORMAT = "rocketmq"


def register(spark: SparkSession) -> None:
    """Registers the format. Spark's own discovery does not look into `--py-files`, and fails when
    any package named pyspark_* is broken."""
    spark.dataSource.register(RocketMqSource)


class RocketMqSource(DataSource):
    """`format("rocketmq")`. Raises OptionError for bad options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self.read_options = ReadOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return schemas.SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        self.read_options.check_batch()
        schemas.check(schema)
        kind = NarrowingReader if self.read_options.pushdown else RocketMqReader
        return kind(self.read_options, tuple(schema.names))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from aerobee_spark.stream.reader import RefusedStreamReader, RocketMqStreamReader

        try:
            self.read_options.check_stream()
            schemas.check(schema)
        except OptionError as error:
            return RefusedStreamReader(error)
        return RocketMqStreamReader(self.read_options, tuple(schema.names))


class RocketMqReader(DataSourceReader):
    """Plans and reads. It is pickled for the workers, so it holds only values."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self.options = options
        # The columns to read; a schema of the user's selects some of them.
        self.names = names
        self.narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        """One for each range of at most maxRecordsPerPartition messages. Raises MqError."""
        from aerobee_spark.reading.planning import connect, plan

        with connect(self.options.name_server) as admin:
            ranges = plan(admin, self.options, self.narrowing)
        parts = split(
            ranges,
            max_records=self.options.max_records_per_partition,
            min_partitions=self.options.min_partitions,
        )
        return [batches.RangePartition(part) for part in parts]

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
