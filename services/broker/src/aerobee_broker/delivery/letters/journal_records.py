"""The records of the letter journal: jobs, their progress, and their ends.

This module does no I/O.

The records are messages of the system topic rmq_sys_DEAD_LETTER_LOG, queue 0. A body is a JSON
object. A letter comes before the records about it in the log, so the log has these records as long
as it has the letter.

A record of progress and the messages that it announces are one append. The record comes first, and
names the places of the messages. A crash may leave an append incomplete: its end is missing. The
next start then finds the record of progress with fewer messages than announced, and logs a record
of the kind "torn" with their number, which corrects the progress.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from aerobee_broker.delivery.letters.selection import Run, Selection
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import topics as names

QUEUE_ID = 0
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


class Action(Enum):
    REDRIVE = "redrive"
    DISMISS = "dismiss"


class JobState(Enum):
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A description of a job. `target` is the text of a redrive's target; empty for Action.DISMISS.

    `limit` is the maximum number of letters to send or dismiss; 0 for all. `rate` is the maximum
    number per second; 0 for no limit.
    """

    consumer_group: str
    action: Action
    target: str = ""
    selection: Selection = field(default_factory=Selection)
    again: bool = False
    limit: int = 0
    rate: float = 0.0
    note: str = ""
    requested_by: str = ""


class JobStarted(NamedTuple):
    """The start of a job. `bounds` maps queue id to its first offset and the offset of its end."""

    job_id: str
    spec: JobSpec
    bounds: Mapping[int, Run]


class Progress(NamedTuple):
    """The progress of a job in one queue: the letters up to `next_offset` are examined.

    `done` are the letters that were sent or dismissed. `places` maps topic and queue id of the
    announced messages to their first queue offset and their number; their order in the log is that
    of `done`. `duplicates` are letters whose message the job sends for an earlier letter.
    """

    job_id: str
    queue_id: int
    next_offset: int
    done: Sequence[Run] = ()
    places: Mapping[tuple[str, int], tuple[int, int]] = {}
    duplicates: Sequence[Run] = ()
    failed: Sequence[tuple[str, Sequence[Run]]] = ()
    already: int = 0
    unreadable: int = 0

    @property
    def announced(self) -> int:
        return sum(count for _, count in self.places.values())


class Torn(NamedTuple):
    """A correction of the preceding record: only the first `stored` of its messages exist."""

    job_id: str
    stored: int


class JobEnded(NamedTuple):
    job_id: str
    state: JobState


LetterRecord = JobStarted | Progress | Torn | JobEnded


def encode(record: LetterRecord, now_ms: int) -> NewMessage:
    body = _encode(_to_json(record)).encode()
    return NewMessage(names.LETTER_JOURNAL_TOPIC, QUEUE_ID, body, born_timestamp_ms=now_ms)


def _to_json(record: LetterRecord) -> dict[str, Any]:
    if isinstance(record, JobStarted):
        spec = record.spec
        return {
            "kind": "started",
            "job": record.job_id,
            "bounds": {str(queue_id): bounds for queue_id, bounds in record.bounds.items()},
            "group": spec.consumer_group,
            "action": spec.action.value,
            "target": spec.target,
            "selection": spec.selection.to_json(),
            "again": spec.again,
            "limit": spec.limit,
            "rate": spec.rate,
            "note": spec.note,
            "by": spec.requested_by,
        }
    if isinstance(record, Progress):
        return {
            "kind": "progress",
            "job": record.job_id,
            "queue": record.queue_id,
            "next": record.next_offset,
            "done": record.done,
            "places": [[*queue, *place] for queue, place in record.places.items()],
            "duplicates": record.duplicates,
            "failed": record.failed,
            "already": record.already,
            "unreadable": record.unreadable,
        }
    if isinstance(record, Torn):
        return {"kind": "torn", "job": record.job_id, "stored": record.stored}
    return {"kind": "ended", "job": record.job_id, "state": record.state.value}


def decode(body: bytes) -> LetterRecord:
    """Decode a record. Raises KeyError, TypeError or ValueError if it is invalid."""
    found = json.loads(body)
    kind, job_id = found["kind"], found["job"]
    if kind == "started":
        spec = JobSpec(
            consumer_group=found["group"],
            action=Action(found["action"]),
            target=found["target"],
            selection=Selection.from_json(found["selection"]),
            again=found["again"],
            limit=found["limit"],
            rate=found["rate"],
            note=found["note"],
            requested_by=found["by"],
        )
        bounds = {int(queue_id): (low, high) for queue_id, (low, high) in found["bounds"].items()}
        return JobStarted(job_id, spec, bounds)
    if kind == "progress":
        return Progress(
            job_id,
            found["queue"],
            found["next"],
            _runs(found["done"]),
            {
                (topic, queue_id): (first, count)
                for topic, queue_id, first, count in found["places"]
            },
            _runs(found["duplicates"]),
            [(error, _runs(runs)) for error, runs in found["failed"]],
            found["already"],
            found["unreadable"],
        )
    if kind == "torn":
        return Torn(job_id, found["stored"])
    if kind == "ended":
        return JobEnded(job_id, JobState(found["state"]))
    raise ValueError(f"a record of the unknown kind {kind!r}")


def _runs(found: Sequence[Sequence[int]]) -> list[Run]:
    return [(start, end) for start, end in found]
