"""Describe which queues, offsets and store times of a read are needed.

This module does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee_spark.reading.offsets import Queue


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The part of a read that filters leave.

    `topics` and `queue_ids` are those to read (None: all). Queue offsets and store times
    (milliseconds
    since the epoch) are inclusive bounds (None: no bound).
    """

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    first_ms: int | None = None
    last_ms: int | None = None

    def takes(self, queue: Queue) -> bool:
        return (self.topics is None or queue.topic in self.topics) and (
            self.queue_ids is None or queue.queue_id in self.queue_ids
        )
