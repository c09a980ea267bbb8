"""The data source: `spark.read.format("rocketmq")`, batch, by queue offset.

Spark loads this module in planner processes and on workers, so it imports neither grpc nor pyarrow
at its top: grpc must not be loaded before a worker is forked. The options: `reading/options.py`;
the columns of a row: `reading/schema.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from aerobee_spark.reading import schema as schemas
from aerobee_spark.reading.offsets import OffsetRange, split
from aerobee_spark.reading.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from aerobee_client import AdminClient

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
        schemas.check(schema)
        return RocketMqReader(self.read_options, tuple(schema.names))


@dataclass
class RangePartition(InputPartition):
    """The range that one task reads."""

    wanted: OffsetRange


class RocketMqReader(DataSourceReader):
    """Plans and reads. It is pickled for the workers, so it holds only values."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self.options = options
        # The columns to read; a schema of the user's selects some of them.
        self.names = names

    def partitions(self) -> list[InputPartition]:
        """One for each range of at most maxRecordsPerPartition messages. Raises MqError."""
        from aerobee_spark.reading.planning import connect, plan

        with connect(self.options.name_server) as admin:
            ranges = plan(admin, self.options)
        parts = split(
            ranges,
            max_records=self.options.max_records_per_partition,
            min_partitions=self.options.min_partitions,
        )
        return [RangePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """RecordBatches with the columns of the schema. Raises MqError, CorruptRecord."""
        # Without any partition Spark reads one of its own making.
        if isinstance(partition, RangePartition):
            yield from self._read(partition.wanted)

    def _read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        from aerobee_spark.reading import columns
        from aerobee_spark.reading.chunks import read_range

        options = self.options
        for chunk in read_range(_client(options.name_server), wanted, options):
            batch = columns.decode(
                chunk.records,
                wanted.queue.broker_name,
                include_body=options.include_body,
                max_body_bytes=options.max_body_bytes,
                include_properties=options.include_properties,
            )
            if options.tags:
                batch = columns.with_tags(batch, options.tags)
            yield batch.select(list(self.names))


# One client per worker process, which Spark uses for several tasks. The process id is part of the
# key because no connection survives a fork.
_clients: dict[tuple[int, str], AdminClient] = {}


def _client(name_server: str) -> AdminClient:
    from aerobee_spark.reading.planning import connect

    key = (os.getpid(), name_server)
    if key not in _clients:
        _clients[key] = connect(name_server)
    return _clients[key]
