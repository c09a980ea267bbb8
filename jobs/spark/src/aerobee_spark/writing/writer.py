"""The writers that Spark asks for: of a batch, and of each batch of a stream. They are pickled for
the workers, so they hold only values, and import neither grpc nor pyarrow here.
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
from aerobee_spark.packages import check_packages, leave_out_imports
from aerobee_spark.writing.message_columns import FrameColumns
from aerobee_spark.writing.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

# Local properties that Spark gives to a task.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
CASE_SENSITIVE = "spark.sql.caseSensitive"


@dataclass
class Sent(WriterCommitMessage):
    """Of one task."""

    messages: int


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What is written, and how."""

    options: WriteOptions
    columns: FrameColumns

    @classmethod
    def of(cls, options: WriteOptions, schema: StructType, *, overwrite: bool) -> WritePlan:
        """Raises OptionError for what cannot be written."""
        if overwrite:
            raise OptionError(
                "a topic cannot be overwritten: write with mode append (of a stream, outputMode "
                "append), and delete the topic first where it is to be new",
                "mode",
            )
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        columns = FrameColumns.of(fields)
        if options.redrive is not None:
            columns.check_redrive()
        columns.check_topic(options.topic)
        return cls(options, columns)

    def write(self, batches: Iterator[pa.RecordBatch], context: TaskContext, job: str) -> Sent:
        """A task. `job`: what its message ids are made of. Raises WriteError, OptionError,
        MissingPackageError."""
        check_packages()
        from aerobee_spark.writing.task import Task

        leave_out_imports()
        if context.getLocalProperty(CASE_SENSITIVE) == "true":
            self.columns.check_case()
        task = Task(self.options, self.columns, job, context.partitionId())
        return Sent(task.write(batches))


class RocketMqWriter(DataSourceArrowWriter):
    """`df.write`. Message ids follow from the write id, which each attempt of a task has."""

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return self.plan.write(iterator, _context(), self.plan.options.write_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell_what_stays(messages)


class RocketMqStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`. Message ids follow from query and batch: a batch that is repeated after a
    crash has the same."""

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        context = _context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise OptionError(
                "Spark does not tell the task its query and batch, of which message ids are made: "
                "write inside of foreachBatch, with the option writeId",
                "writeId",
            )
        return self.plan.write(iterator, context, f"{query} {batch}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _tell_what_stays(messages)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark writes inside of tasks alone"
    return context


def _tell_what_stays(messages: list[WriterCommitMessage | None]) -> None:
    """In the driver, after a task has failed. An error raised here would hide the task's."""
    done = [each.messages for each in messages if isinstance(each, Sent)]
    log.warning(
        "the write has failed: %d of %d tasks had ended, and the %d messages that they sent stay",
        len(done),
        len(messages),
        sum(done),
    )
