"""Compute with the commits of a facts table: which files are valid, and what they hold.

A batch is visible as soon as its commit file exists, and not before. A commit with a higher `seq`
is newer. This module does no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from aerobee_spark.errors import ReportError
from aerobee_spark.reading.offsets import Queue

VERSION = 1


@dataclass(frozen=True, slots=True)
class Landed:
    """One queue in a commit.

    The batch read the queue offsets from `start` up to `end`, exclusive. `start` is None for the
    first batch of a run, which starts at the first existing message. Offsets and store times
    (milliseconds since the epoch) of its rows are None if it has no rows.
    """

    topic: str
    broker_name: str
    queue_id: int
    start: int | None
    end: int
    rows: int
    # Offsets between start and end of which the broker no longer had the message.
    lost: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    first_ms: int | None = None
    last_ms: int | None = None

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.broker_name, self.queue_id)


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed batch.

    `run` is the id of the streaming query, or "compact". `folder` holds its files, inside the
    table.
    `replaces` names commits that are no longer valid.
    """

    run: str
    batch: int
    seq: int
    folder: str
    committed_at_ms: int
    queues: tuple[Landed, ...]
    replaces: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.run}-{self.batch}"

    @property
    def rows(self) -> int:
        return sum(queue.rows for queue in self.queues)

    def as_json(self) -> dict[str, Any]:
        return {"v": VERSION, "rows": self.rows, **asdict(self)}

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Commit:
        """Parse a commit. Raise ReportError if a newer version wrote it."""
        if value["v"] > VERSION:
            raise ReportError(
                f"the facts table has commits of version {value['v']}, but this package reads up "
                f"to version {VERSION}: install the package that wrote it, or a newer one",
            )
        fields = {key: each for key, each in value.items() if key not in ("v", "rows")}
        fields["queues"] = tuple(Landed(**queue) for queue in value["queues"])
        fields["replaces"] = tuple(value["replaces"])
        return cls(**fields)


def active(commits: Iterable[Commit]) -> list[Commit]:
    """Return the commits that no other commit replaces, newest first."""
    every = list(commits)
    replaced = {name for commit in every for name in commit.replaces}
    return sorted(
        (commit for commit in every if commit.name not in replaced), key=lambda each: -each.seq
    )


@dataclass(frozen=True, slots=True)
class Span:
    """The content of the table for one queue.

    Offsets from `start` up to `end` were written. `lost` counts those in between that no commit
    has.
    `upto_ms` is the store time of the newest message, None without any.
    """

    queue: Queue
    start: int
    end: int
    lost: int
    upto_ms: int | None


def spans(commits: Iterable[Commit]) -> list[Span]:
    """Return the span of each queue, sorted. Reading a queue twice does not change its span."""
    parts: dict[Queue, list[Landed]] = {}
    for commit in commits:
        for landed in commit.queues:
            parts.setdefault(landed.queue, []).append(landed)
    return [_span(queue, parts[queue]) for queue in sorted(parts)]


def _span(queue: Queue, parts: list[Landed]) -> Span:
    """Combine the parts of a queue.

    The messages that a part should have read but has no row for are lost. If several runs read the
    same offsets, the most complete part counts.
    """
    times = [part.last_ms for part in parts if part.last_ms is not None]
    begins = [_begin(part) for part in parts]
    start, end = min(begins), max(part.end for part in parts)
    cuts = sorted({*begins, *(part.end for part in parts)})
    lost = 0
    coming = deque(sorted(parts, key=_begin))
    over: list[Landed] = []  # parts that cover the whole range from low to high
    for low, high in pairwise(cuts):
        while coming and _begin(coming[0]) <= low:
            over.append(coming.popleft())
        over = [part for part in over if part.end >= high]
        lost += min((_missing(part, low, high) for part in over), default=high - low)
    return Span(queue, start, end, lost, max(times, default=None))


def _begin(part: Landed) -> int:
    if part.start is not None:
        return part.start
    return part.end if part.first_offset is None else part.first_offset


def _missing(part: Landed, low: int, high: int) -> int:
    """Return how many offsets from `low` to `high` the part lost.

    Lost offsets below its first row are counted there; all others are counted at its end.
    """
    if not part.lost:
        return 0
    first = part.end if part.first_offset is None else part.first_offset
    front = min(part.lost, first - _begin(part))
    gone = max(0, min(high, _begin(part) + front) - low)
    return min(high - low, gone + (part.lost - front if high == part.end else 0))
