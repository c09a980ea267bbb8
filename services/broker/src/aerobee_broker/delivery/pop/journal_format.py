"""The records of the lease journal: one for each request, whatever the number of its messages.

They are messages of a system topic with one queue: so their order is the order in which things
happened, and they share log, group commit and recovery with everything else. A record holds the
state after the request, not the difference: applying it twice, or to a state that has seen it, does
no harm.

The body is one JSON object, "kind" first; each record class here names the members of one kind.
Inner values are arrays: the fields of a NamedTuple, in order. A run stands for messages one after
the other. Older brokers wrote a single message without a length: [offset, attempt] in `lease`, the
bare offset in `settle`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from aerobee_broker.store.messages import NewMessage

QUEUE_ID = 0
# Made once: `json.dumps` makes an encoder per call.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


class LeasedRun(NamedTuple):
    first_offset: int
    attempt: int  # the delivery attempt of each
    length: int = 1  # messages


class SettledRun(NamedTuple):
    first_offset: int
    length: int  # messages


class LeasedQueue(NamedTuple):
    """Messages between the cursors that are in neither list are settled."""

    queue_id: int
    cursor_before: int
    cursor_after: int
    leased: Sequence[LeasedRun]
    waiting: Sequence[int]  # offsets in flight, and on no lease that the journal knows


class LeaseRecord(NamedTuple):
    """A pop leased messages. `attempt_id`: names the attempt to receive (FIFO), or empty."""

    consumer_group: str
    topic: str
    lease_id: int
    pop_time_ms: int  # since the epoch
    invisible_duration_ms: int
    fifo: bool
    attempt_id: str
    queues: Sequence[LeasedQueue]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "lease",
            "group": self.consumer_group,
            "topic": self.topic,
            "id": self.lease_id,
            "at": self.pop_time_ms,
            "for": self.invisible_duration_ms,
            "fifo": self.fifo,
            "attempt": self.attempt_id,
            "queues": self.queues,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> LeaseRecord:
        queues = [
            LeasedQueue(queue_id, before, after, [LeasedRun(*run) for run in leased], waiting)
            for queue_id, before, after, leased, waiting in content["queues"]
        ]
        return cls(
            content["group"],
            content["topic"],
            content["id"],
            content["at"],
            content["for"],
            content["fifo"],
            content["attempt"],
            queues,
        )


class SettledQueue(NamedTuple):
    consumer_group: str
    topic: str
    queue_id: int
    settled: Sequence[SettledRun]
    acked: Sequence[int]  # offsets acknowledged behind an unsettled one of their message group


class SettleRecord(NamedTuple):
    """Messages were acknowledged, dead-lettered, or are no longer stored."""

    queues: Sequence[SettledQueue]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "settle", "queues": self.queues}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> SettleRecord:
        return cls(
            [
                SettledQueue(group, topic, queue_id, [_settled_run(run) for run in settled], acked)
                for group, topic, queue_id, settled, acked in content["queues"]
            ]
        )


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

    def to_json(self) -> dict[str, Any]:
        return {"kind": "show", "leases": self.leases}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ChangeRecord:
        return cls([ChangedLease(*lease) for lease in content["leases"]])


class ResetRecord(NamedTuple):
    """The cursor of a group was set; nothing of this queue is in flight."""

    consumer_group: str
    topic: str
    queue_id: int
    offset: int

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "move",
            "group": self.consumer_group,
            "topic": self.topic,
            "queue": self.queue_id,
            "offset": self.offset,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ResetRecord:
        return cls(content["group"], content["topic"], content["queue"], content["offset"])


class DeleteRecord(NamedTuple):
    """A group or a topic was deleted; the other is empty."""

    consumer_group: str
    topic: str

    def to_json(self) -> dict[str, Any]:
        return {"kind": "forget", "group": self.consumer_group, "topic": self.topic}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> DeleteRecord:
        return cls(content["group"], content["topic"])


JournalRecord = LeaseRecord | SettleRecord | ChangeRecord | ResetRecord | DeleteRecord
_KINDS: Mapping[str, type[JournalRecord]] = {
    "lease": LeaseRecord,
    "settle": SettleRecord,
    "show": ChangeRecord,
    "move": ResetRecord,
    "forget": DeleteRecord,
}


def encode(record: JournalRecord, topic: str, now_ms: int) -> NewMessage:
    """The message to append to the journal's topic."""
    body = _encode(record.to_json()).encode()
    return NewMessage(topic, QUEUE_ID, body, born_timestamp_ms=now_ms)


def decode(body: bytes) -> JournalRecord:
    """Raises KeyError, TypeError, ValueError when it is none."""
    content = json.loads(body)
    kind = _KINDS.get(content["kind"])
    if kind is None:
        raise ValueError(f"a record of the unknown kind {content['kind']}")
    return kind.from_json(content)


def leased_runs(messages: Iterable[tuple[int, int]]) -> list[LeasedRun]:
    """Of offset and delivery attempt of each message."""
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
    """Offset and delivery attempt of each message."""
    for first, attempt, length in runs:
        for offset in range(first, first + length):
            yield offset, attempt


def settled_offsets(runs: Iterable[SettledRun]) -> Iterator[int]:
    for first, length in runs:
        yield from range(first, first + length)


def _settled_run(entry: int | Sequence[int]) -> SettledRun:
    return SettledRun(entry, 1) if isinstance(entry, int) else SettledRun(*entry)
