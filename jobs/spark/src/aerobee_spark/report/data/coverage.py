"""What a report had to read, what it read, and so whether it may call itself complete.

Pure. A queue is complete when as many rows were read as its range has offsets; the report is when
every queue is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aerobee_spark.reading.offsets import Bounds, OffsetRange, Queue
from aerobee_spark.report.request import DLQ, RETRY
from aerobee_wire import topics


def kind_of(topic: str) -> str:
    return DLQ if topics.is_dead_letter(topic) else RETRY


@dataclass(frozen=True, slots=True)
class QueueCoverage:
    """One queue of the report. Bounds and range are None when its broker did not tell them."""

    queue: Queue
    bounds: Bounds | None
    wanted: OffsetRange | None
    rows: int = 0
    # Why it is not complete; empty when it is.
    problem: str = ""

    @property
    def expected(self) -> int | None:
        return None if self.wanted is None else len(self.wanted)

    @property
    def complete(self) -> bool:
        return not self.problem and self.rows == self.expected

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": kind_of(self.queue.topic),
            "topic": self.queue.topic,
            "broker_name": self.queue.broker_name,
            "queue_id": self.queue.queue_id,
            "min_offset": None if self.bounds is None else self.bounds.min_offset,
            "max_offset": None if self.bounds is None else self.bounds.max_offset,
            "start_offset": None if self.wanted is None else self.wanted.start,
            "end_offset": None if self.wanted is None else self.wanted.end,
            "expected": self.expected,
            "rows": self.rows,
            "complete": self.complete,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class Coverage:
    """All queues of the report, sorted."""

    queues: tuple[QueueCoverage, ...]

    @property
    def complete(self) -> bool:
        return all(each.complete for each in self.queues)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.queues)

    @property
    def expected(self) -> int | None:
        """None when it is not known of every queue."""
        each = [one.expected for one in self.queues]
        return None if None in each else sum(one or 0 for one in each)

    @property
    def problems(self) -> list[str]:
        return [f"{each.queue}: {each.problem}" for each in self.queues if each.problem]

    @property
    def to_read(self) -> list[OffsetRange]:
        return [one.wanted for one in self.queues if one.wanted is not None and len(one.wanted)]


def with_rows(
    planned: Sequence[QueueCoverage], rows: Mapping[Queue, int], reasons: Mapping[Queue, str]
) -> Coverage:
    """What was planned, with the rows that were read of each queue.

    `reasons` says for a queue why rows may be missing; it counts only where they are.
    """
    return Coverage(tuple(_read(each, rows.get(each.queue, 0), reasons) for each in planned))


def _read(each: QueueCoverage, rows: int, reasons: Mapping[Queue, str]) -> QueueCoverage:
    problem = each.problem
    if not problem and rows != each.expected:
        problem = f"{rows} of {each.expected} messages were read"
        if reason := reasons.get(each.queue):
            problem += f": {reason}"
    return QueueCoverage(each.queue, each.bounds, each.wanted, rows, problem)
