"""Find the valid commits of a facts table, and compute the offsets that they cover.

A batch becomes visible when its commit file is created. A commit with a higher `seq` is newer. This
module does no I/O.
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
    """The messages of one queue that a commit added to the table.

    The batch read the queue offsets from `start` up to `end`, exclusive. `start` is None for the
    first batch of a run, which starts at the first existing message. The last four fields are the
    lowest and highest offset and store time (milliseconds since the epoch) of its rows. They are
    None without rows.
    """

    topic: str
    broker_name: str
    queue_id: int
    start: int | None
    end: int
    rows: int
    # The number of offsets from start to end whose messages the broker had deleted before the read.
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

    `run` is the id of the streaming query, or "compact". `folder` is the folder of its files,
    relative to the table. `replaces` lists names of earlier commits that this commit makes invalid.
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
    """The range of offsets of one queue that the table covers.

    The range begins at `start` and ends before `end`. `lost` is the number of offsets in the range
    whose messages are missing in all commits. `upto_ms` is the store time of the newest message, or
    None if the table has no message of the queue.
    """

    queue: Queue
    start: int
    end: int
    lost: int
    upto_ms: int | None


def spans(commits: Iterable[Commit]) -> list[Span]:
    """Return the range of offsets that commits cover of each queue, sorted by queue.

    Offsets that several runs read are counted once.
    """
    parts: dict[Queue, list[Landed]] = {}
    for commit in commits:
        for landed in commit.queues:
            parts.setdefault(landed.queue, []).append(landed)
    return [_span(queue, parts[queue]) for queue in sorted(parts)]


def _span(queue: Queue, parts: list[Landed]) -> Span:
    """Compute the range of offsets of one queue from its parts in several commits.

    A message is lost if a part should have read it but has no row for it. If several runs read the
    same offsets, the part with the fewest lost messages counts.
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
    """Estimate the number of lost messages of a part that have offsets from `low` to `high`.

    The exact offsets are known only below the first row of the part. All other lost messages are
    counted at the end of the part.
    """
    if not part.lost:
        return 0
    first = part.end if part.first_offset is None else part.first_offset
    front = min(part.lost, first - _begin(part))
    gone = max(0, min(high, _begin(part) + front) - low)
    return min(high - low, gone + (part.lost - front if high == part.end else 0))
