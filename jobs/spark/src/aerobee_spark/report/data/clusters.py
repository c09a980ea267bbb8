"""Group dead letters by cause: the reason, the place in the code, and the text without values.

Two failures with the same fingerprint have the same reason, the same innermost call of the
application, and the same text when its numbers and ids are masked. This module does no I/O.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from aerobee_spark.reading.redaction import masked

# More fingerprints are counted as one, so that texts that differ in words need no memory.
MOST = 10_000
MAX_TEXT = 300
DAY_MS = 86_400_000

# A frame in the format of Python's traceback. Lines of code follow it.
_FRAME = re.compile(r'File "([^"]+)", line \d+, in (\S+)')
_LIBRARY = re.compile(r"/(?:site-packages|dist-packages|python3\.\d+|aerobee_client)/|^<frozen ")


class Fingerprint(NamedTuple):
    """The cause of a dead letter. `frame` is "FILE in FUNCTION", or "" if it is unknown."""

    reason: str
    frame: str
    text: str


OTHER = Fingerprint("", "", "(other texts: too many different ones)")


def own_frame(stack_trace: str) -> str:
    """Return the innermost call of the application, "FILE in FUNCTION".

    If all calls are those of libraries, return the innermost one. Line numbers are left out,
    because they change with each version. Return "" for a text without calls.
    """
    frames = _FRAME.findall(stack_trace)
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    if not frames:
        return ""
    path, function = (own or frames)[-1]
    return f"{path.rpartition('/')[2]} in {function}"


def fingerprint(reason: str, description: str, stack_trace: str) -> Fingerprint:
    return Fingerprint(reason, own_frame(stack_trace), masked(description)[:MAX_TEXT])


@dataclass(slots=True)
class _Cluster:
    first: str
    last: str
    example: dict[str, Any]
    dead_letters: int = 0
    open: int = 0
    unknown: int = 0
    new: int = 0
    last_day: int = 0
    day_before: int = 0


@dataclass(slots=True)
class Clusters:
    """Counts the dead letters of one group by fingerprint.

    `now_ms` is the time of the report, in milliseconds since the epoch. `new_from` has the first
    queue offset that the previous report did not read, by (broker name, queue id).
    """

    consumer_group: str
    now_ms: int
    new_from: Mapping[tuple[str, int], int] = field(default_factory=dict)
    _found: dict[Fingerprint, _Cluster] = field(default_factory=dict)

    def add(self, row: dict[str, Any], stack_trace: str, *, is_open: bool | None) -> None:
        """Count a dead letter. `row` is a row of its listing. `is_open` is None if unknown."""
        key = fingerprint(row["reason"], row["description"], stack_trace)
        if key not in self._found and len(self._found) >= MOST:
            key = OTHER
        stored_at = row["stored_at"]
        cluster = self._found.get(key)
        if cluster is None:
            cluster = self._found[key] = _Cluster(stored_at, stored_at, _place(row))
        cluster.dead_letters += 1
        cluster.open += is_open is True
        cluster.unknown += is_open is None
        queue = row["broker_name"], row["queue_id"]
        cluster.new += row["queue_offset"] >= self.new_from.get(queue, 0)
        age_ms = self.now_ms - round(datetime.fromisoformat(stored_at).timestamp() * 1000)
        cluster.last_day += age_ms <= DAY_MS
        cluster.day_before += DAY_MS < age_ms <= 2 * DAY_MS
        cluster.first = min(cluster.first, stored_at)
        if stored_at >= cluster.last:
            cluster.last, cluster.example = stored_at, _place(row)

    @property
    def count(self) -> int:
        return len(self._found)

    def top(self, most: int) -> list[dict[str, Any]]:
        """Return the clusters with most open dead letters first, then those with most of all.

        "open" is None if the state of a dead letter is unknown.
        """
        ordered = sorted(
            self._found.items(),
            key=lambda each: (-each[1].open - each[1].unknown, -each[1].dead_letters, each[0]),
        )
        return [
            {
                **key._asdict(),
                "dead_letters": cluster.dead_letters,
                "open": None if cluster.unknown else cluster.open,
                "new": cluster.new,
                "last_24h": cluster.last_day,
                "before_24h": cluster.day_before,
                "first": cluster.first,
                "last": cluster.last,
                "example": cluster.example,
                "redrive": self._command(key),
            }
            for key, cluster in ordered[:most]
        ]

    def _command(self, key: Fingerprint) -> str:
        """Return the command that shows what a redrive of this reason would send."""
        reason = ["--reason", key.reason] if key.reason else ["--no-reason"]
        selection = ["--all", *reason, "--to", "origin", "--dry-run"]
        return shlex.join(["aerobee", "dlq", "redrive", self.consumer_group, *selection])


def _place(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: row[name]
        for name in ("message_id", "topic", "broker_name", "queue_id", "queue_offset")
    }
