"""Define the writers that Spark calls for batches and for streams.

Spark pickles the writers for the workers, so they hold only plain values. This module must not
import the client or pyarrow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from aerobee_spark.errors import OptionError
from aerobee_spark.packages import check_packages, leave_out_imports, without_collection
from aerobee_spark.writing.message_columns import FrameColumns
from aerobee_spark.writing.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

# Names of local properties that Spark sets for a task.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
CASE_SENSITIVE = "spark.sql.caseSensitive"


@dataclass
class Sent(WriterCommitMessage):
    """The number of messages that one task sent."""

    messages: int


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The checked options and columns of a write. Each task of the write gets a copy."""

    options: WriteOptions
    columns: FrameColumns

    @classmethod
    def of(cls, options: WriteOptions, schema: StructType, *, overwrite: bool) -> WritePlan:
        """Check the options and the schema of a write, and return its plan.

        Raise OptionError if the write is not possible.
        """
        if overwrite:
            raise OptionError(
                "a topic cannot be overwritten: write with mode append (outputMode append for a "
                "stream); for a new topic, delete the old one first, which deletes its messages",
                "mode",
            )
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        columns = FrameColumns.of(fields)
        if options.redrive is not None:
            columns.check_redrive()
        columns.check_topic(options.topic)
        return cls(options, columns)

    def write(self, batches: Iterator[pa.RecordBatch], context: TaskContext, job: str) -> Sent:
        """Run one task of the write: send the rows of its batches.

        The message ids depend on `job`, which must be the same for each attempt of the task.

        Raises:
            WriteError: a message was not sent.
            OptionError: a column is spelled in another letter case, and Spark distinguishes case.
            MissingPackageError: the Python of the task lacks packages.
        """
        check_packages()
        with without_collection():
            from aerobee_spark.writing.task import Task

        leave_out_imports()
        if context.getLocalProperty(CASE_SENSITIVE) == "true":
            self.columns.check_case()
        task = Task(self.options, self.columns, job, context.partitionId())
        return Sent(task.write(batches))


class RocketMqWriter(DataSourceArrowWriter):
    """Writes a batch. All attempts of a task use the same write id, and so the same message ids."""

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return self.plan.write(iterator, _context(), self.plan.options.write_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_sent_messages(messages)


class RocketMqStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream.

    The message ids depend on the query and the number of the batch. So a batch that is repeated
    after a crash has the same message ids.
    """

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        context = _context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise OptionError(
                "Spark did not pass the ids of query and batch, which message ids need: "
                "write inside foreachBatch, with the option writeId",
                "writeId",
            )
        return self.plan.write(iterator, context, f"{query} {batch}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _log_sent_messages(messages)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark writes only inside tasks"
    return context


def _log_sent_messages(messages: list[WriterCommitMessage | None]) -> None:
    """Log the number of messages that a failed write has sent.

    This logs instead of raising an error, because that would hide the error of the task.
    """
    done = [each.messages for each in messages if isinstance(each, Sent)]
    log.warning(
        "the write failed: %d of %d tasks had ended, and the %d messages that they sent remain",
        len(done),
        len(messages),
        sum(done),
    )
