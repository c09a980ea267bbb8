"""Decide whether a report is complete: compare the planned messages with those that were read.

A queue is complete if the number of rows equals the number of offsets in its range. A report is
complete if all its queues are complete. This module does no I/O.
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
    """The planned and the read messages of one queue of a report.

    `bounds` has the minimum and maximum offset of the queue, and `wanted` is the range to read.
    They are None if the broker did not answer.
    """

    queue: Queue
    bounds: Bounds | None
    wanted: OffsetRange | None
    rows: int = 0
    # The reason why the queue is incomplete. It is empty if the queue is complete.
    problem: str = ""
    # The store time of the newest message in milliseconds since the epoch. Only set for reports
    # from a facts table.
    upto_ms: int | None = None

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
            "upto_ms": self.upto_ms,
        }


@dataclass(frozen=True, slots=True)
class Coverage:
    """The planned and the read messages of all queues of a report, sorted by queue."""

    queues: tuple[QueueCoverage, ...]

    @property
    def complete(self) -> bool:
        return all(queue.complete for queue in self.queues)

    @property
    def rows(self) -> int:
        return sum(queue.rows for queue in self.queues)

    @property
    def expected(self) -> int | None:
        """Return the number of planned messages, or None if it is unknown for a queue."""
        counts = [queue.expected for queue in self.queues]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def problems(self) -> list[str]:
        return [f"{covered.queue}: {covered.problem}" for covered in self.queues if covered.problem]

    @property
    def to_read(self) -> list[OffsetRange]:
        wanted = (queue.wanted for queue in self.queues)
        return [offsets for offsets in wanted if offsets is not None and len(offsets)]


def with_rows(
    planned: Sequence[QueueCoverage], rows: Mapping[Queue, int], reasons: Mapping[Queue, str]
) -> Coverage:
    """Combine the plan of a report with the number of rows that were read from each queue.

    `reasons` has possible reasons for missing rows. Only reasons of incomplete queues are used.
    """
    return Coverage(tuple(_read(plan, rows.get(plan.queue, 0), reasons) for plan in planned))


def _read(plan: QueueCoverage, rows: int, reasons: Mapping[Queue, str]) -> QueueCoverage:
    problem = plan.problem
    if not problem and rows != plan.expected:
        problem = f"{rows} of {plan.expected} messages were read"
        if reason := reasons.get(plan.queue):
            problem += f": {reason}"
    return QueueCoverage(plan.queue, plan.bounds, plan.wanted, rows, problem)
