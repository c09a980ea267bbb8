"""Commits of a facts table: which files count, and what they hold. Pure, but for the times.

A batch is there as soon as its commit file is, and not before. A commit with a higher `seq` is
newer.
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
    """One queue in a commit. `start` up to `end`, exclusive: the queue offsets that the batch had
    to read; `start` is None for the first batch of a run, which begins with what is there. Offsets
    and store times (milliseconds since the epoch) of its rows are None when it has none."""

    topic: str
    broker_name: str
    queue_id: int
    start: int | None
    end: int
    rows: int
    # Offsets from start to end of which the broker had no message any more.
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
    """`run`: the id of the streaming query, or "compact". `folder`: of its files, inside the table.
    `replaces`: names of commits that count no more beside this one."""

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
        """Raises ReportError: written by a newer version."""
        if value["v"] > VERSION:
            raise ReportError(
                f"the facts table has commits of version {value['v']}, and this package reads up "
                f"to "
                f"version {VERSION}: install the one that wrote it, or a newer one"
            )
        fields = {key: each for key, each in value.items() if key not in ("v", "rows")}
        fields["queues"] = tuple(Landed(**queue) for queue in value["queues"])
        fields["replaces"] = tuple(value["replaces"])
        return cls(**fields)


def active(commits: Iterable[Commit]) -> list[Commit]:
    """Those that none replaces, newest first."""
    every = list(commits)
    replaced = {name for commit in every for name in commit.replaces}
    return sorted(
        (commit for commit in every if commit.name not in replaced), key=lambda each: -each.seq
    )


@dataclass(frozen=True, slots=True)
class Span:
    """What the table has of one queue. `start`, `end`: of the offsets that were landed; `lost`:
    those in between that no commit has. `upto_ms`: store time of the newest message, None without
    any."""

    queue: Queue
    start: int
    end: int
    lost: int
    upto_ms: int | None


def spans(commits: Iterable[Commit]) -> list[Span]:
    """Queue by queue, sorted. A run that reads a queue again changes nothing in it."""
    parts: dict[Queue, list[Landed]] = {}
    for commit in commits:
        for landed in commit.queues:
            parts.setdefault(landed.queue, []).append(landed)
    return [_span(queue, parts[queue]) for queue in sorted(parts)]


def _span(queue: Queue, parts: list[Landed]) -> Span:
    """A part lost what it had to read and has no row of. Where a later run read the same offsets
    again, the part that has most of them counts."""
    times = [part.last_ms for part in parts if part.last_ms is not None]
    begins = [_begin(part) for part in parts]
    start, end = min(begins), max(part.end for part in parts)
    cuts = sorted({*begins, *(part.end for part in parts)})
    lost = 0
    coming = deque(sorted(parts, key=_begin))
    over: list[Landed] = []  # those that had to read all from low to high
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
    """How many of the offsets from `low` to `high` the part lost: first those below its first row,
    and what it lost further back counts at its end."""
    if not part.lost:
        return 0
    first = part.end if part.first_offset is None else part.first_offset
    front = min(part.lost, first - _begin(part))
    gone = max(0, min(high, _begin(part) + front) - low)
    return min(high - low, gone + (part.lost - front if high == part.end else 0))
