"""Keep the last known state of each dead letter in a facts table.

Rows of the table do not change, but states do. So the states are one more Parquet file, which each
run of the job replaces: one row for each dead letter, with the key of its row in the table. A
letter that retention has deleted keeps its last state. This module does not connect to brokers.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aerobee_spark.reading.offsets import Queue
from aerobee_spark.table.files import STATES, FactsFiles

KEY = ("topic", "brokerName", "queueId")
_TIME = pa.timestamp("ms", "UTC")
# `stateTimestamp` is the time at which a job handled the letter, and `stateAsOf` that of the answer
# of the broker.
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("state", pa.string()),
        ("stateTimestamp", _TIME),
        ("jobId", pa.string()),
        ("target", pa.string()),
        ("requestedBy", pa.string()),
        ("stateAsOf", _TIME),
    ]
)


@dataclass(frozen=True, slots=True)
class QueueStates:
    """The states of the letters of one queue from `begin` up to `end`, at one time.

    `handled` has (state, time in milliseconds since the epoch, job id, target, requested by) by
    queue offset. All other letters are open.
    """

    queue: Queue
    begin: int
    end: int
    as_of_ms: int
    handled: dict[int, tuple[str, int, str, str, str]] = field(default_factory=dict)

    def rows(self) -> pa.Table:
        count = self.end - self.begin
        states = np.full(count, "open", object)
        times: list[int | None] = [None] * count
        texts: list[list[str]] = [[""] * count for _ in range(3)]
        for offset, (state, at_ms, *others) in self.handled.items():
            row = offset - self.begin
            states[row] = state
            times[row] = at_ms or None
            for column, text in zip(texts, others, strict=True):
                column[row] = text
        key = [pa.repeat(value, count).cast(SCHEMA.field(name).type) for name, value in self._key()]
        offsets = pa.array(np.arange(self.begin, self.end, dtype=np.int64))
        as_of = pa.repeat(pa.scalar(self.as_of_ms, pa.int64()), count).cast(_TIME)
        columns = [pa.array(column, pa.string()) for column in texts]
        return pa.table(
            [
                *(*key, offsets, pa.array(states, pa.string())),
                *(pa.array(times, pa.int64()).cast(_TIME), *columns, as_of),
            ],
            schema=SCHEMA,
        )

    def _key(self) -> Iterator[tuple[str, Any]]:
        yield from zip(KEY, self.queue, strict=True)


def read(files: FactsFiles) -> pa.Table | None:
    """Return the states of the table, one row for each letter; None if it has none."""
    try:
        content = files.storage.read(STATES)
    except FileNotFoundError:
        return None
    return pq.read_table(io.BytesIO(content))


def update(files: FactsFiles, found: Iterable[QueueStates]) -> dict[str, int]:
    """Replace the states of the letters in `found`, and keep all others.

    Return the number of letters of the table by state.
    """
    fresh = list(found)
    kept = read(files)
    parts = [] if kept is None else [_without(kept, fresh)]
    whole = pa.concat_tables([*parts, *(each.rows() for each in fresh), SCHEMA.empty_table()])
    written = io.BytesIO()
    pq.write_table(whole, written, compression="zstd")
    files.storage.replace(STATES, written.getvalue())
    counts = pc.value_counts(whole.column("state")).to_pylist()
    return {each["values"]: each["counts"] for each in counts}


def _without(states: pa.Table, fresh: Iterable[QueueStates]) -> pa.Table:
    """Return the rows whose letters are not in `fresh`."""
    for each in fresh:
        own = of_queue(states, each.queue)
        offset = states.column("queueOffset")
        inside = pc.and_(pc.greater_equal(offset, each.begin), pc.less(offset, each.end))
        states = states.filter(pc.invert(pc.and_(own, inside)))
    return states


def of_queue(states: pa.Table, queue: Queue) -> Any:
    """Return a mask that selects the rows of a queue."""
    mask = pa.repeat(True, states.num_rows)
    for name, value in zip(KEY, queue, strict=True):
        mask = pc.and_(mask, pc.equal(states.column(name), value))
    return mask
