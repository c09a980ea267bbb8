"""The reader of a stream: Spark asks it in the driver where the next batch ends, and in tasks for
the rows.

A batch is a pure function of the positions before and after it and of the options that split. What
the reader remembers besides (where brokers are, since when messages wait) may be lost at any time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
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
from aerobee_spark.reading.offsets import AT_EARLIEST, Queue, check_known, shared
from aerobee_spark.reading.options import ALL_GROUPS, ReadOptions
from aerobee_spark.stream.admission import Advance, Patience, advance, limited
from aerobee_spark.stream.positions import Positions, named_topics, ranges_between

if TYPE_CHECKING:
    import pyarrow as pa

    from aerobee_client import AdminClient
    from aerobee_spark.stream.watch import Watch

log = logging.getLogger(__name__)


class RocketMqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`. It is pickled for the workers before it has connected anywhere."""

    def __init__(
        self, options: ReadOptions, names: tuple[str, ...], watch: Watch | None = None
    ) -> None:
        """`watch`: what asks the brokers, when it is not to be made here."""
        self.options = options
        # The columns to read; a schema of the user's selects some of them.
        self.names = names
        self._admin: AdminClient | None = watch.admin if watch else None
        self._watch = watch
        self._patience: Patience | None = None
        # Where Trigger.AvailableNow ends; None: another trigger.
        self._target: dict[Queue, int] | None = None
        self._latest: dict[str, Any] | None = None

    # ---- where a batch ends; in the driver ----

    def initialOffset(self) -> dict[str, Any]:
        """Of the first run of a query alone. Raises MqError: an unknown topic or group, and, unless
        it starts everywhere at the earliest message, a broker that is away."""
        from aerobee_spark.reading.planning import ranges_of

        seen = self._watching().look(must_exist=True)
        options = self.options
        away = [error for name, error in self._watching().away.items() if name]
        if away and options.starting != AT_EARLIEST:
            raise away[0]
        check_known(options.starting, seen.bounds, "startingOffsets")
        group = options.consumer_group
        if not seen.bounds and group and group != ALL_GROUPS:
            self._connected().get_group(group)  # raises when there is no such group
        ranges = ranges_of(self._connected(), options, seen.bounds)
        start = {wanted.queue: wanted.start for wanted in ranges}
        return Positions(start, frozenset(named_topics(options))).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """One limit stands for both options: Spark has none that is made of two."""
        if self.options.max_per_trigger is not None:
            return ReadMaxRows(self.options.max_per_trigger)
        if self.options.min_per_trigger is not None:
            return ReadMinRows(self.options.min_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raises CheckpointError; DataLossError, unless failOnDataLoss is off."""
        before = self._parsed(start)
        if self._target is None:
            seen = self._watching().look(before.of)
        else:
            seen = self._watching().look_until(self._target, before.of)
        found = advance(before, seen, upto=self._target)
        self._heed(found)
        end = self._admitted(before, found, limit)
        latest = {queue: at.max_offset for queue, at in seen.bounds.items() if queue in end}
        self._latest = Positions({**end, **latest}, before.topics).as_json()
        return Positions(end, frozenset(named_topics(self.options))).as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the queues, as the last `latestOffset` saw them: for the progress."""
        return self._latest

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end; a queue whose broker is away now has none, and stays where it stands."""
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
        """Under AvailableNow nobody asks: it would wait for ever."""
        least = self.options.min_per_trigger
        if least is None:
            return False
        if self._patience is None:
            longest_s = self.options.max_trigger_delay_ms / 1000
            self._patience = Patience(least, longest_s, time.monotonic)
        return self._patience.waits(sum(found.waiting.values()))

    def _heed(self, found: Advance) -> None:
        for loss in found.losses:
            if self.options.fail_on_data_loss:
                raise loss
            log.warning("%s", loss.message)

    # ---- what a batch reads ----

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Of at most maxRecordsPerPartition messages each. Raises CheckpointError."""
        ranges = ranges_between(self._parsed(start), self._parsed(end))
        tasks = shared(
            ranges,
            max_records=self.options.max_records_per_partition,
            min_partitions=self.options.min_partitions,
        )
        addresses = self._watch.addresses if self._watch else {}
        return [batches.RangesPartition(task, addresses) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """RecordBatches with the columns of the schema. Raises MqError, CorruptRecord."""
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
            self._admin = connect(self.options.name_server)
        return self._admin


class RefusedStreamReader(DataSourceStreamReader):
    """Raises at its first call what is wrong with the options. Raised any earlier, Spark would fail
    over it with an error of its own, which hides ours."""

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
