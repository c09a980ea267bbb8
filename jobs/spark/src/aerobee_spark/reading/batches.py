"""Read the messages of one task as RecordBatches, in a Python worker of Spark.

Batch queries and streams both use this module. The first read imports the client, which the
modules for planning do not need.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from aerobee_spark.access import Access
from aerobee_spark.packages import (
    check_packages,
    keep_freed_memory,
    leave_out_imports,
    without_collection,
)
from aerobee_spark.reading.message_columns import HEADERS
from aerobee_spark.reading.offsets import OffsetRange, shared
from aerobee_spark.reading.options import PLAIN, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from aerobee_client import AdminClient


@dataclass
class RangesPartition(InputPartition):
    """The ranges of queue offsets that one task reads.

    `addresses` maps broker names to the addresses that were known at planning time.
    """

    ranges: tuple[OffsetRange, ...]
    addresses: Mapping[str, str] = field(default_factory=dict)


def partitions(
    ranges: Sequence[OffsetRange], options: ReadOptions, addresses: Mapping[str, str] | None = None
) -> list[InputPartition]:
    """Distribute ranges of queue offsets to partitions. Spark runs one task for each partition."""
    tasks = shared(
        ranges,
        max_records=options.max_records_per_partition,
        min_partitions=options.min_partitions,
    )
    return [RangesPartition(task, addresses or {}) for task in tasks]


def read(
    partition: InputPartition, options: ReadOptions, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Read the messages of a partition. Yield RecordBatches with the columns `names`.

    Raises:
        MqError: the messages cannot be read, or a package is missing (MissingPackageError).
        CorruptRecord: a broker returned a damaged record.
    """
    # If a read has no partitions, Spark calls this with a partition of its own.
    if isinstance(partition, RangesPartition):
        yield from _read(partition, options, names)


def _read(
    partition: RangesPartition, options: ReadOptions, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    check_packages()
    with without_collection():
        from aerobee_spark.reading import columns
        from aerobee_spark.reading.chunks import read_ranges
        from aerobee_spark.reading.redaction import Redaction, redacted

    redaction = Redaction.of(options.redact, options.redact_key)
    client = _client(options.name_server, options.access)
    leave_out_imports()
    keep_freed_memory()
    for wanted, chunk in read_ranges(client, partition.ranges, options, partition.addresses):
        batch = columns.decode(
            chunk.records,
            wanted.queue.broker_name,
            include_body=options.include_body,
            max_body_bytes=options.max_body_bytes,
            include_properties=options.include_properties,
            inflate=options.body_encoding == PLAIN,
        )
        if options.tags:
            batch = columns.with_tags(batch, options.tags)
        if options.redact:
            batch = redacted(batch, redaction)
        if HEADERS in names:
            batch = columns.with_headers(batch)
        yield batch.select(list(names))


# One client per worker process, which Spark reuses for several tasks. The process id is part of
# the key because no connection survives a fork.
_clients: dict[tuple[int, str, Access], AdminClient] = {}


def _client(name_server: str, access: Access) -> AdminClient:
    from aerobee_spark.reading.planning import connect

    key = (os.getpid(), name_server, access)
    if key not in _clients:
        _clients[key] = connect(name_server, access)
    return _clients[key]
