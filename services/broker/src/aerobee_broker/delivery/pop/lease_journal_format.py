"""The format of the records of the lease journal. A request writes one record.

The records are messages of a system topic with one queue, so their order is the order of the
requests. They are stored in the commit log with all other messages. A record contains the state of
its messages after the request. Applying a record twice therefore has no further effect.

The body of a record is a JSON object. It has the member "kind", and the members that `_KINDS` lists
for the fields of the record's class. An inner NamedTuple is an array of its fields, in order. A run
represents consecutive messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

from aerobee_broker.delivery.retry.policy import Failure
from aerobee_broker.store.messages import NewMessage

QUEUE_ID = 0
# Created once: `json.dumps` creates an encoder per call.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


class LeasedRun(NamedTuple):
    first_offset: int
    attempt: int  # the delivery attempt of each message
    length: int  # messages


class SettledRun(NamedTuple):
    first_offset: int
    length: int  # messages


class LeasedQueue(NamedTuple):
    """The messages of one queue that a pop leased or left waiting.

    All other messages between the two cursors are settled.
    """

    queue_id: int
    cursor_before: int
    cursor_after: int
    leased: Sequence[LeasedRun]
    waiting: Sequence[int]  # offsets of messages in flight that the journal has no lease of


class LeaseRecord(NamedTuple):
    """Records that a pop leased messages.

    `attempt_id` is the consumer's id for this receive, if the messages are consumed in order. It
    may be empty. `client_id` is the client that popped; it is empty if the client is unknown, and
    in records of older brokers.
    """

    consumer_group: str
    topic: str
    lease_id: int
    pop_time_ms: int  # since the epoch
    invisible_duration_ms: int
    fifo: bool
    attempt_id: str
    queues: Sequence[LeasedQueue]
    client_id: str = ""


class SettledQueue(NamedTuple):
    consumer_group: str
    topic: str
    queue_id: int
    settled: Sequence[SettledRun]
    # Acknowledged offsets that wait for an earlier message of their message group to be settled.
    acked: Sequence[int]


class SettleRecord(NamedTuple):
    """Records that messages were acknowledged or dead-lettered, or are not stored any more.

    `dead` has (group, topic, queue id, queue offset) of each message in `queues` that became a dead
    letter. It is empty in records of older brokers.
    """

    queues: Sequence[SettledQueue]
    dead: Sequence[Sequence[Any]] = ()


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
    """Records that the invisible durations of leases were changed.

    `rejections` has an item for each of the leases: the fields of the failure if the consumer
    failed to consume the message, without a reason an empty list; null if it only changed the
    duration. It is empty if all are null, and in records of older brokers.
    """

    leases: Sequence[ChangedLease]
    rejections: Sequence[Sequence[str] | None] = ()


class ResetRecord(NamedTuple):
    """Records that a group's offset in a queue was set, which ends all its leases in the queue.

    `requested_by` is the operator, or the address of the caller. It is empty if the broker itself
    set the offset, as for the first pop of a group, and in records of older brokers.
    """

    consumer_group: str
    topic: str
    queue_id: int
    offset: int
    requested_by: str = ""


class DeleteRecord(NamedTuple):
    """Records that a group or a topic was deleted. The field of the other is empty.

    If both fields are set, the group's leases in the topic were deleted, because it left the topic.
    """

    consumer_group: str
    topic: str


class ExpireRecord(NamedTuple):
    """Records that lite topics in a queue of their parent topic expired by their TTL.

    When `end` was the end of the queue, the lite topics without a message at or after the queue
    offset `floor` were deleted.
    """

    topic: str
    queue_id: int
    end: int
    floor: int


JournalRecord = (
    LeaseRecord | SettleRecord | ChangeRecord | ResetRecord | DeleteRecord | ExpireRecord
)
# "kind" → the class of its records, and their JSON members in the order of the fields.
_KINDS: Mapping[str, tuple[type[JournalRecord], tuple[str, ...]]] = {
    "lease": (
        LeaseRecord,
        ("group", "topic", "id", "at", "for", "fifo", "attempt", "queues", "client"),
    ),
    "settle": (SettleRecord, ("queues", "dead")),
    "show": (ChangeRecord, ("leases", "rejections")),
    "move": (ResetRecord, ("group", "topic", "queue", "offset", "by")),
    "forget": (DeleteRecord, ("group", "topic")),
    "expire": (ExpireRecord, ("topic", "queue", "end", "floor")),
}
# Members that are left out if they are empty. Older brokers ignore them, and do not write them.
_OPTIONAL: Mapping[str, Any] = {"client": "", "by": "", "dead": (), "rejections": ()}
_KIND_OF = {record_class: kind for kind, (record_class, _) in _KINDS.items()}


def encode(record: JournalRecord, topic: str, now_ms: int) -> NewMessage:
    """Return a record as a message to append to the journal's topic."""
    kind = _KIND_OF[type(record)]
    content = {"kind": kind, **dict(zip(_KINDS[kind][1], record, strict=True))}
    for member in _OPTIONAL:
        if member in content and not content[member]:
            del content[member]
    body = _encode(content).encode()
    return NewMessage(topic, QUEUE_ID, body, born_timestamp_ms=now_ms)


def decode(body: bytes) -> JournalRecord:
    """Return the record in a message body.

    Raises KeyError, TypeError or ValueError if the body is invalid.
    """
    content = json.loads(body)
    kind = content["kind"]
    if kind not in _KINDS:
        raise ValueError(f"a record of the unknown kind {kind}")
    record_class, members = _KINDS[kind]
    record = record_class._make(
        content.get(member, _OPTIONAL[member]) if member in _OPTIONAL else content[member]
        for member in members
    )
    match record:
        case LeaseRecord():
            return record._replace(queues=[_leased_queue(*queue) for queue in record.queues])
        case SettleRecord(queues):
            return record._replace(queues=[_settled_queue(*queue) for queue in queues])
        case ChangeRecord(leases):
            return record._replace(leases=[ChangedLease(*lease) for lease in leases])
    return record


def _leased_queue(
    queue_id: int, before: int, after: int, leased: Iterable[Sequence[int]], waiting: Sequence[int]
) -> LeasedQueue:
    return LeasedQueue(queue_id, before, after, [LeasedRun(*run) for run in leased], waiting)


def _settled_queue(
    group: str, topic: str, queue_id: int, settled: Iterable[Sequence[int]], acked: Sequence[int]
) -> SettledQueue:
    return SettledQueue(group, topic, queue_id, [SettledRun(*run) for run in settled], acked)


def rejections_of(failures: Iterable[Failure | None]) -> list[list[str] | None]:
    """Return the `rejections` of a ChangeRecord."""
    found = [None if failure is None else rejection_of(failure) for failure in failures]
    return found if any(each is not None for each in found) else []


def rejection_of(failure: Failure) -> list[str]:
    """Return the fields of a failure, or an empty list if all are empty."""
    fields = list(astuple(failure))
    return fields if any(fields) else []


def leased_runs(messages: Iterable[tuple[int, int]]) -> list[LeasedRun]:
    """Group messages, given as (offset, delivery attempt), into runs of consecutive messages."""
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
    """Yield (offset, delivery attempt) of each message in the runs."""
    for first, attempt, length in runs:
        for offset in range(first, first + length):
            yield offset, attempt


def settled_offsets(runs: Iterable[SettledRun]) -> Iterator[int]:
    for first, length in runs:
        yield from range(first, first + length)
