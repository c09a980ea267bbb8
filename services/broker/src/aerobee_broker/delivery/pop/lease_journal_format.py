"""The records of the lease journal: one per request, for any number of messages.

They are messages of a system topic with one queue. Their order is therefore the order of the
events, and they share the log, group commit and recovery with all other messages. A record holds
the state after the request, not the difference. Applying it twice, or to a state that already
includes it, has no further effect.

The body is one JSON object: "kind", and the members that `_KINDS` lists for the fields of its
class. Inner values are arrays: the fields of a NamedTuple, in order. A run stands for consecutive
messages. Older brokers wrote a single message without a length: [offset, attempt] in `lease`, the
bare offset in `settle`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from aerobee_broker.store.messages import NewMessage

QUEUE_ID = 0
# Created once: `json.dumps` creates an encoder per call.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


class LeasedRun(NamedTuple):
    first_offset: int
    attempt: int  # the delivery attempt of each message
    length: int = 1  # messages


class SettledRun(NamedTuple):
    first_offset: int
    length: int  # messages


class LeasedQueue(NamedTuple):
    """The leased and waiting messages of a queue; all others between the cursors are settled."""

    queue_id: int
    cursor_before: int
    cursor_after: int
    leased: Sequence[LeasedRun]
    waiting: Sequence[int]  # offsets in flight without a lease in the journal


class LeaseRecord(NamedTuple):
    """A pop leased messages. `attempt_id`: names the attempt to receive (FIFO); may be empty."""

    consumer_group: str
    topic: str
    lease_id: int
    pop_time_ms: int  # since the epoch
    invisible_duration_ms: int
    fifo: bool
    attempt_id: str
    queues: Sequence[LeasedQueue]


class SettledQueue(NamedTuple):
    consumer_group: str
    topic: str
    queue_id: int
    settled: Sequence[SettledRun]
    acked: Sequence[int]  # offsets acknowledged behind an unsettled one of their message group


class SettleRecord(NamedTuple):
    """Messages were acknowledged, dead-lettered, or are no longer stored."""

    queues: Sequence[SettledQueue]


class ChangedLease(NamedTuple):
    consumer_group: str
    topic: str
    queue_id: int
    offset: int
    lease_id: int
    pop_time_ms: int  # since the epoch
    invisible_duration_ms: int
    attempt: int  # the delivery attempt
    uncounted: int  # 1: the next delivery has the same attempt number


class ChangeRecord(NamedTuple):
    """Invisible durations were changed."""

    leases: Sequence[ChangedLease]


class ResetRecord(NamedTuple):
    """The cursor of a group was set; no message of this queue is in flight any more."""

    consumer_group: str
    topic: str
    queue_id: int
    offset: int


class DeleteRecord(NamedTuple):
    """A group or a topic was deleted; the other field is empty.

    With both, the group left the topic.
    """

    consumer_group: str
    topic: str


class ExpireRecord(NamedTuple):
    """Lite topics in a queue of this parent expired by their TTL.

    When the queue ended at `end`, those without a message at `floor` or later were deleted.
    """

    topic: str
    queue_id: int
    end: int
    floor: int


JournalRecord = (
    LeaseRecord | SettleRecord | ChangeRecord | ResetRecord | DeleteRecord | ExpireRecord
)
# "kind" → its class, and its JSON members in the order of the fields.
_KINDS: Mapping[str, tuple[type[JournalRecord], tuple[str, ...]]] = {
    "lease": (LeaseRecord, ("group", "topic", "id", "at", "for", "fifo", "attempt", "queues")),
    "settle": (SettleRecord, ("queues",)),
    "show": (ChangeRecord, ("leases",)),
    "move": (ResetRecord, ("group", "topic", "queue", "offset")),
    "forget": (DeleteRecord, ("group", "topic")),
    "expire": (ExpireRecord, ("topic", "queue", "end", "floor")),
}
_KIND_OF = {record_class: kind for kind, (record_class, _) in _KINDS.items()}


def encode(record: JournalRecord, topic: str, now_ms: int) -> NewMessage:
    """Return the message to append to the journal's topic."""
    kind = _KIND_OF[type(record)]
    members = _KINDS[kind][1]
    body = _encode({"kind": kind, **dict(zip(members, record, strict=True))}).encode()
    return NewMessage(topic, QUEUE_ID, body, born_timestamp_ms=now_ms)


def decode(body: bytes) -> JournalRecord:
    """Decode a record. Raises KeyError, TypeError, ValueError if it is invalid."""
    content = json.loads(body)
    kind = content["kind"]
    if kind not in _KINDS:
        raise ValueError(f"a record of the unknown kind {kind}")
    record_class, members = _KINDS[kind]
    record = record_class._make(content[member] for member in members)
    match record:
        case LeaseRecord():
            return record._replace(queues=[_leased_queue(*queue) for queue in record.queues])
        case SettleRecord(queues):
            return SettleRecord([_settled_queue(*queue) for queue in queues])
        case ChangeRecord(leases):
            return ChangeRecord([ChangedLease(*lease) for lease in leases])
    return record


def _leased_queue(
    queue_id: int, before: int, after: int, leased: Iterable[Sequence[int]], waiting: Sequence[int]
) -> LeasedQueue:
    return LeasedQueue(queue_id, before, after, [LeasedRun(*run) for run in leased], waiting)


def _settled_queue(
    group: str, topic: str, queue_id: int, settled: Iterable[Any], acked: Sequence[int]
) -> SettledQueue:
    runs = [SettledRun(run, 1) if isinstance(run, int) else SettledRun(*run) for run in settled]
    return SettledQueue(group, topic, queue_id, runs, acked)


def leased_runs(messages: Iterable[tuple[int, int]]) -> list[LeasedRun]:
    """Return the runs of messages, each given as offset and delivery attempt."""
    runs: list[LeasedRun] = []
    first = end = run_attempt = -1
    for offset, attempt in messages:
        if offset != end or attempt != run_attempt:
            if end >= 0:
                runs.append(LeasedRun(first, run_attempt, end - first))
            first, run_attempt = offset, attempt
        end = offset + 1
    if end >= 0:
        runs.append(LeasedRun(first, run_attempt, end - first))
    return runs


def settled_runs(offsets: Iterable[int]) -> list[SettledRun]:
    runs: list[SettledRun] = []
    first = end = -1
    for offset in offsets:
        if offset != end:
            if end >= 0:
                runs.append(SettledRun(first, end - first))
            first = offset
        end = offset + 1
    if end >= 0:
        runs.append(SettledRun(first, end - first))
    return runs


def leased_messages(runs: Iterable[LeasedRun]) -> Iterator[tuple[int, int]]:
    """Yield offset and delivery attempt of each message."""
    for first, attempt, length in runs:
        for offset in range(first, first + length):
            yield offset, attempt


def settled_offsets(runs: Iterable[SettledRun]) -> Iterator[int]:
    for first, length in runs:
        yield from range(first, first + length)
