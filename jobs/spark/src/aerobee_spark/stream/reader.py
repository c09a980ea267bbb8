"""Read a stream for Spark: decide the end of each batch in the driver, and read rows in tasks.

The rows of a batch depend only on the offsets before and after it, and on the options. The reader
also keeps broker addresses and waiting times, but a restart may lose them without harm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from aerobee_spark.errors import OptionError
from aerobee_spark.reading import batches
from aerobee_spark.reading.offsets import AT_EARLIEST, Queue, check_known
from aerobee_spark.reading.options import ALL_GROUPS, ReadOptions
from aerobee_spark.stream.admission import Advance, Patience, advance, limited
from aerobee_spark.stream.positions import Positions, named_topics, ranges_between

if TYPE_CHECKING:
    import pyarrow as pa

    from aerobee_client import AdminClient
    from aerobee_spark.stream.watch import Watch

log = logging.getLogger(__name__)


class RocketMqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream for `spark.readStream`.

    Spark pickles the reader for the workers, so the reader connects only when it is used.
    """

    def __init__(
        self, options: ReadOptions, names: tuple[str, ...], watch: Watch | None = None
    ) -> None:
        """Create a reader.

        Args:
            options: the options of the read.
            names: the columns to read.
            watch: looks up the queues of the stream; None creates a Watch at the first use.
        """
        self.options = options
        # The names of the columns to read. A user's schema may select some of the columns.
        self.names = names
        self._admin: AdminClient | None = watch.admin if watch else None
        self._watch = watch
        self._patience: Patience | None = None
        # The offsets at which a run under Trigger.AvailableNow ends; None under other triggers.
        self._target: dict[Queue, int] | None = None
        self._latest: dict[str, Any] | None = None

    # ---- the end of a batch; in the driver ----

    def initialOffset(self) -> dict[str, Any]:
        """Return the offsets at which a query starts. Spark calls this only at its first run.

        Raises:
            MqError: a topic or group does not exist, or a broker is unavailable (unless the stream
                starts at the earliest message of every queue).
        """
        from aerobee_spark.reading.planning import ranges_of

        seen = self._watching().look(must_exist=True)
        options = self.options
        away = [error for name, error in self._watching().away.items() if name]
        if away and options.starting != AT_EARLIEST:
            raise away[0]
        check_known(options.starting, seen.bounds, "startingOffsets")
        group = options.consumer_group
        if not seen.bounds and group and group != ALL_GROUPS:
            self._connected().get_group(group)  # raises if the group does not exist
        ranges = ranges_of(self._connected(), options, seen.bounds)
        start = {wanted.queue: wanted.start for wanted in ranges}
        return Positions(start, frozenset(named_topics(options))).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch from the options.

        If both options are set, return only maxOffsetsPerTrigger, because Spark accepts one limit.
        `latestOffset` also applies minOffsetsPerTrigger.
        """
        if self.options.max_per_trigger is not None:
            return ReadMaxRows(self.options.max_per_trigger)
        if self.options.min_per_trigger is not None:
            return ReadMinRows(self.options.min_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the offsets at which the next batch ends.

        Raises:
            CheckpointError: the checkpoint does not match the options.
            DataLossError: messages were deleted, unless failOnDataLoss is false.
        """
        before = self._parsed(start)
        if self._target is None:
            seen = self._watching().look(before.of)
        else:
            seen = self._watching().look_until(self._target, before.of)
        found = advance(before, seen, upto=self._target)
        self._report_losses(found)
        end = self._admitted(before, found, limit)
        latest = {queue: at.max_offset for queue, at in seen.bounds.items() if queue in end}
        behind = [max(0, latest.get(queue, at) - at) for queue, at in end.items()]
        self._latest = {
            **Positions({**end, **latest}, before.topics).as_json(),
            "metrics": _metrics(behind),
        }
        return Positions(end, frozenset(named_topics(self.options))).as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the queues at the last call of `latestOffset`, and metrics.

        Spark puts them into its query progress. It does not ask a Python source for metrics, so
        they are part of this value.
        """
        return self._latest

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the offsets at which the run ends to the current ends of the queues.

        Queues of an unavailable broker are not read in this run.
        """
        self._target = {
            queue: at.max_offset for queue, at in self._watching().look().bounds.items()
        }

    def _admitted(self, before: Positions, found: Advance, limit: ReadLimit) -> Mapping[Queue, int]:
        if isinstance(limit, ReadAllAvailable):
            return found.end
        if self._target is None and self._waits(found):
            return {queue: before.of.get(queue, at) for queue, at in found.end.items()}
        if isinstance(limit, ReadMaxRows):
            return limited(found, limit.max_rows)
        return found.end

    def _waits(self, found: Advance) -> bool:
        """Return whether the batch must wait for minOffsetsPerTrigger messages.

        Do not call this under AvailableNow, because such a run does not wait.
        """
        least = self.options.min_per_trigger
        if least is None:
            return False
        if self._patience is None:
            longest_s = self.options.max_trigger_delay_ms / 1000
            self._patience = Patience(least, longest_s, time.monotonic)
        return self._patience.waits(sum(found.waiting.values()))

    def _report_losses(self, found: Advance) -> None:
        for loss in found.losses:
            if self.options.fail_on_data_loss:
                raise loss
            log.warning("%s", loss.message)

    # ---- the rows of a batch ----

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Split the batch into partitions of at most maxRecordsPerPartition messages each.

        Raises:
            CheckpointError: the checkpoint does not match the options.
        """
        ranges = ranges_between(self._parsed(start), self._parsed(end))
        addresses = self._watch.addresses if self._watch else {}
        return batches.partitions(ranges, self.options, addresses)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield RecordBatches with the selected columns.

        Raises:
            MqError: the messages cannot be read.
            CorruptRecord: a broker returned a damaged record.
        """
        return batches.read(partition, self.options, self.names)

    def stop(self) -> None:
        if self._admin is not None:
            self._admin.close()

    # ---- connections; in the driver ----

    def _parsed(self, value: Mapping[str, Any]) -> Positions:
        positions = Positions.parse(value)
        positions.check(self.options)
        return positions

    def _watching(self) -> Watch:
        from aerobee_spark.stream.watch import Watch

        if self._watch is None:
            self._watch = Watch(self._connected(), self.options)
        return self._watch

    def _connected(self) -> AdminClient:
        from aerobee_spark.reading.planning import connect

        if self._admin is None:
            self._admin = connect(self.options.name_server, self.options.access)
        return self._admin


def _metrics(behind: Sequence[int]) -> dict[str, float]:
    """Return metrics with the names of Kafka's connector, from the unread messages of each queue.

    The messages are those after the end of the batch.
    """
    return {
        "minOffsetsBehindLatest": min(behind, default=0),
        "maxOffsetsBehindLatest": max(behind, default=0),
        "avgOffsetsBehindLatest": sum(behind) / len(behind) if behind else 0.0,
    }


class RefusedStreamReader(DataSourceStreamReader):
    """A reader that raises an OptionError when Spark first calls it.

    If the data source raised the error earlier, Spark would hide it behind its own error.
    """

    def __init__(self, error: OptionError) -> None:
        self.error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self.error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self.error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self.error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self.error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self.error
