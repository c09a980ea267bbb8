"""The lease table: all leases of a broker, as restored from the lease journal and its snapshot.

The snapshot (`config/popLeases.json`) only makes startup faster. It contains the queue offset up to
which it includes the journal. It may also include changes of later records. Applying these records
again has no further effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

from aerobee_broker.delivery.pop.in_flight import (
    ACKED,
    INVISIBLE,
    LEASE_IDS_PER_MS,
    VISIBLE,
    InFlightMessage,
    InFlightQueue,
)
from aerobee_broker.delivery.pop.lease_journal_format import (
    ChangedLease,
    ChangeRecord,
    DeleteRecord,
    JournalRecord,
    LeaseRecord,
    ResetRecord,
    SettledQueue,
    SettleRecord,
    leased_messages,
    rejection_of,
    settled_offsets,
)
from aerobee_broker.delivery.retry.policy import Failure
from aerobee_broker.metadata.table import Table
from aerobee_chassis.clock import Clock
from aerobee_wire.status import Code, MqError


class LeaseName(NamedTuple):
    """Identifies the lease of one message.

    `expires_ms` is the time since the epoch at which the lease expires, as far as its holder knows.
    It is 0 if the time is unknown.
    """

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    lease_id: int
    expires_ms: int = 0


class LeaseSet(NamedTuple):
    """Identifies leases of one pop in one queue.

    `expires_ms` applies to all of them, and has the same meaning as in LeaseName.
    """

    consumer_group: str
    topic: str
    queue_id: int
    lease_id: int
    expires_ms: int
    queue_offsets: Sequence[int]


def invalid_lease(lease: LeaseName | LeaseSet, queue_offset: int) -> MqError:
    return MqError(
        Code.INVALID_RECEIPT_HANDLE,
        f"no lease {lease.lease_id} on message {queue_offset} of {lease.topic} queue "
        f"{lease.queue_id}: its invisible duration is over or it is settled; unless it is, "
        "the message is redelivered",
    )


class LeasedMessage(NamedTuple):
    queue: InFlightQueue
    message: InFlightMessage


@dataclass(frozen=True, slots=True)
class ReceiveAttempt:
    """The leases of a receive with an attempt id.

    `messages` has (queue id, queue offset) of each message.
    """

    lease_id: int
    pop_time_ms: int
    invisible_duration_ms: int
    messages: tuple[tuple[int, int], ...]


@dataclass(slots=True, eq=False)
class GroupLeases:
    """The leases of one consumer group in one topic."""

    consumer_group: str
    topic: str
    queues: dict[int, InFlightQueue] = field(default_factory=dict)
    attempts: dict[str, ReceiveAttempt] = field(default_factory=dict)
    first_queue: int = 0  # the queue at which the last pop from all queues started

    def queue(self, queue_id: int, cursor: int = 0, *, fifo: bool = False) -> InFlightQueue:
        """Return the messages in flight of a queue.

        If there is no entry for the queue, creates it with the given cursor.
        """
        queue = self.queues.get(queue_id)
        if queue is None:
            group, topic = self.consumer_group, self.topic
            queue = InFlightQueue(group, topic, queue_id, cursor, fifo=fifo)
            self.queues[queue_id] = queue
        return queue

    def still_leased(self, attempt: ReceiveAttempt) -> list[LeasedMessage]:
        """Return the messages of an earlier receive that are still on its lease."""
        found = []
        for queue_id, offset in attempt.messages:
            queue = self.queues.get(queue_id)
            message = queue.in_flight.get(offset) if queue else None
            if queue and message and message.is_leased and message.lease_id == attempt.lease_id:
                found.append(LeasedMessage(queue, message))
        return found

    def forget_attempts(self) -> None:
        """Remove the receives that have no message on lease any more."""
        self.attempts = {
            name: attempt for name, attempt in self.attempts.items() if self.still_leased(attempt)
        }


class LeaseTable(Table):
    """All leases, by group and topic.

    `position` returns the queue offset up to which the table includes the lease journal.
    """

    def __init__(self, clock: Clock, position: Callable[[], int]) -> None:
        super().__init__(clock)
        self._position = position
        self._groups: dict[tuple[str, str], GroupLeases] = {}
        self._last_lease_id = 0
        self.loaded_position = 0  # of the snapshot

    def __iter__(self) -> Iterator[GroupLeases]:
        return iter(self._groups.values())

    def queues(self) -> Iterator[InFlightQueue]:
        for group in self:
            yield from group.queues.values()

    def group(self, consumer_group: str, topic: str) -> GroupLeases:
        """Return the entry with the leases of a group in a topic. Create it if it is missing."""
        key = (consumer_group, topic)
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = GroupLeases(consumer_group, topic)
        return found

    def entry(self, consumer_group: str, topic: str) -> GroupLeases | None:
        """Return the entry with the leases of a group in a topic, or None if there is none.

        After `forget`, a group that leases again has another entry.
        """
        return self._groups.get((consumer_group, topic))

    def find(self, consumer_group: str, topic: str, queue_id: int) -> InFlightQueue | None:
        group = self._groups.get((consumer_group, topic))
        return group.queues.get(queue_id) if group else None

    def leased(self, lease: LeaseName) -> LeasedMessage:
        """Return the message on a lease.

        Raises MqError with the code INVALID_RECEIPT_HANDLE if the lease does not exist or is over.
        """
        queue = self.find(lease.consumer_group, lease.topic, lease.queue_id)
        if queue is not None:
            now_ms = self._clock.monotonic_ms()
            message = queue.on_lease(lease.queue_offset, lease.lease_id, now_ms)
            if message is not None:
                return LeasedMessage(queue, message)
        raise invalid_lease(lease, lease.queue_offset)

    def next_lease_id(self, now_ms: int) -> int:
        self._last_lease_id = max(self._last_lease_id + 1, now_ms * LEASE_IDS_PER_MS)
        return self._last_lease_id

    def touch(self) -> None:
        """Record that the table has changed since its snapshot was saved."""
        self.revision += 1

    def forget(self, *, consumer_group: str = "", topic: str = "") -> bool:
        """Remove the leases of a deleted group or topic.

        If both are given, removes only the leases of the group in the topic. Returns whether there
        were any entries.
        """
        deleted = self.keys_of(consumer_group=consumer_group, topic=topic)
        for key in deleted:
            for queue in self._groups.pop(key).queues.values():
                queue.reset(0)  # so that callers with a reference see no message in flight
        return bool(deleted)

    def keys_of(self, *, consumer_group: str = "", topic: str = "") -> list[tuple[str, str]]:
        """Return (group, topic) of all entries of a group, of a topic, or of a group in a topic."""
        return [
            (its_group, its_topic)
            for its_group, its_topic in self._groups
            if (consumer_group or topic)
            and consumer_group in ("", its_group)
            and topic in ("", its_topic)
        ]

    def take_over(self, other: LeaseTable, position: int) -> None:
        """Replace the content of this table by the content of another one.

        `other` includes the journal up to the queue offset `position`. The caller must not use
        `other` afterwards.
        """
        self._groups = other._groups
        self._last_lease_id = other._last_lease_id
        self.loaded_position = position

    # ---- journal ----

    def apply(self, record: JournalRecord) -> None:
        """Apply a journal record. Raises TypeError, ValueError if a field has the wrong type."""
        match record:
            case LeaseRecord():
                self._apply_lease(record)
            case SettleRecord():
                for settled in record.queues:
                    self._apply_settled(settled)
            case ChangeRecord():
                rejections = record.rejections or repeat(None)
                for change, rejection in zip(record.leases, rejections, strict=False):
                    self._apply_change(change, rejection)
            case ResetRecord(group, topic, queue_id, offset):
                self.group(group, topic).queue(queue_id).reset(offset)
            case DeleteRecord(group, topic):
                self.forget(consumer_group=group, topic=topic)

    def _apply_lease(self, record: LeaseRecord) -> None:
        group = self.group(record.consumer_group, record.topic)
        self._last_lease_id = max(self._last_lease_id, record.lease_id)
        messages = []
        for leased_queue in record.queues:
            queue = group.queue(leased_queue.queue_id, leased_queue.cursor_before)
            queue.fifo = record.fifo
            queue.cursor = max(queue.cursor, leased_queue.cursor_after)
            queue.journalled_cursor = queue.cursor
            for offset, attempt in leased_messages(leased_queue.leased):
                queue.in_flight[offset] = InFlightMessage(
                    offset,
                    attempt=attempt,
                    lease_id=record.lease_id,
                    state=INVISIBLE,
                    expires_ms=record.pop_time_ms + record.invisible_duration_ms,
                    pop_time_ms=record.pop_time_ms,
                    client_id=record.client_id,
                )
                messages.append((queue.queue_id, offset))
            for offset in leased_queue.waiting:
                queue.in_flight.setdefault(offset, InFlightMessage(offset))
        if record.attempt_id:
            group.attempts[record.attempt_id] = ReceiveAttempt(
                record.lease_id, record.pop_time_ms, record.invisible_duration_ms, tuple(messages)
            )

    def _apply_settled(self, settled: SettledQueue) -> None:
        queue = self.find(settled.consumer_group, settled.topic, settled.queue_id)
        if queue is None:
            return
        for offset in settled_offsets(settled.settled):
            queue.in_flight.pop(offset, None)
        for offset in settled.acked:
            message = queue.in_flight.get(offset)
            if message is not None:
                message.state = ACKED

    def _apply_change(self, change: ChangedLease, rejection: Sequence[str] | None) -> None:
        queue = self.find(change.consumer_group, change.topic, change.queue_id)
        message = queue.in_flight.get(change.offset) if queue else None
        if message and message.is_leased and message.lease_id == change.lease_id:
            message.pop_time_ms = change.pop_time_ms
            message.expires_ms = change.pop_time_ms + change.invisible_duration_ms
            message.attempt, message.uncounted = change.attempt, bool(change.uncounted)
            message.rejection = None if rejection is None else Failure(*rejection)

    # ---- snapshot ----

    def to_json(self) -> dict[str, Any]:
        for group in self:
            group.forget_attempts()
        return {
            "position": self._position(),
            "lastLeaseId": self._last_lease_id,
            "groups": [
                {
                    "group": group.consumer_group,
                    "topic": group.topic,
                    "queues": [_queue_to_json(queue) for queue in group.queues.values()],
                    "attempts": {
                        name: [
                            attempt.lease_id,
                            attempt.pop_time_ms,
                            attempt.invisible_duration_ms,
                            attempt.messages,
                        ]
                        for name, attempt in group.attempts.items()
                    },
                    # By lease id. Older brokers ignore this member, and do not write it.
                    "clients": {
                        str(message.lease_id): message.client_id
                        for queue in group.queues.values()
                        for message in queue
                        if message.client_id
                    },
                    # (queue id, queue offset, fields of the failure). Older brokers ignore this
                    # member, and do not write it.
                    "rejections": [
                        (queue.queue_id, message.offset, rejection_of(message.rejection))
                        for queue in group.queues.values()
                        for message in queue
                        if message.rejection is not None
                    ],
                }
                for group in self
            ],
        }

    def load(self, content: dict[str, Any]) -> None:
        self._groups = {}
        self.loaded_position = int(content["position"])
        self._last_lease_id = int(content["lastLeaseId"])
        for entry in content["groups"]:
            group = self.group(entry["group"], entry["topic"])
            clients = entry.get("clients", {})
            for queue in entry["queues"]:
                _load_queue(group, queue, clients)
            for queue_id, offset, rejection in entry.get("rejections", ()):
                group.queue(queue_id).in_flight[offset].rejection = Failure(*rejection)
            for name, (lease_id, pop_time_ms, duration_ms, messages) in entry["attempts"].items():
                pairs = tuple((queue_id, offset) for queue_id, offset in messages)
                group.attempts[name] = ReceiveAttempt(lease_id, pop_time_ms, duration_ms, pairs)


def _queue_to_json(queue: InFlightQueue) -> list[Any]:
    messages = [
        [
            message.offset,
            message.attempt,
            message.lease_id,
            int(message.is_leased),
            int(message.state is ACKED),
            int(message.uncounted),
            message.pop_time_ms,
            message.expires_ms,
        ]
        for message in queue
    ]
    return [queue.queue_id, queue.cursor, int(queue.fifo), messages]


def _load_queue(group: GroupLeases, content: list[Any], clients: dict[str, str]) -> None:
    queue_id, cursor, fifo, messages = content
    queue = group.queue(queue_id, cursor, fifo=bool(fifo))
    for offset, attempt, lease_id, invisible, acked, uncounted, pop_time_ms, expires_ms in messages:
        queue.in_flight[offset] = InFlightMessage(
            offset,
            attempt=attempt,
            lease_id=lease_id,
            state=INVISIBLE if invisible else ACKED if acked else VISIBLE,
            expires_ms=expires_ms,
            pop_time_ms=pop_time_ms,
            uncounted=bool(uncounted),
            client_id=clients.get(str(lease_id), ""),
        )
